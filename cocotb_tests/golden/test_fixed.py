"""Fixed-point helpers against exact fractions."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.fixed import half_up, saturate


def exact_half_up(value: int, shift: int) -> int:
    """The definition, in unbounded numbers."""
    return floor(Fraction(value) / Fraction(2) ** shift + Fraction(1, 2))


@given(st.integers(-(2**62) + 1, 2**62 - 1), st.integers(1, 200))
def test_half_up_divides_as_the_definition_says(value, shift):
    assert half_up(value, shift) == exact_half_up(value, shift)


@given(st.integers(-(2**30), 2**30), st.integers(-31, 0))
def test_half_up_multiplies_for_shifts_of_zero_or_less(value, shift):
    assert half_up(value, shift) == exact_half_up(value, shift) == value << -shift


@given(st.integers(-(2**40), 2**40), st.integers(1, 20))
def test_half_up_rounds_ties_towards_plus_infinity(whole, shift):
    assert half_up((2 * whole + 1) << (shift - 1), shift) == whole + 1


@pytest.mark.parametrize(
    ("value", "shift", "rounded"),
    [(1, 1, 1), (-1, 1, 0), (3, 1, 2), (-3, 1, -1), (5, 2, 1), (6, 2, 2), (-6, 2, -1), (-7, 2, -2), (0, 9, 0)],
)
def test_half_up_by_hand(value, shift, rounded):
    assert half_up(value, shift) == rounded


def test_half_up_broadcasts_value_and_shift():
    value, shift = np.arange(-40, 40)[:, None], np.arange(-3, 70)
    expected = [[exact_half_up(int(v), int(s)) for s in shift] for v in value[:, 0]]
    np.testing.assert_array_equal(half_up(value, shift), expected)


@given(st.integers(-(2**62), 2**62), st.integers(2, 40))
def test_saturate_clamps_to_the_signed_range(value, bits):
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    assert saturate(value, bits) == min(max(value, lowest), highest)


def test_saturate_keeps_both_ends():
    np.testing.assert_array_equal(saturate([-32769, -32768, 32767, 32768], 16), [-32768, -32768, 32767, 32767])
