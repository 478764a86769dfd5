"""GEMM cores: PE array, norm prologue, epilogue, the core."""
