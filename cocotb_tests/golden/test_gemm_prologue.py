"""Activation rows as the GEMM cores take them: codes, the factor of a norm, and how near both come to float."""

from math import isqrt

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cocotb_tests.gemm.projections import real_projections
from cocotb_tests.gemm.rows import corner_rows
from cocotb_tests.golden.draws import generator
from golden.fixed import half_up
from golden.gemm.prologue import EPSILON_BITS, FACTOR_FRACTION_BITS, Norm, Rows, inverse_root, magnitude, prepare_rows
from golden.gemm.weights import epsilon_code

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
ONE = 1 << FACTOR_FRACTION_BITS
#: what a factor is off by, relatively
FACTOR_ERROR = 2.0**-14

element = st.one_of(st.integers(LOWEST, HIGHEST), st.integers(-300, 300), st.sampled_from([LOWEST, HIGHEST]))
row = st.lists(element, min_size=1, max_size=20).map(lambda x: np.array([x], np.int32))
act_bits = st.integers(8, 16)
power = st.one_of(
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 62).map(lambda n: 1 << n),
    st.integers(1, (1 << 31) - 1).flatmap(lambda n: st.integers(n * n - 1, n * n + 1)),
)


def rows_of(x: NDArray[np.integer], bits: int, norm: Norm = Norm.NONE, epsilon: int = 0) -> Rows:
    return prepare_rows(x, act_bits=bits, norm=norm, epsilon=epsilon)


def scales(rows: Rows) -> NDArray[np.float64]:
    """The numbers that factors and exponents stand for, ``[M, 1]``."""
    return (rows.factor / ONE * 2.0**rows.exponent)[:, None]


def normalized(x: NDArray[np.integer], norm: Norm, epsilon: float) -> NDArray[np.float64]:
    """The norm in float."""
    wide = x.astype(np.float64)
    if norm is Norm.LAYER:
        wide = wide - wide.mean(axis=1, keepdims=True)
    return wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + epsilon)


def norm_bound(x: NDArray[np.integer], bits: int, norm: Norm, epsilon: float) -> NDArray[np.float64]:
    """How far a normalized element may lie from the one in float.

    A code is off by up to half a unit, by one where it saturates, by nothing without shift; so the root of the power,
    which is a Euclidean length, is off by K of that at most, and one more for what epsilon loses.
    """
    k = x.shape[1]
    shift = np.maximum(magnitude(x) + 1 - bits, 0)[:, None]
    saturates = (half_up(x, shift) >= 1 << bits - 1).any(axis=1, keepdims=True)
    off = np.where(shift == 0, 0, np.where(saturates, 1, 0.5))
    wide = x / 2.0**shift
    if norm is Norm.LAYER:
        wide = wide - wide.mean(axis=1, keepdims=True)
    length = np.sqrt(k * (wide**2).sum(axis=1, keepdims=True) + k * k * epsilon / 4.0**shift)
    least = np.maximum(length - k * off - 1, 1)
    return np.abs(normalized(x, norm, epsilon)) * ((k * off + 1) / least + FACTOR_ERROR) + 1.001 * k * off / least


def random_rows(label: str, count: int, k: int) -> NDArray[np.int32]:
    """Rows of several magnitudes, shapes and means."""
    draw = generator(label, k)
    size = 2.0 ** draw.uniform(4, 31, (count, 1))
    x = draw.normal(size=(count, k)) * size / 4 + size * draw.choice([0, 0, 0.3, -1], (count, 1))
    return np.clip(np.floor(x + 0.5), LOWEST, HIGHEST).astype(np.int32)


@given(x=row)
def test_magnitude_is_the_bits_of_the_widest_element_without_sign(x):
    assert magnitude(x).tolist() == [max((v if v >= 0 else ~v).bit_length() for v in x[0].tolist())]


@pytest.mark.parametrize(
    ("power", "factor", "exponent"),
    [
        (0, 65535, -1),  # counts as 1
        (1, 65535, -1),  # 2**16 would be one; the largest factor is a unit less
        (2, 46341, -1),  # floor(2**31 / floor(sqrt(2**31))) = floor(2**31 / 46340)
        (3, 37837, -1),  # floor(sqrt(3 * 2**30)) = 56755
        (4, 65535, -2),
        (1 << 30, 65535, -16),
        ((1 << 31) - 1, 46341, -16),  # 31 bits: as it is
        ((1 << 32) - 1, 32768, -16),  # root 65535
        ((1 << 33) + 7, 46341, -18 + 1),  # 34 bits: shifted right by two
        (1 << 62, 65535, -32),
        ((1 << 63) - 1, 46341, -32),
    ],
)
def test_inverse_root_by_hand(power, factor, exponent):
    assert [int(v) for v in inverse_root(np.array(power))] == [factor, exponent]


