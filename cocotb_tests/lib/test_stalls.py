"""Stall patterns repeat for a seed and have the rates that they promise."""

from itertools import islice, pairwise

import pytest

from cocotb_tests.lib import stalls


def _share(pattern, count=20_000):
    return sum(islice(pattern, count)) / count


def test_random_stalls_repeat_for_a_seed():
    assert list(islice(stalls.random(5, 0.3), 100)) == list(islice(stalls.random(5, 0.3), 100))
    assert list(islice(stalls.random(5, 0.3), 100)) != list(islice(stalls.random(6, 0.3), 100))


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8])
def test_random_stalls_keep_their_rate(probability):
    assert _share(stalls.random(1, probability)) == pytest.approx(probability, abs=0.02)


def test_bursty_stalls_come_in_runs():
    pattern = list(islice(stalls.bursty(1, flow=30, pause=10), 20_000))
    changes = sum(a != b for a, b in pairwise(pattern))
    assert sum(pattern) / len(pattern) == pytest.approx(0.25, abs=0.05)
    assert 2 * len(pattern) / changes == pytest.approx(40, rel=0.15)


def test_every_stalls_once_per_period():
    assert list(islice(stalls.every(3), 6)) == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", ["random", "heavy", "bursty", "every2"])
def test_named_stalls_stall_and_flow(name):
    assert 0.0 < _share(stalls.named(name, "seed"), 1000) < 1.0


def test_named_none_never_stalls():
    assert stalls.named("none", 1) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: next(stalls.random(1, 1.0)), r"probability must be in \[0, 1\), not 1.0"),
        (lambda: next(stalls.every(1)), r"period must be at least 2, not 1"),
        (lambda: next(stalls.bursty(1, 0.5)), r"flow and pause must be at least 1 cycle, not 0.5 and 20.0"),
        (lambda: stalls.named("odd", 1), r"stall pattern must be one of .*, not 'odd'"),
    ],
)
def test_rejects_bad_patterns(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
