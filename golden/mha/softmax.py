"""Base-2 softmax with an integer running maximum: rescaling is a shift."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from golden.mha.scores import SCORE_FRACTION_BITS

__all__ = ["MASKED", "PROBABILITY_BITS", "EXP2", "exp2_table", "integer_maximum", "normalize", "softmax", "softmax_streaming"]

PROBABILITY_BITS = 16
#: a score that takes no part (a dropped or future token)
MASKED = np.int64(-(1 << 40))
_ONE = 1 << SCORE_FRACTION_BITS


def exp2_table() -> NDArray[np.int64]:
    """``half_up(2**16 * 2**(f / 256 - 1))`` for the fractions f = 0..255."""
    return np.floor(np.exp2(PROBABILITY_BITS - 1 + np.arange(_ONE) / _ONE) + 0.5).astype(np.int64)


EXP2 = exp2_table()


def integer_maximum(score: NDArray[np.int64], axis: int = -1) -> NDArray[np.int64]:
    """The largest score rounded up to a whole base-2 unit, ``floor(max) + 1`` (so every weight stays below one)."""
    return (score.max(axis=axis) >> SCORE_FRACTION_BITS) + 1


def softmax(score: NDArray[np.int64], maximum: NDArray[np.int64]) -> NDArray[np.int64]:
    """Unnormalized weights ``2**(score - maximum)`` in units of 2**-16, rounded to nearest by a table and a floor shift.

    ``score[..., T]`` has 8 fraction bits, ``maximum[...]`` is whole units, above every score. Weights are below 2**16; masked
    scores give 0.
    """
    relative = score - (maximum[..., None] << SCORE_FRACTION_BITS)
    fraction = relative & (_ONE - 1)
    shift = np.minimum(-(relative >> SCORE_FRACTION_BITS) - 1, 63)
    return EXP2[fraction] >> shift


def softmax_streaming(chunks: Iterable[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], int, int]:
    """One row in hardware order: chunks of scores arrive, the running maximum grows, the sum is shifted when it does.

    Returns the weights of each chunk as they were added (against the maximum of their time), the final maximum and the final sum.
    The sum differs from the plain form's only by the floor of each shift: less than one unit a shift, plus less than one unit
    for every weight added before it.
    """
    weights: list[NDArray[np.int64]] = []
    maximum, total = None, 0
    for chunk in chunks:
        live = chunk[chunk != MASKED]
        if live.size:
            peak = int(integer_maximum(live))
            if maximum is None:
                maximum = peak
            elif peak > maximum:
                total >>= min(peak - maximum, 63)
                maximum = peak
        top = np.asarray(0 if maximum is None else maximum, np.int64)
        w = softmax(chunk, top)
        weights.append(w)
        total += int(w.sum())
    return weights, 0 if maximum is None else maximum, total


def normalize(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Weights ``[..., T]`` to attention mass in units of 2**-16: ``floor(weight * 2**16 / sum + 1/2)``; all zero when the sum is 0."""
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, ((weights << (PROBABILITY_BITS + 1)) // np.maximum(total, 1) + 1) >> 1, 0)
