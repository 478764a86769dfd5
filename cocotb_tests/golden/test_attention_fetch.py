"""What attention reads: against plain loops, and that nothing else counts."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from cocotb_tests.golden.attention_cases import NARROW, SETTINGS, prepared
from cocotb_tests.golden.draws import generator
from golden.attention import Fetch, attend, coarse_levels
from golden.hcap.estimator import upper_nibble
from golden.mha.scores import prepare_query, scores
from golden.settings import KvoSettings
from golden.state import HeadState


def check_fetch(made: HeadState, fetch: Fetch) -> None:
    """What holds of every fetch."""
    groups, s = made.groups, made.settings
    g = len(groups.run_length)
    assert fetch.scanned[0] and (~fetch.scanned).sum() <= g * s.history_drop
    for part in (fetch.lower, fetch.k_delta, fetch.v_salient, fetch.v_delta):
        assert not part[:, ~fetch.scanned].any()
    assert not (fetch.v_salient & ~fetch.lower).any()
    assert not (fetch.v_delta & ~fetch.k_delta).any()
    assert fetch.k_delta.sum(axis=(1, 2)).max() <= g * s.group_tokens * s.keep_fraction
    for group, owner in enumerate(groups.base_of):
        for base in np.unique(owner):
            run = fetch.k_delta[:, group, owner == base]
            assert (run.any(axis=1) == run.all(axis=1)).all()  # runs whole or not at all


@pytest.mark.parametrize("delta_bits", [2, 4])
def test_fetches_whole_runs_of_scanned_groups_within_the_limit(delta_bits):
    made, q = prepared("fetch", replace(SETTINGS, delta_bits=delta_bits, value_margin=6.0), groups=20, count=16)
    _, fetch = attend(made, q, shift=15)
    check_fetch(made, fetch)
    for name in ("lower", "k_delta", "v_salient", "v_delta"):
        assert getattr(fetch, name).any() and not getattr(fetch, name).all(), name
    assert not fetch.scanned.all()


def plain_selection(made: HeadState, q: np.ndarray, shift: int, scanned: np.ndarray) -> list[dict[str, set]]:
    """What each query fetches: sets of (group, base) or (group, row), by loops over scores."""
    s, groups, bits = made.settings, made.groups, made.settings.delta_bits
    query, count = prepare_query(q, made.calibration.k_shape), q.shape[1]
    bases = [(g, b) for g in np.flatnonzero(scanned).tolist() for b in range(groups.run_length.shape[1])]
    int8 = scores(query.codes, query.scale, made.k_codes, made.k_scale, shift=shift).astype(int)

    def of_bases(codes: np.ndarray) -> dict:
        made = {}
        for g, b in bases:
            row, scale = codes[g, b][None], groups.k_base_scale[g, b][None]
            made[g, b] = scores(query.codes, query.scale, row, scale, shift=shift)[..., 0].astype(int)
        return made

    exact, estimate = of_bases(groups.k_base), of_bases(upper_nibble(groups.k_base))
    margin = KvoSettings.fixed_point
    limit = (round(s.keep_fraction * 256) * len(made.closed) * s.group_tokens) >> 8
    fetched = []
    for i in range(count):
        newest = len(made.k_codes) - count + i + 1
        seen = int8[:, i, :newest].max(axis=1)
        peak = np.maximum(seen, np.max([estimate[b][:, i] for b in bases], axis=0))
        distance = {b: int((peak - estimate[b][:, i]).min()) for b in bases}
        lower = {b for b in bases if distance[b] <= margin(s.estimate_margin)}
        kept, total = set(), 0
        for bin_ in range(128):
            inside = [b for b in bases if distance[b] >> 6 == bin_]
            total += sum(int(groups.run_length[b]) for b in inside)
            if total > limit:
                break
            kept |= {b for b in inside if distance[b] <= margin(s.run_margin)}
        rough = {}
        for g, owners in enumerate(groups.base_of.tolist()):
            for row, b in enumerate(owners):
                if (g, b) in kept:
                    level, scale = coarse_levels(groups.k_level[g, row], bits)[None], groups.k_group_scale[g][None]
                    delta = scores(query.shaped_codes, query.shaped_scale, level, scale, shift=shift + 1)
                    base = exact[g, b] if (g, b) in lower else estimate[g, b]
                    rough[g, row] = base[:, i] + delta[:, i, 0]
        near = {b: exact[b][:, i] for b in lower}
        top = np.max([seen, *near.values(), *rough.values()], axis=0)
        v_margin = margin(s.value_margin)
        fetched.append(
            {
                "lower": lower,
                "k_delta": set(rough),
                "v_salient": {b for b, score in near.items() if (top - score <= v_margin).any()},
                "v_delta": {t for t, score in rough.items() if (top - score <= v_margin).any()},
            }
        )
    return fetched


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("changes", [{}, NARROW, {"run_margin": 3.0, "keep_fraction": 1.0}], ids=["", "narrow", "near"])
def test_selection_matches_plain_loops(delta_bits, changes):
    made, q = prepared("plain", replace(SETTINGS, delta_bits=delta_bits, **changes), count=4)
    before = copy.deepcopy(made)
    _, fetch = attend(made, q, shift=15)
    for i, expected in enumerate(plain_selection(before, q, 15, fetch.scanned)):
        for name, members in expected.items():
            assert {tuple(at) for at in np.argwhere(getattr(fetch, name)[i]).tolist()} == members, name


def test_drops_the_groups_with_the_least_history():
    made, q = prepared("history", SETTINGS, groups=9)
    made.history[:8] = [0, 800, 700, 1 << 20, 600, 1 << 22, 1 << 21, 1 << 20]
    _, fetch = attend(made, q, shift=15)
    # Two of eight may go; the first one is among the two lowest, and stays.
    assert fetch.scanned.tolist() == [True, True, True, True, False, True, True, True]


def other_rows(rows: np.ndarray, where: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The rows with the drawn ones where the mask is set."""
    return np.where(where[..., None], drawn, rows).astype(rows.dtype)


