"""Tests of the GEMM blocks."""
