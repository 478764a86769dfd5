"""Epilogue of the GEMM cores against float and exact fractions; weights as they are prepared for it."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from golden.gemm.array import multiply
from golden.gemm.core import Command, output_columns, project
from golden.gemm.epilogue import (
    SIGMOID,
    Columns,
    Function,
    finish_beats,
    rotate_pairs,
    scale_sums,
    sigmoid,
    swiglu_pairs,
)
from golden.gemm.prologue import Norm, prepare_rows
from golden.gemm.weights import encode_scale, epsilon_code, fold_norm, pair_halves, quantize_projection

ONE = 1 << 14


def columns_of(scale, shift, bias=0) -> Columns:
    scale, shift, bias = np.broadcast_arrays(*(np.atleast_1d(np.int64(v)) for v in (scale, shift, bias)))
    return Columns(scale=scale, shift=shift, bias=bias)


def scaled(total: int, factor: int, exponent: int, scale: int, shift: int, bias: int) -> int:
    """One column's output, in unbounded numbers."""
    half = Fraction(1, 2)
    first = floor(Fraction(total * factor, 1 << 15) + half)
    second = floor(Fraction(first * scale, 1 << min(max(shift - exponent, 0), 63)) + half)
    limited = min(max(second, -(1 << 31)), (1 << 31) - 1)
    return min(max(limited + bias, -(1 << 31)), (1 << 31) - 1)


def test_scaled_sums_match_exact_fractions():
    draw = generator("scaled sums")
    for _ in range(300):
        total = int(draw.integers(-(1 << 38), 1 << 38)) >> int(draw.integers(0, 38))
        factor, scale = (int(draw.integers(1 << 15, 1 << 16)) for _ in range(2))
        exponent, shift = (int(draw.integers(-64, 64)) for _ in range(2))
        bias = int(draw.integers(-(1 << 31), 1 << 31)) >> int(draw.integers(0, 32))
        own = columns_of(scale, shift, bias)
        got = scale_sums(np.array([[total]]), np.array([factor]), np.array([exponent]), own)
        assert got.item() == scaled(total, factor, exponent, scale, shift, bias)


@pytest.mark.parametrize(
    ("total", "factor", "exponent", "scale", "shift", "bias", "out"),
    [
        (10, 1 << 15, 0, 1 << 15, 15, 0, 10),
        (10, 1 << 15, 2, 1 << 15, 15, -1, 39),
        (3, 1 << 15, 0, 1 << 15, 16, 0, 2),  # 1.5
        (-3, 1 << 15, 0, 1 << 15, 16, 0, -1),  # -1.5
        (1, 49152, 0, 1 << 15, 15, 0, 2),  # 1.5 before the scale
        (-1, 49152, 0, 1 << 15, 15, 0, -1),
        (5, 1 << 15, 0, 0, 0, 7, 7),
        (1 << 20, 1 << 15, 0, 1 << 15, 0, 0, (1 << 31) - 1),
        (-(1 << 20), 1 << 15, 0, 1 << 15, 0, 5, -(1 << 31) + 5),  # saturated before the bias is added
        (-1, 1 << 15, 0, 1 << 15, 15, -(1 << 31), -(1 << 31)),
        (1, 1 << 15, 0, 1 << 15, 15, (1 << 31) - 1, (1 << 31) - 1),
        (1 << 30, 1 << 15, -64, 65535, 63, 0, 0),  # 127 counts as 63
        (1, 1 << 15, 63, 1 << 15, -64, 0, 1 << 15),  # -127 counts as 0
    ],
)
def test_scaled_sums_by_hand(total, factor, exponent, scale, shift, bias, out):
    own = columns_of(scale, shift, bias)
    assert scale_sums(np.array([[total]]), np.array([factor]), np.array([exponent]), own).item() == out


def test_sigmoid_is_less_than_4_units_off_and_never_falls():
    x = np.arange(-70_000, 70_001)
    exact = 65536 / (1 + np.exp(-x / 4096))
    assert np.abs(sigmoid(x) - exact).max() < 4
    assert np.diff(sigmoid(x)).min() >= 0


def test_sigmoid_by_hand():
    x = np.array([0, 256, -256, 128, -128, 4096, 1 << 16, -(1 << 16), (1 << 23) - 1, -(1 << 23)])
    middle = 32768 + (33792 - 32768 + 1) // 2
    e = round(65536 / (1 + np.exp(-1)))
    assert SIGMOID[1] == 33792
    assert sigmoid(x).tolist() == [32768, 33792, 31744, middle, 65536 - middle, e, 65536, 0, 65536, 0]


