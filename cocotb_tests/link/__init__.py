"""Tests of the link between host and accelerator."""
