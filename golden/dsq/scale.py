"""The 8-bit scale code: 5-bit exponent, 3-bit mantissa.

A code ``c = exponent << 3 | mantissa`` stands for ``(8 + mantissa) * 2**(exponent - SCALE_BIAS)`` units of the row's
least significant bit. The value grows strictly with the code, so codes compare like the scales that they stand for.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_EXPONENT", "SCALE_BIAS", "ceil_scale", "divide_scale", "split_scale"]

SCALE_BIAS = 11
#: the largest exponent that a row of INT16 values can produce; a record with a larger one is faulty
MAX_EXPONENT = 16


def split_scale(code: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Significand ``8 + mantissa`` (8..15) and exponent (0..31) of a scale code."""
    c = np.asarray(code, np.int64)
    return 8 + (c & 7), c >> 3


_CODES = np.arange(256)
_CEIL_LIMITS = (127 * (8 + (_CODES & 7))) << (_CODES >> 3)


def ceil_scale(amax: ArrayLike) -> NDArray[np.uint8]:
    """The smallest scale code whose 127 steps reach ``amax`` (0..32768): 127 * scale >= amax. Zero gives code 0."""
    target = np.asarray(amax, np.int64) << SCALE_BIAS
    return np.searchsorted(_CEIL_LIMITS, target, side="left").astype(np.uint8)


def divide_scale(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.uint8]:
    """The scale code of ``numerator / denominator``, mantissa rounded half up.

    Both are positive integers (``numerator`` may be zero) below ``2**43``; the quotient is taken as
    ``floor(numerator * 2**SCALE_BIAS / denominator)``. Quotients under the smallest scale give code 0 (underflow),
    those above the largest give 255.
    """
    q = (np.asarray(numerator, np.int64) << SCALE_BIAS) // np.asarray(denominator, np.int64)
    length = np.frexp(q.astype(np.float64))[1]  # bit length; exact below 2**53
    exponent = np.maximum(length - 4, 0)
    half = np.where(exponent > 0, np.left_shift(np.int64(1), np.maximum(exponent - 1, 0)), 0)
    significand = (q + half) >> exponent
    carry = significand == 16
    exponent = exponent + carry
    significand = np.where(carry, 8, significand)
    code = np.where(q < 8, 0, (exponent << 3) + significand - 8)
    return np.minimum(code, 255).astype(np.uint8)
