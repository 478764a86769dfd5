"""Activation rows on their way into the array: codes with one shift per row, and the factor that normalizes the row."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from golden.fixed import half_up, saturate

__all__ = ["EPSILON_BITS", "FACTOR_FRACTION_BITS", "Norm", "Rows", "inverse_root", "magnitude", "prepare_rows"]

#: a row's factor has 16 bits, of which so many are fraction bits: 2**15 stands for one
FACTOR_FRACTION_BITS = 15
#: bits of the constant that keeps norms of tiny rows finite
EPSILON_BITS = 48


class Norm(IntEnum):
    """What rows are divided by: nothing, their root mean square, or (mean taken off) their standard deviation."""

    NONE = 0
    RMS = 1
    LAYER = 2


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``codes[M, K]`` of ``act_bits`` bits; a product with them times ``factor[M] / 2**15 * 2**exponent[M]`` is meant.

    ``factor`` is from 2**15 to 2**16 - 1.
    """

    codes: NDArray[np.int16]
    factor: NDArray[np.int64]
    exponent: NDArray[np.int64]


def magnitude(x: NDArray[np.integer]) -> NDArray[np.int64]:
    """Bits without sign that the widest element of each row ``x[..., K]`` of 32-bit integers takes: 0 to 31."""
    widest = np.where(x < 0, ~x, x).max(axis=-1).astype(np.float64)
    return np.frexp(widest)[1].astype(np.int64)


def inverse_root(power: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``1 / sqrt(power)`` as ``factor / 2**15 * 2**exponent``, 0 counting as 1; ``power`` is below 2**63.

    ``power`` is shifted by an even number to 31 or 32 bits (floor), then ``factor = floor(2**31 / floor(sqrt(.)))``, at
    most 2**16 - 1. The factor is less than 2**-14 too large or too small, relatively.
    """
    p = np.maximum(np.asarray(power, np.int64), 1)
    length = np.array([int(v).bit_length() for v in p.ravel()], np.int64).reshape(p.shape)
    half = (length - 31) // 2
    normal = np.where(half >= 0, p >> np.maximum(2 * half, 0), p << np.maximum(-2 * half, 0))
    root = np.sqrt(normal.astype(np.float64)).astype(np.int64)
    return np.minimum((1 << 31) // root, (1 << 16) - 1), -16 - half


def prepare_rows(x: NDArray[np.integer], *, act_bits: int, norm: Norm, epsilon: int) -> Rows:
    """Rows ``x[M, K]`` of 32-bit integers to codes of ``act_bits`` bits, with what the epilogue multiplies by.

    A row is shifted right (half up, saturating) as far as its magnitude demands. Without norm the factor is one and
    the exponent that shift. With norm the factor is ``1 / sqrt(power)`` where power is ``K * sum(codes**2)``, with
    `Norm.LAYER` less ``sum(codes)**2``, plus ``epsilon`` shifted right (floor) by twice the row's shift. So a
    normalized row is ``codes * K / sqrt(power)``; the K belongs to the columns' scales. The mean is not taken off the
    codes: weights that `Norm.LAYER` is used with sum to zero in every row.
    """
    shift = np.maximum(magnitude(x) + 1 - act_bits, 0)
    codes = saturate(half_up(x, shift[:, None]), act_bits)
    if norm is Norm.NONE:
        return Rows(codes=codes.astype(np.int16), factor=np.full(len(x), 1 << FACTOR_FRACTION_BITS), exponent=shift)
    power = x.shape[1] * (codes**2).sum(axis=1) + (epsilon >> np.minimum(2 * shift, 63))
    if norm is Norm.LAYER:
        power -= codes.sum(axis=1) ** 2
    factor, exponent = inverse_root(power)
    return Rows(codes=codes.astype(np.int16), factor=factor, exponent=exponent)
