"""Commands of the GEMM cores in unbounded numbers, near float, and which of them are refused."""

from dataclasses import replace
from fractions import Fraction
from math import floor, isqrt

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from golden.gemm.core import ROTARY_TILES, ROW_TILES, Command, Fault, Limits, command_fault, output_columns, project
from golden.gemm.epilogue import SIGMOID, Columns, Function
from golden.gemm.prologue import Norm

ACT_BITS = 12
HEAD_DIM = 4
LIMITS = Limits(rows=8, max_k=600, act_words=1200, weight_words=512, row_lanes=8, head_dim=64)


def half_up(x: Fraction) -> int:
    return floor(x + Fraction(1, 2))


def limited(x: int, bits: int) -> int:
    return min(max(x, -(1 << bits - 1)), (1 << bits - 1) - 1)


def exact_row(x: list[int], weights: list[list[int]], columns: Columns, command: Command) -> list[int]:
    """Scaled sums of one row, one number after the other."""
    shift = max(max((v if v >= 0 else ~v).bit_length() for v in x) + 1 - ACT_BITS, 0)
    codes = [limited(half_up(Fraction(v, 1 << shift)), ACT_BITS) for v in x]
    factor, exponent = 1 << 15, shift
    if command.norm:
        power = len(x) * sum(v * v for v in codes) + (command.epsilon >> 2 * shift)
        power = max(power - (sum(codes) ** 2 if command.norm is Norm.LAYER else 0), 1)
        half = (power.bit_length() - 31) // 2
        root = isqrt(power >> 2 * half if half >= 0 else power << -2 * half)
        factor, exponent = min((1 << 31) // root, (1 << 16) - 1), -16 - half
    out = []
    for row, scale, right, bias in zip(weights, columns.scale, columns.shift, columns.bias, strict=True):
        total = sum(a * b for a, b in zip(codes, row, strict=True))
        first = half_up(Fraction(total * factor, 1 << 15))
        second = half_up(Fraction(first * int(scale), 1 << min(max(int(right) - exponent, 0), 63)))
        out.append(limited(limited(second, 32) + int(bias), 32))
    return out


def exact_silu(gate: int) -> int:
    size = abs(gate)
    index, rest = size >> 8, size & 255
    upper = 1 << 16
    if index < 256:
        step = int(SIGMOID[index + 1] - SIGMOID[index])
        upper = int(SIGMOID[index]) + half_up(Fraction(step * rest, 256))
    return half_up(Fraction(gate * (upper if gate >= 0 else (1 << 16) - upper), 1 << 16))


def exact(x, weights, columns, command, rotary, residual) -> list[list[int]]:
    """`project` by its definition, with places of pairs counted from scratch."""
    rows = []
    for m, row in enumerate(x.tolist()):
        y = exact_row(row, weights.tolist(), columns, command)
        if command.function is Function.SWIGLU:
            pairs = [(limited(y[i], 24), limited(y[i + 1], 24)) for i in range(0, len(y), 2)]
            y = [limited(half_up(Fraction(exact_silu(gate) * up, 1 << 12)), 32) for gate, up in pairs]
        elif command.function is Function.ROTARY:
            made = list(y)
            for first in range(0, command.rotary_columns, 2):
                head, pair = first // HEAD_DIM * HEAD_DIM, first % HEAD_DIM // 2
                cos, sin = (int(table[m, pair]) for table in rotary)
                a, b = (limited(v, 18) for v in y[first : first + 2])
                places = (head + pair, head + pair + HEAD_DIM // 2) if command.half_pairs else (first, first + 1)
                made[places[0]] = half_up(Fraction(a * cos - b * sin, 1 << 14))
                made[places[1]] = half_up(Fraction(a * sin + b * cos, 1 << 14))
            y = made
        added = [0] * len(y) if residual is None else residual[m].tolist()
        rows.append([limited(a + b, 16 if command.narrow else 32) for a, b in zip(y, added, strict=True)])
    return rows


@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize(("option", "narrow"), [(False, True), (True, False)])
def test_matches_unbounded_numbers(function, norm, option, narrow):
    draw = generator("project", function, norm, option)
    m, k, n = 4, 11, 14
    x = (draw.integers(-(1 << 31), 1 << 31, (m, k)) >> draw.integers(0, 32, (m, 1))).astype(np.int32)
    x[0] = 0
    weights = draw.integers(-127, 128, (n, k)).astype(np.int8)
    columns = Columns(
        scale=draw.integers(1 << 15, 1 << 16, n),
        shift=draw.integers(8, 40, n) - 16 * bool(norm),
        bias=draw.integers(-(1 << 20), 1 << 20, n),
    )
    turns = function is Function.ROTARY
    command = Command(
        norm=norm,
        epsilon=1 << 30,
        function=function,
        rotary_columns=3 * HEAD_DIM,
        head_dim=HEAD_DIM,
        half_pairs=option,
        narrow=narrow,
    )
    rotary = tuple(draw.integers(-(1 << 14), (1 << 14) + 1, (2, m, HEAD_DIM // 2))) if turns else None
    outputs = n // 2 if function is Function.SWIGLU else n
    residual = draw.integers(-(1 << 31), 1 << 31, (m, outputs)) if option and not turns else None
    got, magnitudes = project(x, weights, columns, command, act_bits=ACT_BITS, rotary=rotary, residual=residual)
    expected = exact(x, weights, columns, command, rotary, residual)
    assert got.tolist() == expected
    assert magnitudes.tolist() == [max((v if v >= 0 else ~v).bit_length() for v in row) for row in expected]


def test_halves_of_heads_come_together():
    command = Command(function=Function.ROTARY, rotary_columns=8, head_dim=4, half_pairs=True)
    assert output_columns(10, command).tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 9]
    assert output_columns(10, replace(command, half_pairs=False)).tolist() == list(range(10))
    assert output_columns(10, Command(function=Function.SWIGLU)).tolist() == list(range(5))


def fault(**fields: int) -> Fault:
    taken = {
        "rows": 8,
        "k": 576,
        "columns": 960,
        "function": int(Function.LINEAR),
        "norm": int(Norm.RMS),
        "rotary_columns": 768,
        "add_residual": 0,
    }
    given = {**taken, **fields}
    return command_fault(**{**given, "add_residual": bool(given["add_residual"])}, limits=LIMITS)


ROTARY, SWIGLU = {"function": int(Function.ROTARY)}, {"function": int(Function.SWIGLU)}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Fault.NONE),
        ({"rows": 0}, Fault.ROWS),
        ({"rows": 8 * ROW_TILES, "k": 32}, Fault.NONE),
        ({"rows": 8 * ROW_TILES + 1, "k": 8}, Fault.ROWS),
        ({"k": 0}, Fault.K),
        ({"k": 600}, Fault.NONE),
        ({"k": 601}, Fault.K),
        ({"columns": 0}, Fault.COLUMNS),
        ({**SWIGLU, "columns": 7}, Fault.COLUMNS),
        ({"columns": 7}, Fault.NONE),
        ({"function": 3}, Fault.FUNCTION),
        ({"norm": 3}, Fault.FUNCTION),
        ({**ROTARY, "add_residual": 1}, Fault.FUNCTION),
        ({**SWIGLU, "add_residual": 1}, Fault.NONE),
        (ROTARY, Fault.NONE),
        ({**ROTARY, "rotary_columns": 0}, Fault.NONE),
        ({**ROTARY, "rotary_columns": 960}, Fault.NONE),
        ({**ROTARY, "rotary_columns": 800}, Fault.ROTARY),
        ({**ROTARY, "rotary_columns": 1024}, Fault.ROTARY),
        ({**ROTARY, "rows": 8 * ROTARY_TILES, "k": 128}, Fault.NONE),
        ({**ROTARY, "rows": 8 * ROTARY_TILES + 1, "k": 128}, Fault.ROTARY),
        ({"rows": 16, "k": 512}, Fault.NONE),
        ({"rows": 16, "k": 513}, Fault.WEIGHTS),
        ({"rows": 24, "k": 400}, Fault.NONE),
        ({"rows": 24, "k": 401}, Fault.ACTIVATIONS),
        ({"rows": 25, "k": 400}, Fault.ACTIVATIONS),
        ({"rows": 0, "k": 0, "columns": 0}, Fault.ROWS),
    ],
)
def test_refuses_what_has_no_room_or_no_meaning(fields, expected):
    assert fault(**fields) is expected
