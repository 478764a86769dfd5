"""Differential salient-token quantization (DSQ): exact integer functions."""
