"""Base-2 softmax: table, integer maximum, weights, mass of rows of any length, streaming form."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import generator
from golden.mha.softmax import EXP2, MASKED, integer_maximum, normalize, softmax, softmax_streaming
from golden.reference import softmax as reference_softmax

ONE = 1 << 16
LENGTHS = [1, 2, 3, 5, 16, 64, 100, 255, 256, 257, 600, 1000, 3000, 4096, 10000, 30000, 32768]
#: scores of 24 bits
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


ROWS = pytest.mark.parametrize(("kind", "length"), list(itertools.product([flat, peaked, spread, ramp], LENGTHS)))


def plain(score: np.ndarray) -> np.ndarray:
    """Weights against the row's own maximum."""
    return softmax(score, integer_maximum(score))


def test_table_is_half_up_of_the_exact_powers():
    """``t - 1/2 <= 2**(15 + f/256) < t + 1/2``, in integers after 256th powers."""
    assert len(EXP2) == 256
    for f, t in enumerate(EXP2.tolist()):
        assert (2 * t - 1) ** 256 <= 1 << (16 * 256 + f) < (2 * t + 1) ** 256


@given(st.integers(-LIMIT, LIMIT - 1))
def test_maximum_is_the_next_whole_unit_above(score):
    maximum = int(integer_maximum(np.array([score, MASKED], np.int32)))
    assert (maximum - 1) * 256 <= score < maximum * 256


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


@ROWS
def test_mass_of_a_row_is_one(kind, length):
    """Exactly, whatever the length; the real-valued shares sum to one as well."""
    weights = plain(kind(length))
    assert normalize(weights).sum() == ONE
    assert abs((weights / weights.sum()).sum() - 1) < 1e-9


@ROWS
def test_mass_of_a_token_lies_less_than_a_unit_from_its_share(kind, length):
    weights = plain(kind(length))
    assert np.abs(normalize(weights) - weights * (ONE / weights.sum())).max() < 1


@given(st.lists(st.one_of(st.integers(0, 65535), st.integers(0, 2)), min_size=1, max_size=50))
def test_mass_matches_exact_integers(weights):
    total = sum(weights)
    upto = [(2 * ONE * part + total) // (2 * total) if total else 0 for part in itertools.accumulate(weights)]
    expected = [b - a for a, b in itertools.pairwise([0, *upto])]
    assert normalize(np.array(weights, np.int32)).tolist() == expected


def test_mass_of_one_token_is_one():
    for score in (-LIMIT, -1, 0, 77, LIMIT - 1):
        assert normalize(plain(np.array([score], np.int32))).tolist() == [ONE]


def test_mass_of_equal_tokens_is_equal_where_it_divides():
    for length in (2, 16, 4096, 32768, 65536):
        np.testing.assert_array_equal(normalize(plain(flat(length))), ONE // length)


def test_masked_scores_have_no_weight():
    score = np.array([100, MASKED, 50, MASKED], np.int32)
    assert plain(score)[[1, 3]].tolist() == [0, 0]
    assert normalize(plain(score))[[1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("length", [1, 2, 64, 1000])
def test_fully_masked_row_gives_zeros(length):
    score = np.full((3, length), MASKED, np.int32)
    assert integer_maximum(score).tolist() == [0, 0, 0]
    assert not plain(score).any()
    assert not normalize(plain(score)).any()
    weights, maximum, total = softmax_streaming(np.array_split(score[0], 3))
    assert (maximum, total) == (0, 0) and not np.concatenate(weights).any()


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


def split(score: np.ndarray, seed: int) -> list[np.ndarray]:
    """Random chunks, one of them empty now and then."""
    draw = np.random.default_rng(seed)
    return np.split(score, np.sort(draw.integers(0, len(score) + 1, draw.integers(0, 9))))


@given(st.sampled_from([flat, peaked, spread, ramp]), st.integers(1, 400), st.integers(0, 2**32))
def test_streaming_differs_by_less_than_its_bound(kind, length, seed):
    draw = np.random.default_rng(seed)
    score = np.where(draw.random(length) < 0.1, MASKED, draw.permutation(kind(length)) if seed % 2 else kind(length))
    chunks = split(score.astype(np.int32), seed)
    weights, maximum, total = softmax_streaming(chunks)
    assert maximum == integer_maximum(score)
    sums = int(plain(score).sum())
    highest, added, before = None, 0, 0
    for chunk, made in zip(chunks, weights, strict=True):
        live = chunk[chunk != MASKED]
        if live.size and (highest is None or int(integer_maximum(live)) > highest):
            highest, before = int(integer_maximum(live)), added
        added += int((made > 0).sum())
        reference = softmax(chunk, np.array(0 if highest is None else highest, np.int32))
        np.testing.assert_array_equal(made, reference)
    assert 0 <= total - sums <= max(before - 1, 0) or (before == 0 and total == sums)


def test_streaming_in_one_chunk_is_the_plain_form():
    score = spread(500)
    weights, maximum, total = softmax_streaming([score])
    np.testing.assert_array_equal(weights[0], plain(score))
    assert (maximum, total) == (integer_maximum(score), plain(score).sum())


def test_streaming_error_is_small_on_growing_rows():
    """Token by token over rows whose maximum rises again and again."""
    worst = 0.0
    for length in (10, 100, 1000, 4096):
        for step in (3, 17, 64, 300):
            score = (np.arange(length) * step - (1 << 20)).astype(np.int32)
            _, _, total = softmax_streaming(score.reshape(-1, 1))
            sums = int(plain(score).sum())
            assert total >= sums
            worst = max(worst, (total - sums) / sums)
    print(f"largest excess of the streaming sum on growing rows: {worst:.5f}")
    assert worst < 0.0005


def test_streaming_keeps_more_of_a_long_tail_before_a_peak():
    """The worst order: every weight of the tail loses almost a unit in the plain form, nothing in the streaming one."""
    tail, peak = np.full(1000, -14 * 256 - 1, np.int32), np.zeros(1, np.int32)
    _, _, total = softmax_streaming([tail, peak])
    assert plain(np.concatenate([tail, peak])).sum() == 1000 + 32768
    assert total == (1000 * 65359 >> 15) + 32768 == 1994 + 32768
