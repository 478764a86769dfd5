"""Tests of the HCAP blocks."""
