"""Fixed-point helpers shared by every golden function: named rounding and saturation."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["half_up", "saturate"]


def half_up(value: ArrayLike, shift: ArrayLike) -> NDArray[np.int64]:
    """``floor(value / 2**shift + 1/2)``; a shift of zero or less multiplies by ``2**-shift``.

    ``value`` and ``shift`` are integers of any broadcastable shape; the magnitude of every result and of ``value`` must
    stay below ``2**62``.
    """
    v, s = np.broadcast_arrays(np.asarray(value, np.int64), np.asarray(shift, np.int64))
    right = np.clip(s, 0, 63)
    half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right - 1, 0)), 0)
    return np.left_shift(np.right_shift(v + half, right), np.maximum(-s, 0))


def saturate(value: ArrayLike, bits: int) -> NDArray[np.int64]:
    """Clamp to the range of a signed integer of ``bits`` bits."""
    return np.clip(np.asarray(value, np.int64), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
