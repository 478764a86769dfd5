"""Integer GEMM with fused norm: exact functions of the blocks under `rtl/gemm`."""
