"""From sums of the array to output rows: scale, bias, rotary embedding, SiLU times a second output, residual."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from golden.fixed import half_up, saturate
from golden.gemm.prologue import FACTOR_FRACTION_BITS

__all__ = [
    "GATE_BITS",
    "GATE_FRACTION_BITS",
    "ROTARY_BITS",
    "ROTARY_FRACTION_BITS",
    "SIGMOID",
    "Columns",
    "Function",
    "finish_beats",
    "rotate_pairs",
    "scale_sums",
    "sigmoid",
    "swiglu_pairs",
]

#: width of what is rotated, fraction bits of the cosines and sines
ROTARY_BITS = 18
ROTARY_FRACTION_BITS = 14
#: width of both inputs of SiLU and multiply; fraction bits of the gate, which is one of them
GATE_BITS = 24
GATE_FRACTION_BITS = 12
_STEP_BITS = 8


class Function(IntEnum):
    """What becomes of two neighbouring columns."""

    LINEAR = 0
    ROTARY = 1
    SWIGLU = 2


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What each of N columns is multiplied by, ``scale * 2**-shift``, and the ``bias`` that is added then; all ``[N]``.

    scale is 0 or from 2**15 to 2**16 - 1, shift from -64 to 63, bias has 32 bits and the unit of the output. Where rows
    have parameters of their own, all are ``[M, N]``.
    """

    scale: NDArray[np.int64]
    shift: NDArray[np.int64]
    bias: NDArray[np.int64]


def sigmoid_table() -> NDArray[np.int64]:
    """``half_up(2**16 / (1 + exp(-i / 16)))`` for i = 0..256."""
    return np.floor(65536 / (1 + np.exp(-np.arange(257) / 16)) + 0.5).astype(np.int64)


SIGMOID = sigmoid_table()


def scale_sums(
    sums: NDArray[np.int64], factor: NDArray[np.int64], exponent: NDArray[np.int64], columns: Columns
) -> NDArray[np.int64]:
    """Sums ``[M, N]`` times the rows' factors ``[M]`` and the columns' scales, plus bias: 32 bits, saturated twice.

    First ``half_up(sum * factor, 15)``, then that times the scale, ``half_up`` by ``shift - exponent``, of which 0 and
    63 are the limits.
    """
    scaled = half_up(sums * factor[:, None], FACTOR_FRACTION_BITS)
    right = np.clip(columns.shift - exponent[:, None], 0, 63)
    return saturate(saturate(half_up(scaled * columns.scale, right), 32) + columns.bias, 32)


def rotate_pairs(y: NDArray[np.int64], cos: NDArray[np.int64], sin: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs ``y[..., P, 2]``, saturated to 18 bits, turned by angles with ``cos, sin[..., P]`` of 14 fraction bits.

    ``half_up`` of each sum of two products; the results have 19 bits where ``cos, sin`` are those of an angle, at most
    21 elsewhere.
    """
    first, second = saturate(y[..., 0], ROTARY_BITS), saturate(y[..., 1], ROTARY_BITS)
    turned = np.stack([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return half_up(turned, ROTARY_FRACTION_BITS)


def sigmoid(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """``2**16 / (1 + exp(-x))`` of ``x`` with 12 fraction bits: a table with steps of 1/16, between them straight.

    From 16 on it is 2**16, down from -16 it is 0. Off by less than 4 units of 2**-16.
    """
    size = np.minimum(np.abs(x), (256 << _STEP_BITS) - 1)
    index, rest = size >> _STEP_BITS, size & ((1 << _STEP_BITS) - 1)
    upper = SIGMOID[index] + half_up((SIGMOID[index + 1] - SIGMOID[index]) * rest, _STEP_BITS)
    upper = np.where(np.abs(x) >> _STEP_BITS >= 256, 1 << 16, upper)
    return np.where(x < 0, (1 << 16) - upper, upper)


def swiglu_pairs(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """``gate * sigmoid(gate) * up`` of pairs ``y[..., P, 2]`` of (gate, up), in the unit of up: 32 bits, saturated.

    Both are saturated to 24 bits first; SiLU is rounded half up to the gate's 12 fraction bits, then the product.
    """
    gate, up = saturate(y[..., 0], GATE_BITS), saturate(y[..., 1], GATE_BITS)
    silu = half_up(gate * sigmoid(gate), 16)
    return saturate(half_up(silu * up, GATE_FRACTION_BITS), 32)


def finish_beats(
    sums: NDArray[np.int64],
    factor: NDArray[np.int64],
    exponent: NDArray[np.int64],
    columns: Columns,
    cos: NDArray[np.int64],
    sin: NDArray[np.int64],
    function: NDArray[np.int64],
    residual: NDArray[np.int64],
    narrow: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Beats of sums ``[B, 2P]``, each with its own parameters, to elements ``[B, 2P]`` of 32 bits, or 16 if ``narrow``.

    cos, sin: ``[B, P]``, for `Function.ROTARY`. residual: ``[B, 2P]``, zero where there is none. With `Function.SWIGLU`
    the P results come first, then zeros.
    """
    y = scale_sums(sums, factor, exponent, columns)
    pairs = y.reshape(*cos.shape, 2)
    turned = rotate_pairs(pairs, cos, sin).reshape(y.shape)
    products = swiglu_pairs(pairs)
    halves = np.concatenate([products, np.zeros_like(products)], axis=1)
    is_rotary, is_swiglu = (function[:, None] == kind for kind in (Function.ROTARY, Function.SWIGLU))
    out = np.where(is_rotary, turned, np.where(is_swiglu, halves, y)) + residual
    return np.where(narrow[:, None], saturate(out, 16), saturate(out, 32))
