"""Base-2 softmax with an integer running maximum: rescaling is a shift."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.mha.scores import SCORE_FRACTION_BITS

__all__ = [
    "EXP2",
    "INVERSE_BITS",
    "MASKED",
    "NORMAL_BITS",
    "NO_MAXIMUM",
    "PROBABILITY_BITS",
    "exp2_table",
    "integer_maximum",
    "inverse",
    "shifted_sum",
    "softmax",
    "softmax_streaming",
]

PROBABILITY_BITS = 16
#: a score that takes no part (a dropped or future token)
MASKED = np.int32(-(1 << 30))
#: the maximum before the first score that takes part
NO_MAXIMUM = np.int32(-(1 << 22))
#: fraction bits of `inverse`; sums are cut to NORMAL_BITS bits before they are multiplied by it
INVERSE_BITS = 18
NORMAL_BITS = 20
_ONE = 1 << SCORE_FRACTION_BITS


def exp2_table() -> NDArray[np.int32]:
    """``half_up(2**16 * 2**(f / 256 - 1))`` for the fractions f = 0..255."""
    return np.floor(np.exp2(PROBABILITY_BITS - 1 + np.arange(_ONE) / _ONE) + 0.5).astype(np.int32)


EXP2 = exp2_table()


def integer_maximum(score: NDArray[np.int32], axis: int = -1) -> NDArray[np.int32]:
    """The largest score rounded up to a whole base-2 unit, ``floor(max) + 1`` (so every weight stays below one).

    A row of masked scores alone has NO_MAXIMUM.
    """
    top = score.max(axis=axis)
    return np.where(top == MASKED, NO_MAXIMUM, (top >> SCORE_FRACTION_BITS) + 1).astype(np.int32)


def _weights(score: NDArray[np.int32], maximum: NDArray[np.int32]) -> NDArray[np.int32]:
    relative = score - (maximum << SCORE_FRACTION_BITS)
    weights = EXP2[relative & (_ONE - 1)] >> np.minimum(-(relative >> SCORE_FRACTION_BITS) - 1, 31)
    return np.where(score == MASKED, 0, weights).astype(np.int32)


def softmax(score: NDArray[np.int32], maximum: NDArray[np.int32]) -> NDArray[np.int32]:
    """Unnormalized weights ``2**(score - maximum)`` in units of 2**-16: a table value, shifted right (floor).

    ``score[..., T]`` has 8 fraction bits, ``maximum[...]`` is whole units, above every score. Weights are below 2**16;
    masked scores, and those 16 units or more below the maximum, give 0.
    """
    return _weights(score, np.asarray(maximum)[..., None])


def softmax_streaming(score: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows ``score[..., T]`` in hardware order, token by token, the maximum being that of the tokens so far.

    Returns the weights ``[..., T]``, each against the maximum of its time, and these maxima ``[..., T]``. Sums of
    weights are shifted right (floor) by as much as the maximum rises, before the weight that made it rise is added.
    """
    own = np.where(score == MASKED, NO_MAXIMUM, (score >> SCORE_FRACTION_BITS) + 1).astype(np.int32)
    maximum = np.maximum.accumulate(own, axis=-1)
    return _weights(score, maximum), maximum


def shifted_sum(weights: NDArray[np.integer], maximum: NDArray[np.integer]) -> int:
    """The sum of ``weights[T]`` against the maxima ``[T]`` of their time, as `softmax_streaming` gives them."""
    total = 0
    starts = [0, *(np.flatnonzero(np.diff(maximum)) + 1).tolist(), len(weights)]
    for begin, end in pairwise(starts):
        rise = int(maximum[begin]) - int(maximum[max(begin - 1, 0)])
        total = (total >> min(rise, 63)) + int(weights[begin:end].sum(dtype=np.int64))
    return total


def inverse(total: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``half_up(2**(length - 1 + INVERSE_BITS) / total)`` and ``length``, the bit length of ``total``; of 0 both are 0.

    The inverse lies between 2**(INVERSE_BITS - 1) and 2**INVERSE_BITS, half a unit from the exact one at most.
    ``total`` is below 2**42.
    """
    t = np.asarray(total, np.int64)
    length = np.frexp(t.astype(np.float64))[1].astype(np.int64)
    safe = np.maximum(t, 1)
    quotient = (np.left_shift(np.int64(1), length + INVERSE_BITS) + safe) // (2 * safe)
    return np.where(t > 0, quotient, 0), length
