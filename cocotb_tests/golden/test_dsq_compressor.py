"""Nearest base, run order, group scale and deltas against plain loops; degenerate groups."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import calibration, generator, group, rows
from golden.dsq.compressor import (
    STEP_BITS,
    VALUE_BITS,
    Calibration,
    assign_nearest,
    channel_steps,
    compress,
    encode_deltas,
)
from golden.dsq.dequantizer import decode_deltas, dequantize, expand
from golden.dsq.quantizer import quantize
from golden.dsq.record import RecordLayout, pack
from golden.dsq.row_quantizer import quantize_rows, quantize_token_rows, reconstruct_rows
from golden.dsq.salient import pick_salient
from golden.dsq.scale import divide_scale

GEOMETRIES = [(16, 16, 3), (48, 80, 10), (64, 64, 13), (128, 32, 26)]


def flat_calibration(head_dim: int, *, norm: int = 256, mean: int = 0) -> Calibration:
    """Shapes of one, so that all channels share the group scale; ``norm`` 256 divides by the channels alone."""
    ones = np.full(head_dim, 256)
    return Calibration(
        k_shape=ones, v_shape=ones, v_mean=np.full(head_dim, mean), k_norm=norm * head_dim, v_norm=norm * head_dim
    )


def half_up(x: Fraction) -> int:
    """The definition."""
    return floor(x + Fraction(1, 2))


def subtract(a: list[int], b: list[int]) -> list[int]:
    """Element by element."""
    return [x - y for x, y in zip(a, b, strict=True)]


def plain_deltas(difference, shape, norm, bits) -> tuple[int, list[list[int]]]:
    """Group scale and codes, element by element."""
    scale = int(divide_scale(256 * sum(abs(x) for row in difference for x in row), len(difference) * norm))
    codes = []
    for row in difference:
        codes.append([])
        for x, s in zip(row, shape, strict=True):
            step = half_up(Fraction(8 + scale % 8) * Fraction(2) ** (scale // 8 - 11) * Fraction(s, 256))
            magnitude = min(abs(x) // max(min(step, 2**STEP_BITS - 1), 1), 2 ** (bits - 1) - 1)
            codes[-1].append(2 ** (bits - 1) + (-magnitude - 1 if x < 0 else magnitude))
    return scale, codes


def plain_level(code: int, bits: int) -> Fraction:
    """What a code stands for, in steps."""
    return code - 2 ** (bits - 1) + Fraction(1, 2)


def compress_rows(k, v, salient, constants, **keywords):
    """Compress INT16 rows, K as if it had been rotated."""
    return compress(*quantize_rows(k), *quantize_rows(v), np.asarray(salient), constants, **keywords)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_nearest_base_equals_a_plain_search(head_dim):
    draw = generator("nearest", head_dim)
    for _ in range(20):
        x, bases = rows(draw, 12, head_dim), rows(draw, 6, head_dim)
        bases[3] = bases[1]  # a tie wherever one of the two is the nearest
        x[:2] = bases[[1, 3]]
        expected = []
        for row in x.tolist():
            distance = [sum((a - b) ** 2 for a, b in zip(row, base, strict=True)) for base in bases.tolist()]
            expected.append(distance.index(min(distance)))
        assert assign_nearest(x, bases).tolist() == expected
        assert expected[0] == expected[1] <= 1


def test_nearest_base_is_exact_for_saturated_rows():
    """A difference of one unit in one of 128 channels decides between bases of the largest norms."""
    bases = np.full((3, 128), -32768, np.int16)
    bases[0, 0], bases[1, 5], bases[2, 9] = -32766, -32767, -32766
    assert assign_nearest(np.full((1, 128), -32768, np.int16), bases).tolist() == [1]
    assert assign_nearest(np.full((1, 128), 32767, np.int16), bases).tolist() == [0]


@pytest.mark.parametrize(("tokens", "head_dim", "salient_tokens"), GEOMETRIES)
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_matches_plain_loops(tokens, head_dim, salient_tokens, delta_bits):
    draw = generator("compress", tokens, head_dim, delta_bits)
    k_codes, k_scale, v_codes, v_scale = group(draw, tokens, head_dim)
    constants = calibration(draw, head_dim)
    salient = np.sort(draw.choice(tokens, salient_tokens, replace=False))
    made = compress(k_codes, k_scale, v_codes, v_scale, salient, constants, delta_bits=delta_bits)

    k_rows, v_rows = reconstruct_rows(k_codes, k_scale), reconstruct_rows(v_codes, v_scale)
    nearest = assign_nearest(k_rows, k_rows[salient])
    rest = [t for t in range(tokens) if t not in salient]
    order = sorted(rest, key=lambda t: (nearest[t], t))
    assert made.order.tolist() == [*salient.tolist(), *order]
    assert made.run_length.tolist() == [sum(nearest[t] == s for t in rest) for s in range(salient_tokens)]
    for stored, source in (
        (made.k_base, k_codes), (made.k_base_scale, k_scale), (made.v_salient, v_codes), (made.v_salient_scale, v_scale)
    ):  # fmt: skip
        np.testing.assert_array_equal(stored, source[salient])

    k, v = k_rows.tolist(), v_rows.tolist()
    difference = [subtract(k[t], k[salient[nearest[t]]]) for t in order]
    scale, codes = plain_deltas(difference, constants.k_shape.tolist(), constants.k_norm, delta_bits)
    assert made.k_group_scale == scale
    np.testing.assert_array_equal(made.k_delta, codes)
    difference = [subtract(v[t], constants.v_mean.tolist()) for t in order]
    scale, codes = plain_deltas(difference, constants.v_shape.tolist(), constants.v_norm, VALUE_BITS)
    assert made.v_group_scale == scale
    np.testing.assert_array_equal(made.v_delta, codes)


@pytest.mark.parametrize(("tokens", "head_dim", "salient_tokens"), GEOMETRIES)
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_expand_matches_plain_loops(tokens, head_dim, salient_tokens, delta_bits):
    draw = generator("expand", tokens, head_dim, delta_bits)
    constants = calibration(draw, head_dim)
    salient = np.sort(draw.choice(tokens, salient_tokens, replace=False))
    made = compress(*group(draw, tokens, head_dim), salient, constants, delta_bits=delta_bits)
    k_scale, v_scale = (int(draw.choice([0, 60, 100, 255])) for _ in range(2))
    made = replace(made, k_group_scale=k_scale, v_group_scale=v_scale)
    k_rows, v_rows = expand(made, constants, delta_bits=delta_bits)
    base = reconstruct_rows(made.k_base, made.k_base_scale)
    np.testing.assert_array_equal(k_rows[:salient_tokens], base)
    np.testing.assert_array_equal(v_rows[:salient_tokens], reconstruct_rows(made.v_salient, made.v_salient_scale))
    owner = [s for s in range(salient_tokens) for _ in range(made.run_length[s])]
    steps = channel_steps(made.k_group_scale, constants.k_shape), channel_steps(made.v_group_scale, constants.v_shape)
    for i, o in enumerate(owner):
        for c in range(head_dim):
            k = int(base[o, c]) + half_up(plain_level(int(made.k_delta[i, c]), delta_bits) * int(steps[0][c]))
            v = int(constants.v_mean[c]) + half_up(plain_level(int(made.v_delta[i, c]), VALUE_BITS) * int(steps[1][c]))
            assert k_rows[salient_tokens + i, c] == min(max(k, -32768), 32767)
            assert v_rows[salient_tokens + i, c] == min(max(v, -32768), 32767)


@given(st.integers(0, 255), st.integers(1, 4095))
def test_channel_steps_match_exact_fractions(scale, shape):
    exact = half_up(Fraction(8 + scale % 8) * Fraction(2) ** (scale // 8 - 11) * Fraction(shape, 256))
    assert channel_steps(scale, np.array([shape])).tolist() == [min(exact, 131071)]


@pytest.mark.parametrize("bits", [2, 4])
def test_decoded_levels_are_odd_and_grow_with_the_code(bits):
    levels = decode_deltas(np.arange(1 << bits, dtype=np.uint8), delta_bits=bits).tolist()
    assert levels == list(range(1 - 2**bits, 2**bits, 2))


def test_planes_of_a_delta_add_up():
    """Each plane of a 4-bit code is a 2-bit code, the upper one of four times the weight."""
    codes = np.arange(16, dtype=np.uint8)
    coarse, fine = decode_deltas(codes >> 2, delta_bits=2), decode_deltas(codes & 3, delta_bits=2)
    np.testing.assert_array_equal(4 * coarse + fine, decode_deltas(codes, delta_bits=4))


def test_quantize_and_dequantize_are_the_chains_of_their_parts():
    draw = generator("chain")
    k, v = rows(draw, 64, 64), rows(draw, 64, 64)
    mass, constants = draw.integers(0, 2**32, 64, dtype=np.uint32), calibration(draw, 64)
    record = quantize(k, v, mass, True, constants, salient_tokens=9, sink_tokens=2, delta_bits=4, bus_bits=64)
    salient = pick_salient(mass, True, salient_tokens=9, sink_tokens=2)
    made = compress(*quantize_token_rows(k, v), salient, constants, delta_bits=4)
    layout = RecordLayout(salient_tokens=9, delta_bits=4, bus_bits=64)
    np.testing.assert_array_equal(record, pack(made, layout))
    back = dequantize(record, constants, head_dim=64, group_tokens=64, delta_bits=4, bus_bits=64)
    for got, expected in zip(back, expand(made, constants, delta_bits=4), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_all_zero_group():
    """Everything is zero, but for V deltas around a mean, whose magnitude the group scale gives back."""
    zeros = np.zeros((64, 64), np.int16)
    made = compress_rows(zeros, zeros, range(13), flat_calibration(64))
    assert made.run_length.tolist() == [51] + [0] * 12  # all distances tie: the first base
    assert made.k_group_scale == made.v_group_scale == 0
    assert not any(x.any() for x in (made.k_base, made.k_base_scale, made.v_salient))
    assert (made.k_delta == 2).all() and (made.v_delta == 2).all()  # the positive one of the least magnitude
    for x in expand(made, flat_calibration(64), delta_bits=2):
        assert not x.any()


def test_all_tokens_equal():
    """Every difference to a base is zero, so K comes back as its INT8 reconstruction."""
    draw = generator("equal")
    k, v = np.repeat(rows(draw, 1, 64), 64, axis=0), np.repeat(rows(draw, 1, 64), 64, axis=0)
    constants = calibration(draw, 64)
    made = compress_rows(k, v, range(13), constants)
    assert made.run_length.tolist() == [51] + [0] * 12
    assert made.k_group_scale == 0 and (made.k_delta == 2).all()
    k_rows, v_rows = expand(made, constants, delta_bits=2)
    np.testing.assert_array_equal(k_rows, reconstruct_rows(*quantize_rows(k)))
    assert (v_rows[13:] == v_rows[13]).all()


def test_constant_channel():
    """A channel that all rows share has no difference: its deltas have magnitude 0 and stay within half a step."""
    draw = generator("constant channel")
    k = draw.integers(-3000, 3000, (64, 64)).astype(np.int16)
    k[:, 5], k[:, 6] = 9000, -9000  # the largest of every row, so that all rows have one scale
    made = compress_rows(k, k, range(13), flat_calibration(64, norm=230))
    assert (made.k_delta[:, 5:7] == 2).all()
    k_rows, _ = expand(made, flat_calibration(64, norm=230), delta_bits=2)
    step = channel_steps(made.k_group_scale, np.array([256]))[0]
    assert np.abs(k_rows[:, 5].astype(int) - k_rows[0, 5]).max() <= (step + 1) // 2


@pytest.mark.parametrize("value", [-32768, 32767])
def test_saturated_group(value):
    """K comes back as its bases; V's step is 32768, which -32768 reaches (one and a half steps) and 32767 does not."""
    full = np.full((16, 16), value, np.int16)
    made = compress_rows(full, full, range(3), flat_calibration(16))
    assert made.k_group_scale == 0
    k_rows, v_rows = expand(made, flat_calibration(16), delta_bits=2)
    reconstructed = reconstruct_rows(*quantize_rows(full))
    np.testing.assert_array_equal(k_rows, reconstructed)
    assert channel_steps(made.v_group_scale, np.array([256])).tolist() == [32768]
    assert (made.v_delta == (2 if value > 0 else 0)).all()
    assert (v_rows[3:] == (16384 if value > 0 else -32768)).all()


