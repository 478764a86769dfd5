"""Weighted sum of V rows: INT8 rows by multiplication, delta rows by addition, mean and shape once per output."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.dsq.scale import SCALE_BIAS, split_scale
from golden.fixed import half_up, saturate
from golden.mha.softmax import INVERSE_BITS, NORMAL_BITS, inverse

__all__ = ["SCALED_BITS", "Sums", "accumulate", "finish_output", "scale_weights"]

#: bits of a scaled weight (unsigned)
SCALED_BITS = 32


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The accumulators of query rows ``[...]`` after their last token."""

    exact: NDArray[np.int64]  # [..., head_dim] scaled weight x INT8 code
    delta: NDArray[np.int64]  # [..., head_dim] scaled weight x delta code 0..3
    scaled: NDArray[np.int64]  # [...] scaled weights of the delta tokens
    rest: NDArray[np.int64]  # [...] weights of the delta tokens
    total: NDArray[np.int64]  # [...] weights of all tokens


def scale_weights(weights: NDArray[np.integer], scale: NDArray[np.uint8]) -> NDArray[np.int64]:
    """``half_up(weight * scale)`` for weights and scale codes of one shape, saturated to SCALED_BITS."""
    significand, exponent = split_scale(scale)
    scaled = half_up(weights.astype(np.int64) * significand, SCALE_BIAS - exponent)
    return np.minimum(scaled, (1 << SCALED_BITS) - 1)


def accumulate(
    weights: NDArray[np.int32],
    maximum: NDArray[np.int32],
    is_delta: NDArray[np.bool_],
    scale: NDArray[np.uint8],
    codes: NDArray[np.int8],
) -> Sums:
    """The sums over rows ``weights, maximum[rows, T]`` (`softmax_streaming`) of tokens with V ``scale[T], codes[T,
    head_dim]``: INT8 codes, or delta codes 0..3 where ``is_delta[T]``.

    Whenever a row's maximum rises by d, all its sums so far are shifted right by d (floor).
    """
    rows, dim = len(weights), codes.shape[1]
    owner, column = np.nonzero(weights)
    w, top, delta = weights[owner, column], maximum[owner, column], is_delta[column]
    scaled = scale_weights(w, scale[column])
    # What a token adds to the scalars: its scaled weight and its weight if it is a delta, its weight.
    adds = np.stack([np.where(delta, scaled, 0), np.where(delta, w, 0), w], axis=1)
    values = codes.astype(np.float64)  # sums of products are exact below 2**53
    vectors, scalars = np.zeros((2, rows, dim), np.int64), np.zeros((3, rows), np.int64)
    ends = np.searchsorted(owner, np.arange(rows + 1))
    for row, (begin, end) in enumerate(pairwise(ends)):
        rises = begin + 1 + np.flatnonzero(np.diff(top[begin:end]))
        for start, stop in zip([begin, *rises], [*rises, end], strict=True):
            drop = min(int(top[start] - top[start - 1]), 63) if start > begin else 0
            part = slice(start, stop)
            terms = np.where(delta[part], [[False], [True]], [[True], [False]]) * scaled[part].astype(np.float64)
            vectors[:, row] = (vectors[:, row] >> drop) + (terms @ values[column[part]]).astype(np.int64)
            scalars[:, row] = (scalars[:, row] >> drop) + adds[part].sum(axis=0)
    return Sums(exact=vectors[0], delta=vectors[1], scaled=scalars[0], rest=scalars[1], total=scalars[2])


def finish_output(sums: Sums, v_shape: NDArray[np.int64], v_mean: NDArray[np.int64]) -> NDArray[np.int16]:
    """Attention output rows ``[..., head_dim]`` from the sums, INT16 in the units of the V rows.

    A delta code c stands for the odd level 2 c - 3, half of it in steps of the group's scale times ``v_shape``, around
    ``v_mean``. The division by the total is a multiplication by `inverse`, the numerator cut so that the total would
    have NORMAL_BITS bits (floor). A total of zero gives zeros.
    """
    odd = 2 * sums.delta - 3 * sums.scaled[..., None]
    spread = half_up(odd * v_shape, SHAPE_FRACTION_BITS + 1)
    numerator = sums.exact + spread + sums.rest[..., None] * v_mean
    factor, length = inverse(sums.total)
    cut = np.maximum(length - NORMAL_BITS, 0)[..., None]
    limit = 1 << (NORMAL_BITS + 20)
    quotient = half_up(
        np.clip(numerator >> cut, -limit, limit - 1) * factor[..., None], length[..., None] - 1 + INVERSE_BITS - cut
    )
    return saturate(quotient, 16).astype(np.int16)
