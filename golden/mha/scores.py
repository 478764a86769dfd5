"""Query preparation and attention scores in base-2 fixed point."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.dsq.rotation import rotate
from golden.dsq.row_quantizer import quantize_rows
from golden.dsq.scale import SCALE_BIAS, split_scale
from golden.fixed import half_up, saturate

__all__ = ["SCORE_BITS", "SCORE_FRACTION_BITS", "Query", "prepare_query", "scores"]

#: scores are signed base-2 exponents of SCORE_BITS bits with SCORE_FRACTION_BITS fraction bits
SCORE_BITS = 24
SCORE_FRACTION_BITS = 8


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query row in both forms: against INT8 K codes, and with the K shape folded in, against K delta levels."""

    codes: NDArray[np.int8]  # [..., head_dim]
    scale: NDArray[np.uint8]  # [...]
    shaped_codes: NDArray[np.int8]  # [..., head_dim]
    shaped_scale: NDArray[np.uint8]  # [...]


def prepare_query(rows: NDArray[np.int16], k_shape: NDArray[np.int64]) -> Query:
    """Rotate INT16 query rows ``[..., head_dim]`` (score constant folded in) and quantize both forms to INT8.

    The score constant is ``log2(e) / sqrt(head_dim)``. The shaped form is ``half_up(rotated * k_shape, 8)``, saturated
    to INT16 before it is quantized.
    """
    rotated = rotate(rows)
    codes, scale = quantize_rows(rotated)
    shaped = saturate(half_up(rotated.astype(np.int64) * k_shape, SHAPE_FRACTION_BITS), 16).astype(np.int16)
    shaped_codes, shaped_scale = quantize_rows(shaped)
    return Query(codes=codes, scale=scale, shaped_codes=shaped_codes, shaped_scale=shaped_scale)


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
