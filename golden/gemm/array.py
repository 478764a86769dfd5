"""Products of the PE array: INT8 weights times activation codes, exact."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["accumulator_bits", "multiply"]

#: bits of the magnitude of a weight, which is from -127 to 127
_WEIGHT_BITS = 7


def accumulator_bits(act_bits: int, k: int) -> int:
    """Bits of a signed sum of ``k`` products that no codes and weights overflow."""
    return act_bits + _WEIGHT_BITS + max(k - 1, 0).bit_length()


def multiply(codes: NDArray[np.integer], weights: NDArray[np.int8]) -> NDArray[np.int64]:
    """``codes[M, K] @ weights[N, K].T``, int64 ``[M, N]``; codes have at most 16 bits, ``K`` is at most 2**16.

    Computed in float64, in which every partial sum is exact.
    """
    return (codes.astype(np.float64) @ weights.T.astype(np.float64)).astype(np.int64)
