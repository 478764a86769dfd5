"""Query rows to INT8 codes, in the two forms that meet K rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.dsq.rotation import rotate
from golden.dsq.row_quantizer import quantize_rows
from golden.fixed import half_up, saturate

__all__ = ["Query", "prepare_query"]


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