def perturb(made: HeadState, fetch: Fetch, query: int | slice, draw: np.random.Generator) -> HeadState:
    """Another cache, which differs in everything that ``query`` did not fetch."""
    rows = range(len(fetch.lower))[query] if isinstance(query, slice) else [query]
    masks = (getattr(fetch, name)[rows].any(axis=0) for name in ("lower", "k_delta", "v_salient", "v_delta"))
    lower, k_delta, v_salient, v_delta = masks
    groups, half, unseen = made.groups, 1 << (made.settings.delta_bits - 1), ~fetch.scanned
    shape = groups.k_level.shape
    k_base = other_rows(groups.k_base, ~lower, groups.k_base & ~15 | draw.integers(0, 16, groups.k_base.shape))
    k_base = other_rows(k_base, unseen[:, None], draw.integers(-127, 128, k_base.shape))
    # A run whose V is not read shows the upper two bits of its deltas; their other bits may be anything.
    span = half // 2
    magnitude = np.abs(groups.k_level) // 2 // span * span + draw.integers(0, span, shape)
    k_level = other_rows(groups.k_level, k_delta & ~v_delta, np.sign(groups.k_level) * (2 * magnitude + 1))
    k_level = other_rows(k_level, ~k_delta, 2 * draw.integers(-half, half, shape) + 1)

    def scales(codes: np.ndarray) -> np.ndarray:
        """Other scales in groups that are not scanned."""
        drawn = draw.integers(60, 120, codes.shape)
        return np.where(unseen.reshape(-1, *[1] * (codes.ndim - 1)), drawn, codes).astype(np.uint8)

    made = copy.deepcopy(made)
    made.groups = replace(
        groups,
        k_base=k_base,
        k_base_scale=scales(groups.k_base_scale),
        k_group_scale=scales(groups.k_group_scale),
        v_salient_scale=scales(groups.v_salient_scale),
        v_group_scale=scales(groups.v_group_scale),
        k_level=k_level,
        v_salient=other_rows(groups.v_salient, ~v_salient, draw.integers(-127, 128, groups.v_salient.shape)),
        v_level=other_rows(groups.v_level, ~v_delta, 2 * draw.integers(-2, 2, shape) + 1),
    )
    return made


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("changes", [{}, NARROW], ids=["", "narrow"])
def test_what_is_not_fetched_does_not_count(delta_bits, changes):
    """Other content in everything that no query fetched: the same output, mass and fetch, bit for bit."""
    made, q = prepared("perturb", replace(SETTINGS, delta_bits=delta_bits, **changes), groups=20)
    other_draw = generator("other content", delta_bits)
    before = copy.deepcopy(made)
    out, fetch = attend(made, q, shift=15)
    for _ in range(5):
        other = perturb(before, fetch, slice(None), other_draw)
        for name in ("k_base", "k_base_scale", "k_level", "k_group_scale", "v_salient", "v_level"):
            assert (getattr(other.groups, name) != getattr(made.groups, name)).any(), name
        same, other_fetch = attend(other, q, shift=15)
        np.testing.assert_array_equal(same, out)
        np.testing.assert_array_equal(other.mass, made.mass)
        np.testing.assert_array_equal(other.recent, made.recent)
        for name in Fetch.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(other_fetch, name), getattr(fetch, name), err_msg=name)


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("changes", [{}, NARROW], ids=["", "narrow"])
def test_what_one_query_does_not_fetch_does_not_count_for_it(delta_bits, changes):
    made, q = prepared("perturb one", replace(SETTINGS, delta_bits=delta_bits, **changes), groups=20)
    other_draw = generator("other content for one", delta_bits)
    before = copy.deepcopy(made)
    out, fetch = attend(made, q, shift=15)
    for i in range(q.shape[1]):
        same, other_fetch = attend(perturb(before, fetch, i, other_draw), q, shift=15)
        np.testing.assert_array_equal(same[:, i], out[:, i])
        for name in ("lower", "k_delta", "v_salient", "v_delta"):
            np.testing.assert_array_equal(getattr(other_fetch, name)[i], getattr(fetch, name)[i], err_msg=name)


