"""HCAP: history and its codes, dropped groups, estimates, candidates and kept runs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cocotb_tests.golden.draws import clustered, generator
from golden.dsq.row_quantizer import quantize_rows
from golden.hcap.estimator import lower_nibble, upper_nibble
from golden.hcap.history import HISTORY_BITS, history_code, select_groups, update_history
from golden.hcap.selector import BIN_SHIFT, BINS, keep_limit, select_runs
from golden.mha.scores import scores
from golden.reference import keep_runs

TOP = (1 << HISTORY_BITS) - 1
HISTORIES = hnp.arrays(np.int64, st.integers(1, 40), elements=st.one_of(st.integers(0, 20), st.integers(0, TOP)))
#: about the largest distance that scores of 24 bits allow
FARTHEST = 1 << 25


@given(st.integers(0, TOP), st.integers(0, TOP))
def test_history_halves_and_adds(history, mass):
    assert update_history(np.array([history]), np.array([mass])).tolist() == [min(history // 2 + mass, TOP)]


def test_history_of_constant_mass_stays_below_its_double():
    history = np.zeros(1, np.int64)
    for _ in range(50):
        history = update_history(history, np.array([1000]))
    assert history.tolist() == [1999]


def test_history_saturates():
    assert update_history(np.array([TOP, TOP, 0]), np.array([TOP, 0, TOP])).tolist() == [TOP, TOP // 2, TOP]


def test_history_code_grows_with_the_history():
    values = sorted({0, TOP, *(m << e >> 4 for m in range(8, 16) for e in range(HISTORY_BITS + 1))})
    codes = history_code(np.array(values)).tolist()
    assert all(low <= high for low, high in pairwise(codes))
    assert codes[0] == 0 and codes[-1] == 239


@given(st.integers(8, TOP))
def test_history_code_is_length_and_three_bits(history):
    length = history.bit_length()
    assert history_code(np.array([history])).tolist() == [8 * (length - 3) + (history >> (length - 4)) % 8]


def test_history_codes_below_eight_are_the_history():
    assert history_code(np.arange(17)).tolist() == [*range(16), 16]


@given(HISTORIES, st.integers(0, 45))
def test_groups_drop_whole_codes_from_the_lowest_on(history, drop_count):
    code = history_code(history).tolist()
    dropped: list[int] = []
    for value in sorted(set(code)):
        equal = [i for i, c in enumerate(code) if c == value]
        if len(dropped) + len(equal) > drop_count:
            break
        dropped += equal
    scanned = select_groups(history, drop_count=drop_count)
    assert scanned.tolist() == [i == 0 or i not in dropped for i in range(len(code))]
    assert (~scanned).sum() <= drop_count


def test_groups_of_equal_history_stay_or_go_together():
    history = np.array([5, 9, 5, 5, 9])
    assert select_groups(history, drop_count=2).all()
    assert select_groups(history, drop_count=3).tolist() == [True, True, False, False, True]


def test_first_group_is_always_scanned():
    history = np.array([0, 3, 2, 1])
    assert select_groups(history, drop_count=1).all()  # the first group alone lies below the threshold, and stays
    assert select_groups(history, drop_count=4).tolist() == [True, False, False, False]
    assert select_groups(np.array([0]), drop_count=1).tolist() == [True]
    assert select_groups(history, drop_count=0).all()


def test_groups_are_selected_row_by_row():
    history = generator("rows").integers(0, 3000, (5, 30))
    together = select_groups(history, drop_count=10)
    for row, scanned in zip(history, together, strict=True):
        np.testing.assert_array_equal(select_groups(row, drop_count=10), scanned)


def test_upper_nibble_lies_within_eight_codes():
    codes = np.arange(-128, 128).astype(np.int8)
    rough = upper_nibble(codes).astype(int)
    assert rough.min() == -120 and rough.max() == 120
    difference = rough - codes
    assert difference.min() == -7 and difference.max() == 8
    assert len(set(rough)) == 16


def test_upper_nibble_does_not_see_the_lower_one():
    lowest = np.arange(-128, 128, 16)
    for lower in range(16):
        seen = upper_nibble((lowest + lower).astype(np.int8))
        np.testing.assert_array_equal(seen, lowest + 8)


def test_lower_nibble_is_what_the_upper_one_leaves():
    codes = np.arange(-128, 128).astype(np.int8)
    lower = lower_nibble(codes)
    np.testing.assert_array_equal(upper_nibble(codes).astype(int) + lower, codes)
    np.testing.assert_array_equal(lower, np.tile(np.arange(-8, 8), 16))
    assert lower.dtype == upper_nibble(codes).dtype == np.int8


def test_planes_of_a_score_add_up_within_a_unit():
    """Each is rounded on its own: their sum lies at most one unit from the score of the whole codes."""
    draw = generator("planes")
    k_codes, k_scale = quantize_rows(clustered(draw, 300, 64))
    q_codes, q_scale = quantize_rows(clustered(draw, 30, 64))
    planes = [scores(q_codes, q_scale, half(k_codes), k_scale, shift=22) for half in (upper_nibble, lower_nibble)]
    difference = sum(planes) - scores(q_codes, q_scale, k_codes, k_scale, shift=22)
    assert set(np.unique(difference)) == {-1, 0, 1}


def test_estimates_follow_the_exact_scores():
    draw = generator("estimates")
    k_codes, k_scale = quantize_rows(clustered(draw, 500, 64))
    q_codes, q_scale = quantize_rows(clustered(draw, 50, 64))
    exact = scores(q_codes, q_scale, k_codes, k_scale, shift=22)
    rough = scores(q_codes, q_scale, upper_nibble(k_codes), k_scale, shift=22)
    correlation = np.corrcoef(exact.ravel(), rough.ravel())[0, 1]
    print(f"correlation of estimates and exact scores: {correlation:.4f}")
    assert correlation > 0.99


DISTANCES = st.one_of(st.integers(0, 4000), st.integers(0, BINS << BIN_SHIFT), st.integers(0, FARTHEST))


@given(st.floats(0, 1), st.integers(0, 1024 * 128))
def test_limit_is_a_share_in_256ths(share, tokens):
    assert keep_limit(share, tokens) == round(share * 256) * tokens // 256
    assert keep_limit(0.0, tokens) == 0 and keep_limit(1.0, tokens) == tokens


@st.composite
def selections(draw):
    """Distances of one query's bases, their runs, a margin and a limit."""
    pairs = draw(st.lists(st.tuples(DISTANCES, st.integers(0, 20)), min_size=1, max_size=20))
    distance, run_length = (np.array(column) for column in zip(*pairs, strict=True))
    return distance.astype(np.int32), run_length, draw(st.integers(0, 24000)), draw(st.integers(0, 300))


