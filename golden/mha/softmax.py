"""Base-2 softmax with an integer running maximum: rescaling is a shift."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from golden.mha.scores import SCORE_FRACTION_BITS

__all__ = [
    "EXP2",
    "MASKED",
    "PROBABILITY_BITS",
    "exp2_table",
    "integer_maximum",
    "normalize",
    "softmax",
    "softmax_streaming",
]

PROBABILITY_BITS = 16
#: a score that takes no part (a dropped or future token)
MASKED = np.int32(-(1 << 30))
_ONE = 1 << SCORE_FRACTION_BITS


def exp2_table() -> NDArray[np.int32]:
    """``half_up(2**16 * 2**(f / 256 - 1))`` for the fractions f = 0..255."""
    return np.floor(np.exp2(PROBABILITY_BITS - 1 + np.arange(_ONE) / _ONE) + 0.5).astype(np.int32)


EXP2 = exp2_table()


def integer_maximum(score: NDArray[np.int32], axis: int = -1) -> NDArray[np.int32]:
    """The largest score rounded up to a whole base-2 unit, ``floor(max) + 1`` (so every weight stays below one).

    A row of masked scores alone has the maximum 0, so that all its weights are 0.
    """
    top = score.max(axis=axis)
    return np.where(top == MASKED, 0, (top >> SCORE_FRACTION_BITS) + 1)


def softmax(score: NDArray[np.int32], maximum: NDArray[np.int32]) -> NDArray[np.int32]:
    """Unnormalized weights ``2**(score - maximum)`` in units of 2**-16: a table value, shifted right (floor).

    ``score[..., T]`` has 8 fraction bits, ``maximum[...]`` is whole units, above every score. Weights are below 2**16;
    masked scores, and those 16 units or more below the maximum, give 0.
    """
    relative = score - (maximum[..., None] << SCORE_FRACTION_BITS)
    weights = EXP2[relative & (_ONE - 1)]
    relative >>= SCORE_FRACTION_BITS
    np.negative(relative, out=relative)
    relative -= 1
    np.minimum(relative, 31, out=relative)
    weights >>= relative
    return weights


def softmax_streaming(chunks: Iterable[NDArray[np.int32]]) -> tuple[list[NDArray[np.int32]], int, int]:
    """One row in hardware order: chunks of scores arrive, the running maximum grows, the sum is shifted when it does.

    Returns the weights of each chunk as they were added (against the maximum of their time), the final maximum and the
    final sum. The sum differs from the plain form's only by what the floor of a shift cuts off: it is never smaller,
    and larger by less than one unit for every weight that was added before the last shift.
    """
    weights: list[NDArray[np.int32]] = []
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
        top = np.asarray(0 if maximum is None else maximum, np.int32)
        w = softmax(chunk, top)
        weights.append(w)
        total += int(w.sum())
    return weights, 0 if maximum is None else maximum, total


def normalize(weights: NDArray[np.int32]) -> NDArray[np.int64]:
    """Weights ``[..., T]`` to attention mass in units of 2**-16, so that the mass of a row is exactly 2**16.

    Token t gets ``R(t) - R(t - 1)`` with ``R(t) = floor(2**16 * (weights up to t) / sum + 1/2)``: what one rounding
    leaves goes on to the next token, and each mass lies less than one unit from its share. A sum of 0 (everything
    masked) gives zeros. Exact for sums below 2**36: a quotient's float64 error stays below its distance from a tie.
    """
    upto = np.cumsum(weights, axis=-1, dtype=np.float64)
    total = np.maximum(upto[..., -1:], 1)
    upto *= 1 << PROBABILITY_BITS
    upto /= total
    upto += 0.5
    mass = upto.astype(np.int64)
    mass[..., 1:] -= mass[..., :-1].copy()
    return mass