def test_opposite_saturated_rows_differ_by_more_than_int16():
    """A difference of 65535 units is coded and comes back saturated, not wrapped."""
    k = np.repeat(np.array([[-32768], [32767]], np.int16), 16, axis=1)[[0] * 8 + [1] * 8]
    made = compress_rows(k, k, [0], flat_calibration(16))
    k_rows, _ = expand(made, flat_calibration(16), delta_bits=2)
    # 7 rows without and 8 with a difference: the mean is 8/15 of it, the step 32768 or the next scale to 34940.
    assert channel_steps(made.k_group_scale, np.array([256])).tolist() == [36864]
    assert (made.k_delta[:7] == 2).all() and (made.k_delta[7:] == 3).all()
    assert (k_rows[1:8] == -32768 + 18432).all() and (k_rows[8:] == -32768 + 55296).all()


def test_all_salient_group_has_no_deltas():
    draw = generator("all salient")
    k, v = rows(draw, 32, 64), rows(draw, 32, 64)
    constants = flat_calibration(64)
    made = compress_rows(k, v, range(32), constants)
    assert made.k_delta.shape == made.v_delta.shape == (0, 64)
    assert made.k_group_scale == made.v_group_scale == 0 and not made.run_length.any()
    k_rows, v_rows = expand(made, constants, delta_bits=2)
    np.testing.assert_array_equal(k_rows, reconstruct_rows(*quantize_rows(k)))
    np.testing.assert_array_equal(v_rows, reconstruct_rows(*quantize_rows(v)))


