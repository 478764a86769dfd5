"""Hadamard rotation of K and q rows: additions only, dot products keep."""

import numpy as np
from numpy.typing import NDArray

from golden.fixed import half_up, saturate

__all__ = ["rotate", "rotation_block", "rotation_shift"]


def rotation_block(head_dim: int) -> int:
    """The largest power of two that divides ``head_dim``: each such block of channels is rotated on its own."""
    return head_dim & -head_dim


def rotation_shift(head_dim: int) -> int:
    """Right shift after the butterflies: ``ceil(log2(block) / 2)``, so that a rotated row never grows in norm."""
    return rotation_block(head_dim).bit_length() // 2


def rotate(rows: NDArray[np.int16]) -> NDArray[np.int16]:
    """Rotate ``rows[..., head_dim]`` (INT16) in power-of-two blocks.

    The transform is the Hadamard matrix in natural (Sylvester) order without normalization, then a right shift by
    ``rotation_shift`` with ``half_up`` and saturation to INT16. Two rotated rows have the dot product of the originals
    times ``block / 4**rotation_shift`` (1 for an even ``log2(block)``, 1/2 for an odd one), apart from rounding.
    """
    head_dim = rows.shape[-1]
    block = rotation_block(head_dim)
    x = rows.astype(np.int64).reshape(*rows.shape[:-1], head_dim // block, block)
    half = 1
    while half < block:
        pair = x.reshape(*x.shape[:-1], block // (2 * half), 2, half)
        a, b = pair[..., 0, :], pair[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        half *= 2
    return saturate(half_up(x, rotation_shift(head_dim)), 16).astype(np.int16).reshape(rows.shape)
