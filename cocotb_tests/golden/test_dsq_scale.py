"""The scale code: value, smallest scale for a magnitude, scale of a quotient."""

from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS, ceil_scale, divide_scale, split_scale

POSITIVE = st.one_of(st.integers(1, 2**43 - 1), st.integers(0, 42).map(lambda n: 1 << n))


def value(code: int) -> Fraction:
    """What a scale code stands for."""
    return Fraction(8 + code % 8) * Fraction(2) ** (code // 8 - SCALE_BIAS)


VALUES = [value(code) for code in range(256)]


def exact_divide(numerator: int, denominator: int) -> int:
    """The code of a quotient: the nearest value, ties to the larger one, of the quotient in whole 2**-SCALE_BIAS."""
    quotient = floor(Fraction(numerator << SCALE_BIAS, denominator))
    if quotient < 8:
        return 0
    for code in range(255):
        middle = (VALUES[code] + VALUES[code + 1]) / 2 * 2**SCALE_BIAS
        if quotient < middle:
            return code
    return 255


def test_split_gives_significand_and_exponent_of_every_code():
    significand, exponent = split_scale(np.arange(256))
    parts = zip(significand.tolist(), exponent.tolist(), strict=True)
    assert [s * Fraction(2) ** (e - SCALE_BIAS) for s, e in parts] == VALUES
    assert significand.min() == 8 and significand.max() == 15 and exponent.max() == 31


def test_codes_compare_as_their_values():
    assert all(low < high for low, high in pairwise(VALUES))


def test_ends_of_the_code():
    assert VALUES[0] == Fraction(1, 256)
    assert VALUES[255] == 15 * 2**20


def test_ceil_scale_is_the_smallest_that_reaches_every_magnitude():
    amax = np.arange(32769)
    code = ceil_scale(amax).astype(np.int64)
    reach = np.array([int(127 * v * 2**SCALE_BIAS) for v in VALUES])
    target = amax << SCALE_BIAS
    assert (reach[code] >= target).all()
    assert (reach[code[code > 0] - 1] < target[code > 0]).all()


def test_ceil_scale_of_zero_and_of_the_largest_magnitude():
    assert ceil_scale(0) == 0
    assert ceil_scale(32768) == 129
    assert split_scale(ceil_scale(32768))[1] == MAX_EXPONENT


@given(st.integers(0, 2**43 - 1), POSITIVE)
def test_divide_scale_matches_exact_fractions(numerator, denominator):
    assert divide_scale(numerator, denominator) == exact_divide(numerator, denominator)


@pytest.mark.parametrize("denominator", [1 << 12, 5000, 99991, (1 << 18) - 1])
def test_divide_scale_rounds_midpoints_up(denominator):
    """The smallest quotient that reaches the middle of two scales, for all of them, and the largest below it."""
    codes = range(8, 255)
    numerators = np.array([ceil((VALUES[c] + VALUES[c + 1]) / 2 * denominator) for c in codes])
    np.testing.assert_array_equal(divide_scale(numerators, denominator), [c + 1 for c in codes])
    np.testing.assert_array_equal(divide_scale(numerators - 1, denominator), codes)


@given(st.integers(0, 255), st.integers(0, 11))
def test_divide_scale_gives_back_every_scale(code, extra):
    """A quotient that is a scale gives its code, however it is written."""
    v = VALUES[code]
    assert divide_scale(v.numerator << extra, v.denominator << extra) == code


@given(POSITIVE, st.integers(0, 2**43 - 2), st.integers(1, 2**20))
def test_divide_scale_never_falls_when_the_numerator_grows(denominator, numerator, more):
    assert divide_scale(min(numerator + more, 2**43 - 1), denominator) >= divide_scale(numerator, denominator)


def test_divide_scale_underflows_to_zero():
    np.testing.assert_array_equal(divide_scale([0, 1, 7, 8, 9], [2**42, 2**42, 2**11, 2**11, 2**11]), [0, 0, 0, 0, 1])


def test_divide_scale_saturates_above_the_largest_scale():
    np.testing.assert_array_equal(divide_scale([15 << 20, 1 << 25, 2**43 - 1], [1, 1, 1]), [255, 255, 255])