@given(selections())
def test_kept_runs_match_a_plain_histogram(selection):
    distance, run_length, margin, keep_count = selection
    kept = select_runs(distance, run_length, run_margin=margin, keep_count=keep_count)
    expected, total = np.zeros(len(distance), bool), 0
    for b in range(BINS + 1):
        inside = [i for i, d in enumerate(distance.tolist()) if (d // 64 == b if b < BINS else d >= 8192)]
        total += int(run_length[inside].sum())
        if total > keep_count:
            break
        expected[inside] = True
    np.testing.assert_array_equal(kept, expected & (distance <= margin))
    assert run_length[kept].sum() <= keep_count


@given(selections())
def test_kept_runs_agree_with_sorting_up_to_a_bin(selection):
    """Never more than sorting keeps; what is missing lies in the bin where the limit falls."""
    distance, run_length, margin, keep_count = selection
    kept = select_runs(distance, run_length, run_margin=margin, keep_count=keep_count)
    sorted_kept = keep_runs(distance.astype(float), run_length, margin=margin, keep_count=keep_count)
    # Runs without tokens do not count towards the limit, so sorting may leave out some that the histogram keeps.
    assert not (kept & ~sorted_kept & (run_length > 0)).any()
    bins = np.minimum(distance >> BIN_SHIFT, BINS)
    assert len(set(bins[sorted_kept & ~kept & (run_length > 0)])) <= 1


def test_limit_of_zero_keeps_runs_without_tokens_alone():
    distance, run_length = np.array([0, 100, 200], np.int32), np.array([0, 4, 0])
    assert select_runs(distance, run_length, run_margin=1000, keep_count=0).tolist() == [True, False, False]


@pytest.mark.parametrize("margin", [1000, 23637])
def test_limit_of_all_tokens_leaves_the_margin_alone(margin):
    distance = np.array([0, 999, 1000, 1001, 8191, 8192, margin, margin + 1, FARTHEST], np.int32)
    kept = select_runs(distance, np.full(9, 4), run_margin=margin, keep_count=36)
    assert kept.tolist() == (distance <= margin).tolist()


def test_distances_beyond_the_last_bin_share_one_bin():
    """They stay or go together, and count like those of any other bin, beyond the margin too."""
    last = BINS << BIN_SHIFT
    distance, run_length = np.array([0, last - 1, last, 2 * last, FARTHEST], np.int32), np.array([1, 1, 5, 2, 3])
    for keep_count, nearest in ((12, 4), (11, 2), (2, 2), (1, 1), (0, 0)):
        kept = select_runs(distance, run_length, run_margin=23637, keep_count=keep_count)
        assert kept.tolist() == [i < nearest for i in range(5)], keep_count
    assert select_runs(distance[2:3], run_length[2:3], run_margin=last - 1, keep_count=100).tolist() == [False]


def test_queries_are_selected_one_by_one():
    draw = generator("queries")
    distance = draw.integers(0, 6000, (7, 50)).astype(np.int32)
    run_length = draw.integers(0, 9, 50)
    together = select_runs(distance, run_length, run_margin=3000, keep_count=90)
    for row, kept in zip(distance, together, strict=True):
        np.testing.assert_array_equal(select_runs(row, run_length, run_margin=3000, keep_count=90), kept)
