"""Tests of the DSQ blocks."""
