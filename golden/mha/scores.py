"""Attention scores in base-2 fixed point."""

import numpy as np
from numpy.typing import NDArray

from golden.dsq.scale import SCALE_BIAS, split_scale

__all__ = ["SCORE_BITS", "SCORE_FRACTION_BITS", "scores"]

#: scores are signed base-2 exponents of SCORE_BITS bits with SCORE_FRACTION_BITS fraction bits
SCORE_BITS = 24
SCORE_FRACTION_BITS = 8


def _weights(scale: NDArray[np.uint8]) -> NDArray[np.float64]:
    significand, exponent = split_scale(scale)
    return np.ldexp(significand.astype(np.float64), exponent - SCALE_BIAS)


def scores(
    q_codes: NDArray[np.int8],
    q_scale: NDArray[np.uint8],
    k_codes: NDArray[np.int8],
    k_scale: NDArray[np.uint8],
    *,
    shift: int,
) -> NDArray[np.int32]:
    """``half_up(q.k * q_scale * k_scale, shift)``, saturated to ``SCORE_BITS``.

    ``q_codes[..., Q, head_dim]``, ``q_scale[..., Q]``, ``k_codes[..., T, head_dim]``, ``k_scale[..., T]`` give
    ``[..., Q, T]``. Exact: the dot product of two INT8 rows of up to 1024 channels stays below 2**24, times two
    significands below 2**32, and a power of two.
    """
    dot = np.matmul(q_codes.astype(np.float32), np.swapaxes(k_codes.astype(np.float32), -1, -2))
    weighted = dot.astype(np.float64)
    weighted *= np.ldexp(_weights(q_scale), -shift)[..., :, None]
    weighted *= _weights(k_scale)[..., None, :]
    weighted += 0.5
    np.floor(weighted, out=weighted)
    limit = 1 << (SCORE_BITS - 1)
    return np.clip(weighted, -limit, limit - 1, out=weighted).astype(np.int32)
