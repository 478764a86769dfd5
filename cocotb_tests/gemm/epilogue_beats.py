"""Beats of sums for the Epilogue: corners, random ones, those of a real model."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.gemm.projections import RealProjection
from golden.gemm.array import multiply
from golden.gemm.epilogue import ROTARY_FRACTION_BITS, Columns, Function, finish_beats
from golden.gemm.prologue import prepare_rows
from golden.model import load_model

__all__ = ["Beats", "corner_functions", "corner_residuals", "corner_scales", "random_beats", "real_beats"]

Array = NDArray[np.int64]
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
ONE = 1 << ROTARY_FRACTION_BITS


@dataclass(frozen=True, kw_only=True)
class Beats:
    """B beats of P pairs: all but the last three are golden's arguments, ``[B]``, ``[B, P]`` or ``[B, 2P]``.

    Those that are not given are 0, but factor and scale, which are one, and shift, which is right for that.
    """

    sums: Array
    factor: Array
    exponent: Array
    scale: Array
    shift: Array
    bias: Array
    cos: Array
    sin: Array
    function: Array
    narrow: Array
    residual: Array
    add_residual: Array
    tag: Array

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def out(self) -> Array:
        """What golden makes of them."""
        return finish_beats(
            self.sums,
            self.factor,
            self.exponent,
            Columns(scale=self.scale, shift=self.shift, bias=self.bias),
            self.cos,
            self.sin,
            self.function,
            np.where(self.add_residual[:, None], self.residual, 0),
            self.narrow.astype(bool),
        )

    @staticmethod
    def concatenate(parts: "Sequence[Beats]") -> "Beats":
        """All beats of all parts."""
        return Beats(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Beats)})


def beats(draw: np.random.Generator, count: int, pairs: int, **given: Array | int) -> Beats:
    """So many beats; what is given is broadcast."""
    one = {"factor": 1 << 15, "scale": 1 << 15, "shift": 15}
    shapes = dict.fromkeys(("sums", "scale", "shift", "bias", "residual"), (count, 2 * pairs))
    shapes |= dict.fromkeys(("cos", "sin"), (count, pairs))
    values = {
        f.name: np.broadcast_to(np.int64(0) + given.get(f.name, one.get(f.name, 0)), shapes.get(f.name, (count,)))
        for f in fields(Beats)
    }
    return Beats(**{**values, "tag": draw.integers(0, 1 << 32, count)})


def spread(values: Sequence[int], pairs: int, lanes: int) -> Array:
    """Each value in each lane at some time, others beside it: ``[B, lanes of all pairs]``, B as there are values."""
    return np.array([np.roll(values, 3 * n) for n in range(pairs * lanes)]).T


def corner_scales(draw: np.random.Generator, pairs: int, acc_bits: int) -> Beats:
    """Every distance of the shift and beyond, ends of all factors, ties, bias that saturates."""
    top = 1 << acc_bits - 1
    sums = [-top, top - 1, -top + 1, 0, 1, -1, 3, -3, top // 3, -top // 5]
    made = []
    for right in (*range(-3, 68), -127, -64, 126, 127):
        low, high = max(-64, -64 - right), min(63, 63 - right)
        exponent = int(draw.integers(low, high + 1))
        own = beats(
            draw,
            len(sums),
            pairs,
            sums=spread(sums, pairs, 2),
            factor=draw.choice([1 << 15, 65535, 49152, 0, 1], len(sums), p=[0.4, 0.3, 0.2, 0.05, 0.05]),
            exponent=exponent,
            scale=draw.choice([1 << 15, 65535, 40000, 0, 1], (len(sums), 2 * pairs), p=[0.5, 0.3, 0.1, 0.05, 0.05]),
            shift=right + exponent,
            bias=draw.choice([0, 0, 1, -1, LOWEST, HIGHEST], (len(sums), 2 * pairs)),
        )
        made.append(own)
    return Beats.concatenate(made)


def corner_functions(draw: np.random.Generator, pairs: int) -> Beats:
    """Pairs made of biases: each step of the sigmoid, limits of all factors, odd angles, no function."""
    steps = [draw.choice([1, -1]) * ((n << 8) + off) for n in range(258) for off in (-1, 0, 128)]
    ends = [sign * (1 << bits) + off for bits in (17, 23, 24) for off in (-1, 0, 1) for sign in (1, -1)]
    gates = [*steps, *ends, LOWEST, HIGHEST]
    ups = [1, -1, 2048, -2048, 4096, -4096, 5000, *ends, LOWEST, HIGHEST]
    bias = np.empty((len(gates), 2 * pairs), np.int64)
    bias[:, 0::2] = spread(gates, pairs, 1)
    bias[:, 1::2] = draw.choice(ups, (len(gates), pairs))
    made = [beats(draw, len(gates), pairs, bias=bias, function=Function.SWIGLU)]
    angles = [0, 1, -1, ONE, -ONE, ONE // 2, 11585, 32767, -32768]
    values = [0, 1, -1, 8192, -8192, 8191, *ends, LOWEST, HIGHEST]
    for function in (Function.ROTARY, Function.LINEAR, 3):
        given = {
            "bias": draw.choice(values, (200, 2 * pairs)),
            "cos": draw.choice(angles, (200, pairs)),
            "sin": draw.choice(angles, (200, pairs)),
        }
        made.append(beats(draw, 200, pairs, function=int(function), **given))
    return Beats.concatenate(made)


def corner_residuals(draw: np.random.Generator, pairs: int) -> Beats:
    """Elements and residuals around the ends of 16 and 32 bits, of all functions; residuals that are not wanted."""
    near = [sign * (1 << bits) + off for bits in (15, 16, 31) for off in (-2, -1, 0, 1) for sign in (1, -1)]
    values = np.clip([0, 1, -1, *near], LOWEST, HIGHEST)
    return beats(
        draw,
        400,
        pairs,
        bias=draw.choice(values, (400, 2 * pairs)),
        cos=ONE,
        function=draw.choice([0, 0, 0, 1, 2], 400),
        narrow=draw.integers(0, 2, 400),
        residual=draw.choice(values, (400, 2 * pairs)),
        add_residual=draw.choice([0, 1, 1], 400),
    )


def random_beats(draw: np.random.Generator, count: int, pairs: int, acc_bits: int) -> Beats:
    """Sums of all lengths, scaled to outputs from below one to beyond saturation; one in eight beats is just any."""
    columns = (count, 2 * pairs)

    def signed(bits: Array) -> Array:
        return draw.integers(-(1 << bits), 1 << bits)

    length = draw.integers(0, acc_bits, (count, 1))
    exponent = draw.integers(-20, 21, count)
    right = np.maximum(length + 17 - draw.integers(-2, 35, (count, 1)) + draw.integers(-1, 2, columns), 0)
    wild = draw.random(count) < 0.125
    return beats(
        draw,
        count,
        pairs,
        sums=signed(np.broadcast_to(length, columns)),
        factor=np.where(wild, draw.integers(0, 1 << 16, count), draw.integers(1 << 15, 1 << 16, count)),
        exponent=np.where(wild, draw.integers(-64, 64, count), exponent),
        scale=np.where(wild[:, None], draw.integers(0, 1 << 16, columns), draw.integers(1 << 15, 1 << 16, columns)),
        shift=np.where(wild[:, None], draw.integers(-64, 64, columns), np.clip(right + exponent[:, None], -64, 63)),
        bias=signed(draw.integers(0, 32, columns)),
        cos=draw.integers(-ONE, ONE + 1, (count, pairs)),
        sin=draw.integers(-ONE, ONE + 1, (count, pairs)),
        function=draw.integers(0, 3, count),
        narrow=draw.integers(0, 2, count),
        residual=signed(draw.integers(0, 32, columns)),
        add_residual=draw.integers(0, 2, count),
    )


def real_beats(draw: np.random.Generator, real: RealProjection, pairs: int, act_bits: int, count: int) -> Beats:
    """Beats of a projection, drawn from all of its rows and columns."""
    own, command = real.projection, real.command
    rows = prepare_rows(real.x, act_bits=act_bits, norm=command.norm, epsilon=command.epsilon)
    row = draw.integers(0, len(real.x), count)
    first = 2 * pairs * draw.integers(0, len(own.weights) // (2 * pairs), count)
    column = first[:, None] + np.arange(2 * pairs)
    given = {name: getattr(own.columns, name)[column] for name in ("scale", "shift", "bias")}
    if command.function is Function.ROTARY:
        tables = load_model().rotary(np.arange(len(real.x)))
        pair = column[:, ::2] // 2 % (command.head_dim // 2)
        cos, sin = (np.floor(table[row[:, None], pair].astype(np.float64) * ONE + 0.5) for table in tables)
        given |= {"cos": cos.astype(np.int64), "sin": sin.astype(np.int64)}
    turned = first < command.rotary_columns if command.function is Function.ROTARY else True
    if real.residual is not None:
        given["residual"] = real.residual[row[:, None], column].astype(np.int64)
    return beats(
        draw,
        count,
        pairs,
        sums=multiply(rows.codes, own.weights)[row[:, None], column],
        factor=rows.factor[row],
        exponent=rows.exponent[row],
        function=np.where(turned, command.function, Function.LINEAR),
        narrow=int(command.narrow),
        add_residual=int(real.residual is not None),
        **given,
    )
