"""Tests of boards: memory controller, host, self test."""
