"""Differential salient-token quantization (DSQ): KV quantizer and dequantizer."""