@given(p=power)
def test_inverse_root_follows_its_definition(p):
    shifted = max(p, 1)
    half = (shifted.bit_length() - 31) // 2
    normal = shifted >> 2 * half if half >= 0 else shifted << -2 * half
    assert normal.bit_length() in (31, 32)
    factor, exponent = inverse_root(np.array(p))
    assert int(factor) == min((1 << 31) // isqrt(normal), (1 << 16) - 1)
    assert int(exponent) == -16 - half


@given(p=power)
def test_inverse_root_is_near_the_root(p):
    """Off by less than 2**-14, a factor of 16 bits with its top bit set, an exponent of -32 to -1."""
    factor, exponent = (int(v) for v in inverse_root(np.array(p)))
    assert ONE <= factor < 2 * ONE and -32 <= exponent <= -1
    assert abs(factor / ONE * 2.0**exponent * np.sqrt(float(max(p, 1))) - 1) < FACTOR_ERROR


@pytest.mark.parametrize(
    ("norm", "factor", "exponent"),
    [
        (Norm.NONE, 32768, 2),
        # 4 * (75**2 + 75**2 + 1**2) + (160 >> 4) = 45014; floor(sqrt(45014 << 16)) = 54314; 2**31 / 54314 = 39538
        (Norm.RMS, 39538, -8),
        # less the square of the sum, 1: 45013, whose root is 54313
        (Norm.LAYER, 39539, -8),
    ],
    ids=str,
)
def test_row_by_hand(norm, factor, exponent):
    rows = rows_of(np.array([[300, -300, 5, 0]]), 8, norm, epsilon=160)
    assert rows.codes.tolist() == [[75, -75, 1, 0]]
    assert (rows.factor.tolist(), rows.exponent.tolist()) == ([factor], [exponent])


@pytest.mark.parametrize(
    ("x", "bits", "codes", "shift"),
    [
        ([127, -128], 8, [127, -128], 0),  # fits as it is
        ([128, -128], 8, [64, -64], 1),
        ([255, 1, -1, -255], 8, [127, 1, 0, -127], 1),  # 127.5 saturates; halves go up
        ([254, 3, -3, -256], 8, [127, 2, -1, -128], 1),
        ([HIGHEST, 1 << 23, -(1 << 23), LOWEST], 8, [127, 1, 0, -128], 24),
        ([HIGHEST, 1 << 15, LOWEST], 16, [32767, 1, -32768], 16),
    ],
)
def test_codes_by_hand(x, bits, codes, shift):
    rows = rows_of(np.array([x]), bits)
    assert (rows.codes.tolist(), rows.factor.tolist(), rows.exponent.tolist()) == ([codes], [ONE], [shift])


@given(x=row, bits=act_bits)
def test_codes_are_as_fine_as_they_can_be(x, bits):
    """Within half a step of the element, or a step where the largest code ends; no row could be shifted less."""
    rows = rows_of(x, bits)
    shift = int(rows.exponent[0])
    codes, top = rows.codes.astype(np.int64), (1 << bits - 1) - 1
    assert codes.min() >= ~top and codes.max() <= top
    error = np.abs(2 * x.astype(np.int64) - 2 * (codes << shift))
    assert (error <= np.where(codes == top, 2 << shift, 1 << shift)).all()
    assert shift == 0 or np.where(x < 0, ~x, x).max() >> shift - 1 > top
    if shift == 0:
        assert np.array_equal(codes, x)


@given(x=row, bits=act_bits, norm=st.sampled_from(Norm))
def test_rows_twice_as_large_have_the_same_codes(x, bits, norm):
    """Once a row fills the codes; a norm takes the two away again."""
    x = np.clip(x, -(1 << 30), (1 << 30) - 1)
    assume(magnitude(x)[0] + 1 >= bits)
    once, twice = rows_of(x, bits, norm), rows_of(2 * x, bits, norm)
    assert np.array_equal(once.codes, twice.codes) and np.array_equal(once.factor, twice.factor)
    assert twice.exponent[0] == once.exponent[0] + (norm is Norm.NONE)


@given(x=row, bits=act_bits, norm=st.sampled_from([Norm.RMS, Norm.LAYER]), epsilon=st.integers(0, (1 << 48) - 1))
def test_factor_is_that_of_the_power(x, bits, norm, epsilon):
    """In Python's integers; the power of a layer norm is never negative."""
    rows = rows_of(x, bits, norm, epsilon)
    shift = int(rows_of(x, bits).exponent[0])
    codes = [int(code) for code in rows.codes[0]]
    p = len(codes) * sum(code * code for code in codes) - (sum(codes) ** 2 if norm is Norm.LAYER else 0)
    assert p >= 0
    factor, exponent = inverse_root(np.array([p + (epsilon >> 2 * shift)]))
    assert (rows.factor.tolist(), rows.exponent.tolist()) == (factor.tolist(), exponent.tolist())


def test_largest_power_stays_below_its_bound():
    """The longest row of the largest codes with the largest epsilon, 2**62 + 2**48 >> 32."""
    x = np.full((1, 1 << 16), LOWEST, np.int64)
    rows = rows_of(x, 16, Norm.RMS, (1 << EPSILON_BITS) - 1)
    assert (rows.factor.tolist(), rows.exponent.tolist()) == ([65535], [-32])


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("k", [1, 7, 64, 576, 4096])
def test_rms_norm_is_near_the_one_in_float(k, bits):
    x = random_rows("rms", 60, k)
    epsilon = 1e-5 * 4.0**12
    rows = rows_of(x, bits, Norm.RMS, epsilon_code(1e-5, k, 12))
    error = np.abs(rows.codes * scales(rows) * k - normalized(x, Norm.RMS, epsilon))
    assert (error <= norm_bound(x, bits, Norm.RMS, epsilon)).all()


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("k", [2, 7, 64, 768])
def test_layer_norm_with_centered_weights_is_near_the_one_in_float(k, bits):
    """The codes keep their mean, but weights that sum to zero do not see it."""
    x = random_rows("layer", 60, k)
    draw = generator("centered", k)
    weights = draw.integers(-100, 100, (5, k))
    weights[:, -1] -= weights.sum(axis=1)
    epsilon = 1e-5 * 4.0**12
    rows = rows_of(x, bits, Norm.LAYER, epsilon_code(1e-5, k, 12))
    product = rows.codes.astype(np.int64) @ weights.T * scales(rows) * k
    error = np.abs(product - normalized(x, Norm.LAYER, epsilon) @ weights.T)
    assert (error <= norm_bound(x, bits, Norm.LAYER, epsilon) @ np.abs(weights).T + 1e-6).all()


@pytest.mark.parametrize("norm", [Norm.RMS, Norm.LAYER], ids=str)
def test_zero_rows_have_zero_codes_and_the_factor_of_epsilon(norm):
    for epsilon in (0, 1, 77, (1 << EPSILON_BITS) - 1):
        rows = rows_of(np.zeros((2, 9), np.int32), 12, norm, epsilon)
        assert not rows.codes.any()
        factor, exponent = inverse_root(np.array([epsilon, epsilon]))
        assert np.array_equal(rows.factor, factor) and np.array_equal(rows.exponent, exponent)


@pytest.mark.parametrize("value", [1, -1, 127, -128, 128, 5000, HIGHEST, LOWEST])
@pytest.mark.parametrize("k", [1, 2, 9])
def test_constant_rows_are_one_or_nothing(k, value):
    """Their root mean square is their size; without their mean nothing is left, and the power counts as one."""
    x = np.full((1, k), value)
    rows = rows_of(x, 8, Norm.RMS)
    assert np.abs(rows.codes * scales(rows) * k - np.sign(value)).max() < FACTOR_ERROR
    rows = rows_of(x, 8, Norm.LAYER)
    assert (rows.factor.tolist(), rows.exponent.tolist()) == ([65535], [-1])


def test_single_element_has_the_size_of_the_row():
    """One element and zeros: it becomes the root of K."""
    for k in (1, 4, 64):
        for value in (3, -3, HIGHEST, LOWEST):
            rows = rows_of(np.array([[0] * (k - 1) + [value]]), 12, Norm.RMS)
            top = (rows.codes * scales(rows) * k)[0, -1]
            assert abs(top / (np.sign(value) * np.sqrt(k)) - 1) < FACTOR_ERROR


@pytest.mark.parametrize("norm", Norm, ids=str)
def test_corner_rows_stay_in_range(norm):
    for k in (1, 2, 33):
        rows = rows_of(corner_rows(k, 12), 12, norm, epsilon=3)
        assert rows.codes.dtype == np.int16 and np.abs(rows.codes.astype(int) * 2 + 1).max() < 1 << 12
        assert rows.factor.min() >= ONE and rows.factor.max() < 2 * ONE
        assert rows.exponent.min() >= (-32 if norm else 0) and rows.exponent.max() <= (-1 if norm else 20)


def test_real_rows_are_near_float():
    """Residual rows of three layers: with 12 bits a normalized row is off by less than 1% of its length."""
    for real in real_projections((0, 14, 29), 16):
        if real.command.norm is Norm.NONE:
            continue
        k = real.x.shape[1]
        rows = rows_of(real.x, 12, Norm.RMS, real.command.epsilon)
        exact = normalized(real.x, Norm.RMS, real.command.epsilon / k**2)
        loss = np.linalg.norm(rows.codes * scales(rows) * k - exact, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"layer {real.layer}: off by {loss.min():.5f} to {loss.max():.5f}")
        assert loss.max() < 0.01