def test_one_salient_token_stands_for_all():
    draw = generator("one salient")
    made = compress(*group(draw, 64, 64), np.array([17]), calibration(draw, 64))
    assert made.run_length.tolist() == [63]
    assert made.order.tolist() == [17, *range(17), *range(18, 64)]


def test_group_scale_underflows_to_exact_bases():
    """One unit of difference in 51 rows: the scale is 0, its step 0, and every row comes back as its base."""
    difference = np.zeros((51, 64), np.int64)
    difference[0, 0], difference[1, 1] = 1, -1
    scale, codes = encode_deltas(difference, np.full(64, 256), 64 * 256, delta_bits=2)
    assert scale == 0
    np.testing.assert_array_equal(codes, np.where(difference > 0, 3, np.where(difference < 0, 0, 2)))
    assert not channel_steps(scale, np.full(64, 4095)).any()
    made = compress_rows(np.full((16, 16), 100, np.int16), np.zeros((16, 16), np.int16), range(3), flat_calibration(16))
    made = replace(made, k_delta=np.full((13, 16), 0, np.uint8))
    k_rows, _ = expand(made, flat_calibration(16), delta_bits=2)
    assert (k_rows == 100).all()


def test_group_scale_overflows_to_steps_that_saturate():
    """The smallest norm lifts the scale to its largest code; steps stop at 17 bits, levels saturate."""
    difference = np.full((3, 16), -20000, np.int64)
    scale, codes = encode_deltas(difference, np.full(16, 4095), 1, delta_bits=4)
    assert scale == 255
    assert channel_steps(scale, np.array([1, 2, 3, 4095])).tolist() == [61440, 122880, 131071, 131071]
    assert (codes == 7).all()  # less than one step below the base
    made = compress_rows(np.zeros((16, 16), np.int16), np.zeros((16, 16), np.int16), range(3), flat_calibration(16))
    made = replace(made, k_group_scale=255, v_group_scale=255, k_delta=made.k_delta - 1)
    k_rows, v_rows = expand(made, flat_calibration(16), delta_bits=2)
    assert (k_rows[3:] == -32768).all() and (v_rows[3:] == 32767).all()


def test_deltas_fall_on_the_nearest_level_inside_the_range():
    """Midpoint levels: an element moves by at most half a step unless its magnitude saturates."""
    draw = generator("levels")
    difference = draw.integers(-6000, 6000, (51, 64))
    shape, norm = np.full(64, 256), 64 * 330
    for bits in (2, 4):
        scale, codes = encode_deltas(difference, shape, norm, delta_bits=bits)
        step = channel_steps(scale, shape)
        error = np.abs(decode_deltas(codes, delta_bits=bits) * step / 2 - difference)
        saturated = np.abs(difference) > step * (1 << (bits - 1))
        assert (error[~saturated] <= step[0] / 2).all() and saturated.any() == (bits == 2)
