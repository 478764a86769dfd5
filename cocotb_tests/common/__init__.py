"""Tests of the parts that blocks share."""
