"""Attention mass of tokens and groups: their share of a row's weights."""

import numpy as np
from numpy.typing import NDArray

from golden.fixed import half_up
from golden.mha.softmax import INVERSE_BITS, NORMAL_BITS, PROBABILITY_BITS, inverse

__all__ = ["normalize"]


def normalize(
    weights: NDArray[np.integer], maximum: NDArray[np.integer], final: NDArray[np.integer], total: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Attention mass of tokens or groups in units of 2**-16, so that the mass of a row is 2**16.

    ``weights[..., E]`` against ``maximum[..., E]``; ``final[...]`` and ``total[...]`` are the row's maximum and sum in
    the end. Entry t gets ``R(t) - R(t - 1)``: R is ``half_up`` of the weights up to t, times `inverse`: what one
    rounding leaves goes on to the next entry. Sums are cut to NORMAL_BITS bits first. A total of 0 gives zeros.
    """
    drop = np.minimum(final[..., None] - maximum, 63).astype(np.int64)
    upto = np.cumsum(np.where(weights > 0, np.right_shift(weights.astype(np.int64), drop), 0), axis=-1)
    factor, length = inverse(total)
    cut = np.maximum(length - NORMAL_BITS, 0)[..., None]
    shift = length[..., None] - 1 + INVERSE_BITS - PROBABILITY_BITS - cut
    mass = half_up((upto >> cut) * factor[..., None], shift)
    mass[..., 1:] -= mass[..., :-1].copy()
    return mass
