"""A cheap estimate of every base token's score from the upper nibbles of its codes, and what the lower ones add."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["lower_nibble", "upper_nibble"]


def upper_nibble(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """INT8 base codes as the estimate sees them: the upper four bits, in the middle of the sixteen that share them."""
    return ((codes >> 4) * 16 + 8).astype(np.int8)


def lower_nibble(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """What the lower four bits add to `upper_nibble`: -8..7."""
    return ((codes & 15) - 8).astype(np.int8)
