"""What attention reads: against plain loops, and that nothing else counts."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from cocotb_tests.golden.attention_cases import CLOSE, NARROW, SETTINGS, prepared
from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.plain_attention import plain_selection
from golden.hcap.estimator import upper_nibble
from golden.mha.core import Fetch, attend
from golden.mha.query import prepare_query
from golden.mha.scores import scores
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
    scanned = np.flatnonzero(fetch.scanned)
    for start in range(0, len(scanned), s.tile_groups):
        tile = scanned[start : start + s.tile_groups]
        assert fetch.k_delta[:, tile].sum(axis=(1, 2)).max() <= len(tile) * s.group_tokens * s.keep_fraction
    for group, owner in enumerate(groups.base_of):
        for base in np.unique(owner):
            run = fetch.k_delta[:, group, owner == base]
            assert (run.any(axis=1) == run.all(axis=1)).all()  # runs whole or not at all
    n, tokens = fetch.v_int8.shape
    assert tokens == len(made.k_codes) and not fetch.v_int8[~np.tri(n, tokens, tokens - n, dtype=bool)].any()
    assert fetch.v_int8.any(axis=1).all()  # the largest score is no distance from itself


@pytest.mark.parametrize("tile_groups", [2, 8, 64])
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_fetches_whole_runs_of_scanned_groups_within_the_limit(delta_bits, tile_groups):
    """The limit is a share of the tokens of each tile."""
    settings = replace(SETTINGS, delta_bits=delta_bits, value_margin=6.0, tile_groups=tile_groups)
    made, q = prepared("fetch", settings, groups=20, count=16)
    made.history[3] = 0
    _, fetch = attend(made, q, shift=15)
    check_fetch(made, fetch)
    for name in ("lower", "k_delta", "v_salient", "v_delta"):
        assert getattr(fetch, name).any() and not getattr(fetch, name).all(), name
    assert not fetch.scanned.all()


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize(
    "changes",
    [{}, NARROW, CLOSE, {"run_margin": 3.0, "keep_fraction": 1.0}, {"tile_groups": 2}, {"tile_groups": 4, **NARROW}],
    ids=["", "narrow", "close", "near", "tiles", "narrow tiles"],
)
def test_selection_matches_plain_loops(delta_bits, changes):
    made, q = prepared("plain", replace(SETTINGS, delta_bits=delta_bits, **changes), count=4)
    before = copy.deepcopy(made)
    _, fetch = attend(made, q, shift=15)
    query, scanned = prepare_query(q, before.calibration.k_shape), np.flatnonzero(fetch.scanned).tolist()
    assert len(scanned) > 4
    for i in range(4):
        expected, _ = plain_selection(before, query, i, len(before.k_codes) - 3 + i, 15, scanned)
        for name, members in expected.items():
            assert {tuple(at) for at in np.argwhere(getattr(fetch, name)[i]).tolist()} == members, name


def test_tiles_count_scanned_groups():
    """One tile of all scanned groups is what larger tiles are too; smaller tiles choose otherwise."""
    made, q = prepared("tiles", replace(SETTINGS, history_drop=0.5), groups=18)
    fetches = {}
    for tile_groups in (2, 8, 16, 1024):
        other = copy.deepcopy(made)
        other.settings = replace(made.settings, tile_groups=tile_groups)
        fetches[tile_groups] = attend(other, q, shift=15)[1]
    scanned = int(fetches[16].scanned.sum())
    assert 8 < scanned <= 16 < len(made.groups.run_length)
    for name in Fetch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(fetches[16], name), getattr(fetches[1024], name), err_msg=name)
    assert (fetches[8].k_delta != fetches[16].k_delta).any() and (fetches[2].k_delta != fetches[8].k_delta).any()


def test_later_tiles_do_not_change_what_earlier_ones_fetch():
    """Other records behind the first four scanned groups: those are fetched alike, output and mass are not."""
    made, q = prepared("later", replace(SETTINGS, tile_groups=4, value_margin=6.0), groups=14)
    draw, other = generator("later content"), copy.deepcopy(made)
    _, fetch = attend(made, q, shift=15)
    first, later = np.flatnonzero(fetch.scanned)[:4], np.flatnonzero(fetch.scanned)[4:]
    k_base = other.groups.k_base.copy()
    k_base[later] = draw.integers(-127, 128, k_base[later].shape)
    other.groups = replace(other.groups, k_base=k_base)
    _, changed = attend(other, q, shift=15)
    for name in ("lower", "k_delta", "v_salient", "v_delta"):
        np.testing.assert_array_equal(getattr(changed, name)[:, first], getattr(fetch, name)[:, first], err_msg=name)
        assert (getattr(changed, name) != getattr(fetch, name)).any()
    assert (other.mass != made.mass).any()


def test_value_margin_counts_from_the_groups_so_far():
    """A base with the highest score by far closes V to the tokens of later groups, not to those of earlier ones."""
    settings = replace(SETTINGS, history_drop=0.0, keep_fraction=1.0, run_margin=64.0, estimate_margin=64.0)
    made, q = prepared("running top", replace(settings, value_margin=8.0), groups=14)
    q[:] = q[0] // 2
    place, codes, scale = 6, made.groups.k_base.copy(), made.groups.k_base_scale.copy()
    codes[place, 0] = prepare_query(q[0, -1], made.calibration.k_shape).codes  # along the last query
    scale[place, 0] = scale.max() + 16
    other = copy.deepcopy(made)
    other.groups = replace(made.groups, k_base=codes, k_base_scale=scale)
    (_, before), (_, after) = attend(made, q, shift=15), attend(other, q, shift=15)
    for name in ("v_salient", "v_delta"):
        was, now = getattr(before, name)[-1], getattr(after, name)[-1]
        np.testing.assert_array_equal(now[:place], was[:place])
        assert was[:place].any() and was[place + 1 :].any() and not now[place + 1 :].any(), name
    assert after.v_salient[-1, place].tolist() == [True, False, False, False]
    np.testing.assert_array_equal(after.v_int8, before.v_int8)  # INT8 tokens come before all groups


def test_value_margin_of_int8_tokens_counts_from_the_largest_of_their_scores():
    """Any head will do, a token at the margin is read, one a unit of 2**-8 beyond is not; K of both counts."""
    made, q = prepared("margin", SETTINGS, count=1)
    query = prepare_query(q, made.calibration.k_shape)
    score = scores(query.codes, query.scale, made.k_codes, made.k_scale, shift=15)[:, 0].astype(int)
    below = (score.max(axis=1, keepdims=True) - score).min(axis=0)
    for token, distance in enumerate(below.tolist()):
        for margin, read in ((distance, True), (distance - 1, False)):
            if margin < 0:
                continue
            other = copy.deepcopy(made)
            other.settings = replace(made.settings, value_margin=margin / 256 / np.log2(np.e))
            assert KvoSettings.fixed_point(other.settings.value_margin) == margin
            _, fetch = attend(other, q, shift=15)
            assert fetch.v_int8[0, token] == read
            np.testing.assert_array_equal(fetch.v_int8[0], below <= margin)


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
    v_unread = ~fetch.v_int8[rows].any(axis=0)
    made.v_codes = other_rows(made.v_codes, v_unread, draw.integers(-127, 128, made.v_codes.shape))
    made.v_scale = np.where(v_unread, draw.integers(60, 120, len(v_unread)), made.v_scale).astype(np.uint8)
    return made


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("changes", [{}, NARROW, CLOSE, {"tile_groups": 4}], ids=["", "narrow", "close", "tiles"])
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
        unread = ~fetch.v_int8.any(axis=0)
        assert (other.v_codes != made.v_codes).any(axis=1).tolist() == unread.tolist()
        assert unread.any() or changes != CLOSE
        same, other_fetch = attend(other, q, shift=15)
        np.testing.assert_array_equal(same, out)
        np.testing.assert_array_equal(other.mass, made.mass)
        np.testing.assert_array_equal(other.recent, made.recent)
        for name in Fetch.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(other_fetch, name), getattr(fetch, name), err_msg=name)


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("changes", [{}, NARROW, CLOSE, {"tile_groups": 4}], ids=["", "narrow", "close", "tiles"])
def test_what_one_query_does_not_fetch_does_not_count_for_it(delta_bits, changes):
    made, q = prepared("perturb one", replace(SETTINGS, delta_bits=delta_bits, **changes), groups=20)
    other_draw = generator("other content for one", delta_bits)
    before = copy.deepcopy(made)
    out, fetch = attend(made, q, shift=15)
    for i in range(q.shape[1]):
        same, other_fetch = attend(perturb(before, fetch, i, other_draw), q, shift=15)
        np.testing.assert_array_equal(same[:, i], out[:, i])
        for name in ("lower", "k_delta", "v_salient", "v_delta", "v_int8"):
            np.testing.assert_array_equal(getattr(other_fetch, name)[i], getattr(fetch, name)[i], err_msg=name)


@pytest.mark.parametrize(
    ("mask", "field"),
    [
        ("lower", "k_base"),
        ("k_delta", "k_level"),
        ("v_salient", "v_salient"),
        ("v_delta", "v_level"),
        ("v_int8", "v_codes"),
    ],
)
def test_what_is_fetched_counts(mask, field):
    """Other content in what a query fetched of one kind changes what comes out."""
    made, q = prepared("counts", replace(SETTINGS, value_margin=6.0), groups=20, count=16)
    before = copy.deepcopy(made)
    out, fetch = attend(made, q, shift=15)
    where = getattr(fetch, mask).any(axis=0)
    assert where.any()
    rows = before.v_codes if field == "v_codes" else getattr(before.groups, field)
    other = np.where(where[..., None], -rows, rows).astype(np.int8)
    if field == "v_codes":
        before.v_codes = other
    else:
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
