"""Tests of the blocks of the memory side."""
