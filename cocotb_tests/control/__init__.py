"""Tests of the control, and of the whole accelerator."""