@pytest.mark.parametrize("field", ["k_base", "k_level", "v_salient", "v_level"])
def test_what_is_fetched_counts(field):
    """Other content in what a query fetched of one kind changes what comes out."""
    made, q = prepared("counts", replace(SETTINGS, value_margin=6.0), groups=20, count=16)
    before = copy.deepcopy(made)
    out, fetch = attend(made, q, shift=15)
    mask = {"k_base": "lower", "k_level": "k_delta", "v_salient": "v_salient", "v_level": "v_delta"}[field]
    where = getattr(fetch, mask).any(axis=0)
    assert where.any()
    rows = getattr(before.groups, field)
    other = np.where(where[..., None], -rows, rows).astype(np.int8)
    before.groups = replace(before.groups, **{field: other})
    changed, _ = attend(before, q, shift=15)
    assert (changed != out).any()


def test_estimate_decides_from_upper_nibbles_alone():
    """Bases whose codes lie in the middle of their upper nibble have exact estimates: all that is near is found."""
    made, q = prepared("middles", replace(SETTINGS, history_drop=0.0, keep_fraction=1.0, run_margin=64.0))
    made.groups = replace(made.groups, k_base=upper_nibble(made.groups.k_base))
    whole = copy.deepcopy(made)
    _, fetch = attend(made, q, shift=15)
    moved = copy.deepcopy(whole)
    moved.groups = replace(moved.groups, k_base=(whole.groups.k_base & ~15).astype(np.int8))
    _, other = attend(moved, q, shift=15)
    np.testing.assert_array_equal(fetch.lower, other.lower)
    np.testing.assert_array_equal(fetch.scanned, other.scanned)
