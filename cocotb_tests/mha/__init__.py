"""Tests of the attention blocks."""
