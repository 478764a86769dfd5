"""INT16 rows to INT8 codes with one scale per token, and back."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden.dsq.rotation import rotate
from golden.dsq.scale import SCALE_BIAS, ceil_scale, split_scale
from golden.fixed import half_up, saturate

__all__ = ["RECIPROCAL", "RECIPROCAL_BITS", "quantize_rows", "quantize_token_rows", "reconstruct_rows"]

RECIPROCAL_BITS = 14
#: ``half_up(2**14 / significand)`` for the significands 8..15: the datapath multiplies instead of dividing
RECIPROCAL = np.array([((2 << RECIPROCAL_BITS) // s + 1) // 2 for s in range(8, 16)], np.int64)


def quantize_rows(rows: NDArray[np.int16]) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Quantize ``rows[..., head_dim]`` to ``codes[..., head_dim]`` in -127..127 and a ``scale[...]`` code.

    The scale is the smallest whose 127 steps reach the row's largest magnitude (nothing clips, apart from the
    reciprocal's rounding, which the clamp catches); a code is ``half_up(row * RECIPROCAL[mantissa], exponent + 3)``.
    An all-zero row has scale code 0 and codes 0.
    """
    x = rows.astype(np.int64)
    scale = ceil_scale(np.abs(x).max(axis=-1))
    significand, exponent = split_scale(scale)
    product = x * RECIPROCAL[significand - 8][..., None]
    codes = half_up(product, (exponent + RECIPROCAL_BITS - SCALE_BIAS)[..., None])
    return np.clip(codes, -127, 127).astype(np.int8), scale


def quantize_token_rows(
    k_rows: NDArray[np.int16], v_rows: NDArray[np.int16]
) -> tuple[NDArray[np.int8], NDArray[np.uint8], NDArray[np.int8], NDArray[np.uint8]]:
    """One token's way into the open group: K rotated, then K and V quantized to INT8.

    ``k_rows, v_rows[..., head_dim]`` are INT16; returns ``k_codes, k_scale, v_codes, v_scale``.
    """
    return (*quantize_rows(rotate(k_rows)), *quantize_rows(v_rows))


def reconstruct_rows(codes: ArrayLike, scale: ArrayLike) -> NDArray[np.int16]:
    """INT8 ``codes[..., head_dim]`` and ``scale[...]`` back to INT16 rows: ``half_up(code * scale)``, saturated."""
    significand, exponent = split_scale(scale)
    product = np.asarray(codes, np.int64) * significand[..., None]
    return saturate(half_up(product, (SCALE_BIAS - exponent)[..., None]), 16).astype(np.int16)
