"""The salient pick against a plain sort; ties, sinks, all and one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.dsq.salient import pick_salient

MASSES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)), min_size=16, max_size=24)


def plain(mass: list[int], first_group: bool, salient_tokens: int, sink_tokens: int) -> list[int]:
    """One token after the other: the best one that is left."""
    left, taken = list(range(len(mass))), []
    while len(taken) < salient_tokens:
        sinks = [t for t in left if first_group and t < sink_tokens]
        best = max(sinks or left, key=lambda t: (mass[t], -t))
        left.remove(best)
        taken.append(best)
    return sorted(taken)


@given(MASSES, st.booleans(), st.integers(1, 24), st.integers(0, 24))
def test_matches_a_plain_selection(mass, first_group, salient, sinks):
    salient = min(salient, len(mass))
    made = pick_salient(np.array(mass, np.uint32), first_group, salient_tokens=salient, sink_tokens=sinks)
    assert made.tolist() == plain(mass, first_group, salient, sinks)


def test_equal_masses_pick_the_first_tokens():
    for mass in (0, 7, 2**32 - 1):
        equal = np.full(64, mass, np.uint32)
        assert pick_salient(equal, False, salient_tokens=13).tolist() == list(range(13))


def test_sinks_win_in_the_first_group_alone():
    mass = np.arange(64, dtype=np.uint32)
    assert pick_salient(mass, True, salient_tokens=6).tolist() == [0, 1, 2, 3, 62, 63]
    assert pick_salient(mass, False, salient_tokens=6).tolist() == [58, 59, 60, 61, 62, 63]
    assert pick_salient(mass, True, salient_tokens=2, sink_tokens=0).tolist() == [62, 63]


def test_sinks_compete_by_mass_when_they_are_too_many():
    mass = np.arange(64, dtype=np.uint32)
    assert pick_salient(mass, True, salient_tokens=2, sink_tokens=4).tolist() == [2, 3]
    assert pick_salient(np.zeros(64, np.uint32), True, salient_tokens=2, sink_tokens=4).tolist() == [0, 1]


@pytest.mark.parametrize("first_group", [False, True])
def test_all_salient_gives_every_token(first_group):
    mass = np.arange(64, dtype=np.uint32)[::-1].copy()
    assert pick_salient(mass, first_group, salient_tokens=64).tolist() == list(range(64))


def test_one_salient_is_the_heaviest():
    mass = np.ones(64, np.uint32)
    mass[41] = 2
    assert pick_salient(mass, False, salient_tokens=1).tolist() == [41]
    assert pick_salient(mass, True, salient_tokens=1, sink_tokens=1).tolist() == [0]
