"""Base-2 softmax: table, integer maximum, weights, streaming form, inverse of the sum, mass of rows of any length."""

import itertools
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import generator
from golden.mha.mass import normalize
from golden.mha.softmax import (
    EXP2,
    INVERSE_BITS,
    MASKED,
    NO_MAXIMUM,
    NORMAL_BITS,
    integer_maximum,
    inverse,
    softmax,
    softmax_streaming,
)
from golden.reference import softmax as reference_softmax

ONE = 1 << 16
LENGTHS = [1, 2, 3, 5, 16, 64, 100, 255, 256, 257, 600, 1000, 3000, 4096, 10000, 30000, 32768]
#: scores of 24 bits; those of delta tokens are the sums of four
LIMIT = 1 << 23


def flat(length: int) -> np.ndarray:
    """All scores equal."""
    return np.full(length, -777, np.int32)


def peaked(length: int) -> np.ndarray:
    """One score 9 to 10 base-2 units above the others."""
    return np.where(np.arange(length) == length // 2, 2500, 0).astype(np.int32)


def spread(length: int) -> np.ndarray:
    """Scores of a few base-2 units around zero."""
    return np.floor(generator("spread", length).normal(0, 600, length)).astype(np.int32)


def ramp(length: int) -> np.ndarray:
    """Growing scores: the maximum changes all the time."""
    return (np.arange(length) * 8 % 60000 - 30000).astype(np.int32)


KINDS = [flat, peaked, spread, ramp]
ROWS = pytest.mark.parametrize(("kind", "length"), list(itertools.product(KINDS, LENGTHS)))


def plain(score: np.ndarray) -> np.ndarray:
    """Weights against the row's own maximum."""
    return softmax(score, integer_maximum(score))


def streaming_sum(weights: np.ndarray, maximum: np.ndarray) -> tuple[int, int]:
    """The sum of one row's weights, token by token, and how many of them were added before its maximum last rose."""
    total, before, added, highest = 0, 0, 0, int(maximum[0])
    for weight, top in zip(weights.tolist(), maximum.tolist(), strict=True):
        if top > highest:
            total, before, highest = total >> (top - highest), added, top
        total += weight
        added += weight > 0
    return total, before


def masses(score: np.ndarray, *, int8_tokens: int | None = None, group: int = 64) -> tuple[np.ndarray, int, int]:
    """Mass of the entries of one row: every token, or INT8 tokens and the sums of groups behind them.

    Also the sum of the row, and how many entries were there before its maximum last rose.
    """
    weights, maximum = softmax_streaming(score)
    total, _ = streaming_sum(weights, maximum)
    if int8_tokens is not None:
        starts = [*range(min(int8_tokens, len(score))), *range(int8_tokens, len(score), group), len(score)]
        parts = [slice(a, b) for a, b in itertools.pairwise(starts)]
        weights = np.array([streaming_sum(weights[part], maximum[part])[0] for part in parts])
        maximum = np.array([maximum[part][-1] for part in parts])
    before = int(((weights > 0) & (maximum < maximum[-1])).sum())
    return normalize(weights, maximum, maximum[-1], np.array(total)), total, before


def test_table_is_half_up_of_the_exact_powers():
    """``t - 1/2 <= 2**(15 + f/256) < t + 1/2``, in integers after 256th powers."""
    assert len(EXP2) == 256
    for f, t in enumerate(EXP2.tolist()):
        assert (2 * t - 1) ** 256 <= 1 << (16 * 256 + f) < (2 * t + 1) ** 256


@given(st.integers(-4 * LIMIT, 4 * LIMIT - 4))
def test_maximum_is_the_next_whole_unit_above(score):
    maximum = int(integer_maximum(np.array([score, MASKED], np.int32)))
    assert (maximum - 1) * 256 <= score < maximum * 256
    assert maximum > NO_MAXIMUM


@given(st.integers(-LIMIT, LIMIT - 1), st.integers(0, 40 * 256))
def test_weight_is_the_power_of_two_of_its_distance(maximum, below):
    maximum = maximum >> 8
    score = maximum * 256 - 1 - below
    weight = int(softmax(np.array([score], np.int32), np.array(maximum, np.int32))[0])
    exact = 2.0 ** (16 + score / 256 - maximum)
    assert -0.5 <= exact - weight < 1.5
    assert weight < ONE and (weight == 0) == (below >= 16 * 256)


def test_weights_never_fall_when_the_score_grows():
    score = np.arange(-20 * 256, 0, dtype=np.int32)
    assert (np.diff(softmax(score, np.array(0, np.int32))) >= 0).all()


def test_largest_weight_is_at_least_one_half():
    for fraction in range(256):
        assert 1 << 15 <= plain(np.array([fraction - 128], np.int32))[0] < ONE


def test_weights_of_saturated_scores():
    score = np.array([-LIMIT, 0, LIMIT - 1, LIMIT - 1], np.int32)
    assert plain(score).tolist() == [0, 0, EXP2[255], EXP2[255]]
    far = np.array([-4 * LIMIT, MASKED, 4 * LIMIT - 4, -4 * LIMIT], np.int32)
    assert plain(far).tolist() == [0, 0, EXP2[252], 0]
    weights, maximum = softmax_streaming(far)
    assert weights.tolist() == [1 << 15, 0, EXP2[252], 0]
    assert maximum.tolist() == [1 - (1 << 17), 1 - (1 << 17), 1 << 17, 1 << 17]


@given(st.lists(st.one_of(st.integers(-9000, 9000), st.just(int(MASKED))), min_size=1, max_size=60))
def test_streaming_weights_shifted_to_the_last_maximum_are_the_plain_ones(scores):
    """Two floors in a row are one: what differs is what sums lose, not the weights."""
    score = np.array(scores, np.int32)
    weights, maximum = softmax_streaming(score)
    assert maximum.tolist() == [int(integer_maximum(score[: i + 1])) for i in range(len(score))]
    np.testing.assert_array_equal(weights >> np.minimum(maximum[-1] - maximum, 31), plain(score))


@given(st.lists(st.integers(-9000, 9000), min_size=1, max_size=60), st.integers(0, 255))
def test_streaming_is_the_plain_form_when_the_first_token_has_the_largest_maximum(scores, above):
    score = np.array([max(scores) // 256 * 256 + above, *scores], np.int32)
    weights, maximum = softmax_streaming(score)
    np.testing.assert_array_equal(weights, plain(score))
    assert set(maximum.tolist()) == {int(integer_maximum(score))}
    assert streaming_sum(weights, maximum) == (plain(score).sum(), 0)


@given(st.sampled_from(KINDS), st.integers(1, 400), st.integers(0, 2**32))
def test_streaming_differs_by_less_than_its_bound(kind, length, seed):
    """Less than one unit for each weight that was added before the last rise, and never below the plain sum."""
    draw = np.random.default_rng(seed)
    score = np.where(draw.random(length) < 0.1, MASKED, draw.permutation(kind(length)) if seed % 2 else kind(length))
    weights, maximum = softmax_streaming(score.astype(np.int32))
    total, before = streaming_sum(weights, maximum)
    assert 0 <= total - int(plain(score).sum()) <= max(before - 1, 0)


def test_rows_stream_one_by_one():
    score = generator("streams").normal(0, 2000, (2, 3, 50)).astype(np.int32)
    weights, maximum = softmax_streaming(score)
    for at in itertools.product(range(2), range(3)):
        one, top = softmax_streaming(score[at])
        np.testing.assert_array_equal(weights[at], one)
        np.testing.assert_array_equal(maximum[at], top)


def test_streaming_error_is_small_on_growing_rows():
    """Token by token over rows whose maximum rises again and again."""
    worst = 0.0
    for length in (10, 100, 1000, 4096):
        for step in (3, 17, 64, 300):
            score = (np.arange(length) * step - (1 << 20)).astype(np.int32)
            total, _ = streaming_sum(*softmax_streaming(score))
            sums = int(plain(score).sum())
            assert total >= sums
            worst = max(worst, (total - sums) / sums)
    print(f"largest excess of the streaming sum on growing rows: {worst:.5f}")
    assert worst < 0.0005


def test_streaming_keeps_more_of_a_long_tail_before_a_peak():
    """The worst order: every weight of the tail loses almost a unit in the plain form, nothing in the streaming one.

    As entries of their own they lose it from the mass too; in groups of 64 they do not.
    """
    score = np.array([-14 * 256 - 1] * 1000 + [0], np.int32)
    total, _ = streaming_sum(*softmax_streaming(score))
    assert plain(score).sum() == 1000 + 32768
    assert total == (1000 * 65359 >> 15) + 32768 == 1994 + 32768
    tokens, grouped = (int(masses(score, int8_tokens=count)[0].sum()) for count in (1001, 0))
    print(f"mass of 1,000 tokens and a peak: {tokens / ONE:.4f} token by token, {grouped / ONE:.5f} in groups")
    assert tokens == floor(Fraction(33768 * ONE, 34762) + Fraction(1, 2)) and grouped > 0.9995 * ONE


@given(st.integers(1, (1 << 42) - 1))
def test_inverse_matches_exact_fractions(total):
    factor, length = (int(x) for x in inverse(np.array(total)))
    exact = Fraction(1 << (length - 1 + INVERSE_BITS), total)
    assert length == total.bit_length()
    assert factor == floor(exact + Fraction(1, 2))
    assert 1 << (INVERSE_BITS - 1) <= factor <= 1 << INVERSE_BITS


def test_inverse_at_powers_of_two():
    for length in range(1, 43):
        lowest, highest = 1 << (length - 1), (1 << length) - 1
        factors, lengths = inverse(np.array([lowest, highest]))
        assert lengths.tolist() == [length, length]
        least = floor(Fraction(lowest << INVERSE_BITS, highest) + Fraction(1, 2))
        assert factors.tolist() == [1 << INVERSE_BITS, least]


def test_inverse_of_zero_is_zero():
    factor, length = inverse(np.zeros(2, np.int64))
    assert factor.tolist() == length.tolist() == [0, 0]


ENTRIES = st.lists(
    st.tuples(st.one_of(st.integers(0, 65535), st.integers(0, 2), st.integers(1 << 24, 1 << 30)), st.integers(0, 3)),
    min_size=1,
    max_size=50,
)


@given(ENTRIES, st.integers(0, 40), st.integers(0, 2))
def test_mass_matches_exact_integers(entries, last_rise, more):
    """Any weights under growing maxima; the sum of the row may be larger than that of the shifted entries."""
    weights = np.array([weight for weight, _ in entries])
    maximum = np.cumsum([rise for _, rise in entries]) - 30
    final = int(maximum[-1]) + last_rise
    shifted = [int(w) >> (final - int(top)) for w, top in zip(weights, maximum, strict=True)]
    total = sum(shifted) + more * len(entries)
    made = normalize(weights, maximum, np.array(final), np.array(total)).tolist()
    if not total:
        assert not any(made)
        return
    length, cut = total.bit_length(), max(total.bit_length() - NORMAL_BITS, 0)
    factor = floor(Fraction(1 << (length - 1 + INVERSE_BITS), total) + Fraction(1, 2))
    bits = length - 1 + INVERSE_BITS - 16 - cut
    reached = [floor(Fraction((x >> cut) * factor, 1 << bits) + Fraction(1, 2)) for x in itertools.accumulate(shifted)]
    assert made == [b - a for a, b in itertools.pairwise([0, *reached])]
    assert min(made) >= 0 and sum(made) <= ONE
    assert more or sum(made) == ONE
    for mass, weight in zip(made, shifted, strict=True):
        assert abs(mass - Fraction(weight * ONE, total)) < 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_mass_of_a_row_is_one(kind):
    """Exactly where the maximum never rises; within 0.5% in the entries that attention has: up to 128 INT8 tokens, then
    groups of 64. A row with an entry a token loses less than one unit an entry before the last rise."""
    worst = {"tokens": 0.0, "groups": 0.0}
    for length in LENGTHS:
        for name, int8_tokens in (("tokens", None), ("groups", 128)):
            mass, total, before = masses(kind(length), int8_tokens=int8_tokens)
            loss = 1 - int(mass.sum()) / ONE
            worst[name] = max(worst[name], loss)
            assert (mass >= 0).all() and -1e-9 < loss <= before / total + 1 / ONE
            if not before:
                assert mass.sum() == ONE
            assert name == "tokens" or loss < 0.005
    print(f"{kind.__name__}: largest mass missing {worst['tokens']:.6f} by token, {worst['groups']:.6f} by group")
    assert kind is not flat or worst == {"tokens": 0, "groups": 0}


@ROWS
def test_mass_of_a_token_lies_near_its_share(kind, length):
    """One unit for the two roundings, an eighth where sums are cut, a quarter at most for the inverse."""
    score = kind(length)
    mass, total, _ = masses(score)
    assert np.abs(mass - plain(score) * (ONE / total)).max() < 1.375


def test_mass_of_one_token_is_one():
    for score in (-LIMIT, -1, 0, 77, LIMIT - 1):
        assert masses(np.array([score], np.int32))[0].tolist() == [ONE]


def test_mass_of_equal_tokens_is_equal_where_it_divides():
    for length in (2, 16, 4096, 32768, 65536):
        np.testing.assert_array_equal(masses(flat(length))[0], ONE // length)


def test_masked_scores_have_no_weight():
    score = np.array([100, MASKED, 50, MASKED], np.int32)
    assert plain(score)[[1, 3]].tolist() == [0, 0]
    assert masses(score)[0][[1, 3]].tolist() == [0, 0]
    weights, maximum = softmax_streaming(np.array([MASKED, MASKED, -700, MASKED], np.int32))
    assert weights.tolist() == [0, 0, EXP2[68], 0]
    assert maximum.tolist() == [NO_MAXIMUM, NO_MAXIMUM, -2, -2]


@pytest.mark.parametrize("length", [1, 2, 64, 1000])
def test_fully_masked_row_gives_zeros(length):
    score = np.full((3, length), MASKED, np.int32)
    assert integer_maximum(score).tolist() == [NO_MAXIMUM] * 3
    assert not plain(score).any()
    weights, maximum = softmax_streaming(score)
    assert not weights.any() and (maximum == NO_MAXIMUM).all()
    assert not normalize(weights, maximum, maximum[:, -1], np.zeros(3, np.int64)).any()


@ROWS
def test_probabilities_lie_near_the_float_ones(kind, length):
    """The table's rounding and what the floor of small weights cuts off: at most one unit of 2**-16 a weight."""
    score = kind(length)
    weights = plain(score)
    exact = reference_softmax(score / 256)
    # A weight is low by up to 1.5 units; the sum is at least 2**15.
    bound = 1.5 / weights.sum() + exact * 1.5 * length / weights.sum()
    assert (np.abs(weights / weights.sum() - exact) <= bound).all()


def test_error_of_probabilities_is_small_within_the_margin():
    """Scores within 7 nats of the maximum, as the value margin leaves them."""
    worst = 0.0
    for length in LENGTHS[1:]:
        score = -np.floor(generator("margin", length).uniform(0, 7 * 1.4427 * 256, length)).astype(np.int32)
        weights = plain(score)
        exact = reference_softmax(score / 256)
        worst = max(worst, float(np.abs(weights / weights.sum() / exact - 1).max()))
        error = float(np.abs(weights / weights.sum() - exact).sum())
        assert error < 0.002
    print(f"largest relative error of a probability within 7 nats: {worst:.4f}")
    assert worst < 0.04


def ita_masses(length: int) -> int:
    """255ths that all tokens of a flat row have together in the integer softmax of ITA.

    Every term of the sum is 2**8 shifted right by its distance from the maximum, here 0. The inverse is
    ``floor((2**8 - 1) * 2**8 / sum)``, and each token's probability, a byte, the inverse shifted right by its distance.
    """
    distance = np.zeros(length, np.int64)
    inverse_sum = (2**8 - 1) * 2**8 // int((2**8 >> distance).sum())
    return int((inverse_sum >> distance).sum())


@pytest.mark.parametrize(
    ("length", "ita"),
    [(1, 255), (16, 240), (64, 192), (100, 200), (128, 128), (200, 200), (255, 255), (256, 0), (4096, 0), (32768, 0)],
)
def test_flat_rows_keep_their_mass(length, ita):
    """Where 8-bit probabilities lose some, and beyond 255 tokens all of it."""
    assert ita_masses(length) == ita
    mass, _, _ = masses(flat(length))
    assert mass.sum() == ONE
    assert mass.max() - mass.min() <= 2
