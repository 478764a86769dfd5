"""INT8 rows: error bound, clamp, degenerate rows, what quantizing twice changes."""

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator, real, rows
from golden.dsq.rotation import rotate
from golden.dsq.row_quantizer import RECIPROCAL, quantize_rows, quantize_token_rows, reconstruct_rows
from golden.dsq.scale import SCALE_BIAS, ceil_scale, split_scale
from golden.fixed import half_up

SCALES = np.arange(130)  # all that a row of INT16 values can have
#: largest error of a code, in steps: half a step and what the rounded reciprocal adds over 127 steps
STEP_ERROR = 0.535


def value(scale: np.ndarray) -> np.ndarray:
    """What scale codes stand for."""
    significand, exponent = split_scale(scale)
    return significand * 2.0 ** (exponent - SCALE_BIAS)


def ramp(scale: int) -> np.ndarray:
    """Every value of a row whose largest magnitude has this scale, as one row; empty when no whole number has it."""
    largest = min(int(127 * value(np.array(scale))), 32768)
    if ceil_scale(largest) != scale:
        return np.zeros(0, np.int16)
    return np.clip(np.arange(-largest, largest + 1), -32768, 32767).astype(np.int16)


RAMPS = [ramp(scale) for scale in SCALES if len(ramp(scale))]


def test_reciprocals_are_half_up_of_the_quotients():
    assert RECIPROCAL.tolist() == [2048, 1820, 1638, 1489, 1365, 1260, 1170, 1092]


def test_ramps_cover_all_scales_of_rows():
    assert {int(quantize_rows(x)[1]) for x in RAMPS} == set(np.unique(ceil_scale(np.arange(32769))).tolist())


def test_every_value_lies_within_the_bound_of_its_code():
    worst = 0.0
    for x in RAMPS:
        codes, scale = quantize_rows(x)
        worst = max(worst, float(np.abs(codes * value(scale) - x).max() / value(scale)))
    print(f"largest error of a code: {worst:.4f} steps")
    assert worst <= STEP_ERROR


def test_reconstruction_adds_at_most_half_a_unit():
    for x in [*RAMPS, *rows(generator("bound"), 400, 96)]:
        codes, scale = quantize_rows(x)
        error = np.abs(reconstruct_rows(codes, scale).astype(np.int64) - x)
        assert error.max() <= STEP_ERROR * value(scale) + 0.5


def test_codes_need_no_clamp():
    """The rounded reciprocal never lifts a code above 127, for any largest magnitude and either sign."""
    amax = np.arange(32769)
    significand, exponent = split_scale(ceil_scale(amax))
    for x in (amax, -amax):
        assert np.abs(half_up(x * RECIPROCAL[significand - 8], exponent + 3)).max() == 127


def test_codes_are_odd_in_the_row_apart_from_ties():
    x = rows(generator("sign"), 200, 64)
    x = np.maximum(x, -32767)
    codes, scale = quantize_rows(x)
    mirrored, same = quantize_rows(-x)
    np.testing.assert_array_equal(scale, same)
    assert set(np.unique(codes + mirrored)) <= {0, 1}


def test_zero_row_has_scale_zero_and_codes_zero():
    codes, scale = quantize_rows(np.zeros((3, 48), np.int16))
    assert not codes.any() and not scale.any()
    assert not reconstruct_rows(codes, scale).any()


@pytest.mark.parametrize("constant", [-32768, -32767, -1000, -1, 1, 2, 127, 128, 5000, 32767])
def test_constant_row_has_one_code_and_comes_back_within_half_a_step(constant):
    codes, scale = quantize_rows(np.full(64, constant, np.int16))
    assert len(set(codes.tolist())) == 1 and 106 <= abs(int(codes[0])) <= 127
    back = reconstruct_rows(codes, scale)
    assert abs(int(back[0]) - constant) <= STEP_ERROR * value(scale) + 0.5


def test_saturated_row_comes_back_saturated():
    """-32768 has code -114 of 288 units, which is below INT16 again and saturates."""
    codes, scale = quantize_rows(np.array([-32768, 32767, 0, 1], np.int16))
    assert (codes.tolist(), int(scale)) == ([-114, 114, 0, 0], 129)
    assert reconstruct_rows(codes, scale).tolist() == [-32768, 32767, 0, 0]


def test_rows_of_the_smallest_magnitudes_are_exact():
    """Steps below one unit: the scale underflows at no row, and every value comes back."""
    for x in RAMPS:
        codes, scale = quantize_rows(x)
        if value(scale) < 0.9:
            np.testing.assert_array_equal(reconstruct_rows(codes, scale), x)


def test_reconstruct_takes_every_code_and_scale():
    """Against integers, -128 and the scales that no row produces included."""
    codes = np.arange(-128, 128)
    for scale in range(256):
        significand, exponent = 8 + scale % 8, scale // 8
        exact = [(2 * c * significand * 2**exponent + 2**SCALE_BIAS) >> (SCALE_BIAS + 1) for c in codes.tolist()]
        np.testing.assert_array_equal(reconstruct_rows(codes, scale), np.clip(exact, -32768, 32767))


def test_token_rows_rotate_k_alone():
    draw = generator("token rows")
    k, v = rows(draw, 5, 80), rows(draw, 5, 80)
    k_codes, k_scale, v_codes, v_scale = quantize_token_rows(k, v)
    for made, expected in ((k_codes, k_scale), quantize_rows(rotate(k))), ((v_codes, v_scale), quantize_rows(v)):
        np.testing.assert_array_equal(made[0], expected[0])
        np.testing.assert_array_equal(made[1], expected[1])


def test_quantizing_again_with_the_same_scale_gives_the_same_codes():
    for scale in SCALES:
        codes = np.arange(-127, 128)
        x = reconstruct_rows(codes, scale).astype(np.int64)
        if value(np.array(scale)) < 1:  # several codes have the same value; those values are exact
            codes = np.unique(quantize_rows(ramp(scale))[0]) if len(ramp(scale)) else codes[:0]
            x = reconstruct_rows(codes, scale).astype(np.int64)
        inside = np.abs(x) < 32767  # saturated values do not come back
        significand, exponent = split_scale(scale)
        again = half_up(x * RECIPROCAL[significand - 8], exponent + 3)
        np.testing.assert_array_equal(again[inside], codes[inside])


def test_quantizing_again_seldom_changes_a_row():
    """A row whose largest code is small may fit a smaller scale; everything else is a fixed point."""
    drawn = np.concatenate([np.concatenate([rotate(g.k_rows), g.v_rows]) for g in real()])
    for name, x in (("real", drawn), ("random", rows(generator("again"), 4000, 64))):
        codes, scale = quantize_rows(x)
        back = reconstruct_rows(codes, scale)
        codes_again, scale_again = quantize_rows(back)
        same = scale == scale_again
        fixed = same & (back > -32767).all(axis=1)
        np.testing.assert_array_equal(codes[fixed], codes_again[fixed])
        assert np.abs(scale.astype(int) - scale_again).max() <= 1
        moved = np.abs(reconstruct_rows(codes_again, scale_again).astype(int) - back).max(axis=1)
        assert (moved <= STEP_ERROR * value(scale_again) + 0.5).all()
        print(f"{name} rows that a second quantization changes: {(~same).mean():.2%}")
        assert (~same).mean() < 0.05
