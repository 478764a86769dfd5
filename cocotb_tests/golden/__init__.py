"""Tests of the golden model and of what is built on it."""