def test_rotation_is_that_of_float_within_half_a_unit_and_the_angle():
    draw = generator("rotation")
    angle = draw.uniform(0, 2 * np.pi, 2000)
    cos, sin = (np.floor(f(angle) * ONE + 0.5).astype(np.int64) for f in (np.cos, np.sin))
    pairs = draw.integers(-(1 << 17), 1 << 17, (2000, 2))
    pairs[:4] = [[131071, 131071], [-131072, -131072], [131071, -131072], [-131072, 131071]]
    exact = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angle)
    off = rotate_pairs(pairs, cos, sin) - np.stack([exact.real, exact.imag], axis=-1)
    # Half a unit of the result, and half a unit of cosine and of sine for each element.
    bound = 0.5 + np.abs(pairs).sum(axis=1, keepdims=True) / (2 * ONE)
    assert (np.abs(off) <= bound).all()
    assert np.abs(rotate_pairs(pairs, cos, sin)).max() < 1 << 18


def test_rotation_by_hand():
    pairs = np.array([[3, 5], [3, 5], [1, 0], [-1, 0], [1 << 20, -(1 << 20)]])
    cos, sin = np.array([ONE, 0, ONE // 2, ONE // 2, ONE]), np.array([0, ONE, 0, 0, 0])
    expected = [[3, 5], [-5, 3], [1, 0], [0, 0], [131071, -131072]]
    assert rotate_pairs(pairs, cos, sin).tolist() == expected


def test_rotation_takes_any_cosine_and_sine():
    ends = np.array([-32768, 32767])
    first, second, cos, sin = (grid.ravel() for grid in np.meshgrid([-131072, 131071], [-131072, 131071], ends, ends))
    turned = rotate_pairs(np.stack([first, second], axis=-1), cos, sin)
    assert np.abs(turned).max() < 1 << 20


def test_swiglu_is_near_float():
    draw = generator("swiglu")
    gate = draw.integers(-(1 << 16), 1 << 16, 5000)
    up = draw.integers(-(1 << 20), 1 << 20, 5000)
    exact = gate / 4096 / (1 + np.exp(-gate / 4096)) * up
    # The sigmoid is less than 4 units of 2**-16 off, SiLU half a unit of 2**-12 more, the product half a unit.
    bound = 0.5 + (np.abs(gate) / 4096 * 4 / 65536 + 0.5 / 4096) * np.abs(up)
    assert (np.abs(swiglu_pairs(np.stack([gate, up], axis=-1)) - exact) <= bound).all()


@pytest.mark.parametrize(
    ("gate", "up", "out"),
    [
        (0, 1000, 0),
        (1 << 16, 1000, 16_000),
        (-(1 << 16), 1000, 0),
        (-(1 << 16) + 1, 4096, 0),
        (4096, 4096, 2994),  # 0.731 * 4096
        (-4096, 4096, -1102),  # -0.269 * 4096
        ((1 << 23) - 1, (1 << 23) - 1, (1 << 31) - 1),
        (1 << 31, 4096, (1 << 23) - 1),  # the gate saturates at 24 bits
        ((1 << 23) - 1, -(1 << 23), -(1 << 31)),
        (-(1 << 23), -(1 << 23), 0),
        (2, 2048, 1),  # SiLU is 1, the product half a unit, upwards
        (2, -2048, 0),
    ],
)
def test_swiglu_by_hand(gate, up, out):
    assert swiglu_pairs(np.array([gate, up])) == out


def test_beats_add_residuals_and_saturate_by_hand():
    rows = [
        # function, y, residual, narrow, out
        (Function.LINEAR, [40_000, -7], [1, 2], True, [32_767, -5]),
        (Function.LINEAR, [40_000, -40_000], [-10_000, 5_000], True, [30_000, -32_768]),
        (Function.LINEAR, [(1 << 31) - 1, -(1 << 31)], [1, -1], False, [(1 << 31) - 1, -(1 << 31)]),
        (Function.ROTARY, [30, 50], [1, 1], False, [-49, 31]),
        (Function.SWIGLU, [1 << 16, 1000], [5, 9], False, [16_005, 9]),
    ]
    function, y, residual, narrow, out = (np.array(part) for part in zip(*rows, strict=True))
    count = len(rows)
    own = Columns(scale=np.zeros((count, 2), np.int64), shift=np.zeros((count, 2), np.int64), bias=y)
    zeros, angle = np.zeros((count, 2), np.int64), np.zeros((count, 1), np.int64)
    got = finish_beats(zeros, np.full(count, 1 << 15), zeros[:, 0], own, angle, angle + ONE, function, residual, narrow)
    assert got.tolist() == out.tolist()


@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize("function", list(Function))
def test_beats_are_the_parts_of_a_projection(function, pairs):
    draw = generator("projection", function, pairs)
    m, k, n, head_dim = 3, 40, 24, 8
    turned = 16 if function is Function.ROTARY else 0
    command = Command(norm=Norm.RMS, function=function, rotary_columns=turned, head_dim=head_dim, narrow=True)
    x = draw.integers(-30_000, 30_000, (m, k))
    made = quantize_projection(draw.normal(size=(n, k)), unit=0.001, input_unit=k, bias=draw.normal(size=n))
    angle = draw.uniform(0, 6, (m, head_dim // 2))
    cos, sin = (np.floor(f(angle) * ONE).astype(np.int64) for f in (np.cos, np.sin))
    residual = draw.integers(-9000, 9000, (m, n // 2 if function is Function.SWIGLU else n))
    whole, _ = project(x, made.weights, made.columns, command, act_bits=12, rotary=(cos, sin), residual=residual)

    rows = prepare_rows(x, act_bits=12, norm=command.norm, epsilon=0)
    sums = multiply(rows.codes, made.weights)
    for first in range(0, n, 2 * pairs):
        span = slice(first, first + 2 * pairs)
        of = Function.LINEAR if function is Function.ROTARY and first >= turned else function
        place = first // 2 if of is Function.SWIGLU else first
        count = pairs if of is Function.SWIGLU else 2 * pairs
        added = np.zeros((m, 2 * pairs), np.int64)
        added[:, :count] = residual[:, place : place + count]
        angles = (first // 2 + np.arange(pairs)) % (head_dim // 2)
        own = Columns(**{name: getattr(made.columns, name)[span] for name in ("scale", "shift", "bias")})
        flags = np.full(m, of), added, np.full(m, True)
        got = finish_beats(sums[:, span], rows.factor, rows.exponent, own, cos[:, angles], sin[:, angles], *flags)
        np.testing.assert_array_equal(got[:, :count], whole[:, place : place + count])
        assert not got[:, count:].any()


def test_encoded_scales_are_normalized_and_at_most_2_to_the_minus_16_off():
    scale = np.exp2(generator("scales").uniform(-47, 78, 20_000))
    mantissa, shift = encode_scale(scale)
    assert mantissa.min() >= 1 << 15 and mantissa.max() < 1 << 16
    assert np.abs(mantissa * np.exp2(-shift.astype(float)) / scale - 1).max() <= 2.0**-16


def test_encoded_scales_by_hand():
    mantissa, shift = encode_scale(np.array([0.0, 1.0, 0.75, 3.0, 1 - 2.0**-18, 2.0**-48, 2.0**78]))
    assert mantissa.tolist() == [0, 32768, 49152, 49152, 32768, 32768, 32768]
    assert shift.tolist() == [0, 15, 16, 14, 15, 63, -63]


@pytest.mark.parametrize("scale", [2.0**-49, 2.0**80])
def test_rejects_scales_whose_shift_has_no_room(scale):
    with pytest.raises(ValueError, match=r"^scales must be from 2\*\*-48 to 2\*\*79, not "):
        encode_scale(np.array([1.0, scale]))


def test_epsilon_counts_in_squares_of_the_rows_units():
    assert epsilon_code(1e-5, 576, 12) == round(1e-5 * 576**2 * 4**12)
    assert epsilon_code(1.0, 1 << 16, 12) == (1 << 48) - 1
    # A row of zeros but for epsilon is divided by its root.
    epsilon = epsilon_code(0.25, 4, 0)
    rows = prepare_rows(np.zeros((1, 4), np.int64), act_bits=8, norm=Norm.RMS, epsilon=epsilon)
    assert (rows.factor / 2.0**15 * 2.0**rows.exponent).item() * 4 == pytest.approx(1 / np.sqrt(0.25), rel=2.0**-14)


def test_folded_norm_is_the_norm_before_the_projection():
    draw = generator("fold")
    weight, gain, offset, x = (draw.normal(size=s) for s in ((5, 16), 16, 16, (3, 16)))
    plain = x / np.sqrt((x**2).mean(axis=1, keepdims=True))
    folded, bias = fold_norm(weight, gain)
    np.testing.assert_allclose(plain @ folded.T + bias, (plain * gain) @ weight.T)
    centre = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centre**2).mean(axis=1, keepdims=True))
    folded, bias = fold_norm(weight, gain, offset, centered=True)
    np.testing.assert_allclose(x / deviation @ folded.T + bias, (centre / deviation * gain + offset) @ weight.T)


def test_centered_weights_sum_to_zero_and_cost_little():
    draw = generator("centered")
    weight = draw.normal(size=(40, 576)) * np.exp(draw.normal(size=(40, 1)))
    weight -= weight.mean(axis=1, keepdims=True)
    options = {"unit": 1.0, "input_unit": 1.0}
    plain, centered = (quantize_projection(weight, centered=flag, **options).weights for flag in (False, True))
    assert not centered.astype(int).sum(axis=1).any()
    assert np.abs(centered.astype(int)).max() <= 127
    moved = np.abs(centered.astype(int) - plain)
    assert moved.max() == 1
    assert (moved.sum(axis=1) == np.abs(plain.astype(int).sum(axis=1))).all(), "more codes are moved than must be"
    exact = weight / np.abs(weight).max(axis=1, keepdims=True) * 127
    error = [np.sqrt(((codes - exact) ** 2).mean()) for codes in (plain, centered)]
    assert error[1] < 1.01 * error[0]


def test_centering_moves_the_codes_that_cost_least():
    """Against all ways to move as many codes of a short row."""
    draw = generator("least")
    for _ in range(30):
        weight = draw.normal(size=(1, 7))
        weight -= weight.mean()
        exact = (weight / np.abs(weight).max() * 127)[0]
        plain = np.floor(exact + 0.5)
        got = quantize_projection(weight, unit=1.0, input_unit=1.0, centered=True).weights[0]
        ways = [np.array(way) for way in np.ndindex(*(3,) * 7)]
        codes = np.array([plain + way - 1 for way in ways])
        allowed = codes[(codes.sum(axis=1) == 0) & (np.abs(codes) <= 127).all(axis=1)]
        least = ((allowed - exact) ** 2).sum(axis=1).min()
        assert ((got - exact) ** 2).sum() == pytest.approx(least)


def test_rows_of_zeros_and_biases_beyond_32_bits():
    made = quantize_projection(np.zeros((3, 4)), unit=1.0, input_unit=1.0, bias=np.array([0.0, 1e12, -1e12]))
    assert not made.weights.any() and not made.columns.scale.any()
    assert made.columns.bias.tolist() == [0, (1 << 31) - 1, -(1 << 31)]


def test_projection_is_near_float():
    """Each output is off by no more than half steps of its weights and its own rounding."""
    draw = generator("near float")
    weight, x = draw.normal(size=(30, 64)), draw.integers(-2000, 2000, (10, 64))
    unit = np.exp(draw.normal(size=30))
    made = quantize_projection(weight, unit=unit, input_unit=1.0)
    got, _ = project(x, made.weights, made.columns, Command(), act_bits=12)
    step = np.abs(weight).max(axis=1) / 127
    exact = x @ weight.T
    bound = np.abs(x).sum(axis=1, keepdims=True) * step / 2 + np.abs(exact) * 2.0**-15 + unit
    assert (np.abs(got * unit - exact) <= bound).all()


@pytest.mark.parametrize(("count", "head_dim"), [(8, 8), (24, 8), (128, 64), (12, 2)])
def test_halves_become_neighbours_and_outputs_return(count, head_dim):
    order = pair_halves(count, head_dim)
    heads = order.reshape(-1, head_dim // 2, 2)
    assert (heads[..., 1] - heads[..., 0] == head_dim // 2).all()
    assert (heads // head_dim == np.arange(len(heads))[:, None, None]).all()
    command = Command(function=Function.ROTARY, rotary_columns=count, head_dim=head_dim, half_pairs=True)
    np.testing.assert_array_equal(output_columns(count, command), order)


def test_both_layouts_of_pairs_give_the_same_rotation():
    """Weights ordered for neighbours and outputs ordered by halves: what a model with such pairs computes."""
    draw = generator("layouts")
    head_dim, n, m = 8, 24, 3
    x, angle = draw.integers(-2000, 2000, (m, 32)), draw.uniform(0, 6, (m, head_dim // 2))
    weight = draw.normal(size=(n, 32))
    cos, sin = (np.floor(f(angle) * ONE + 0.5).astype(np.int64) for f in (np.cos, np.sin))
    order = np.concatenate([pair_halves(16, head_dim), np.arange(16, n)])  # the last head is not turned
    made = quantize_projection(weight[order], unit=0.5, input_unit=1.0)
    options = {"function": Function.ROTARY, "rotary_columns": 16, "head_dim": head_dim}
    command = Command(**options, half_pairs=True)
    got, _ = project(x, made.weights, made.columns, command, act_bits=12, rotary=(cos, sin))

    plain = quantize_projection(weight, unit=0.5, input_unit=1.0)
    y, _ = project(x, plain.weights, plain.columns, Command(), act_bits=12)
    heads = y[:, :16].reshape(m, 2, 2, head_dim // 2).astype(np.int64)
    turned = rotate_pairs(heads.transpose(0, 1, 3, 2), cos[:, None], sin[:, None]).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(got, np.concatenate([turned.reshape(m, 16), y[:, 16:]], axis=1))
