"""Two-phase attention on the compressed cache: error against float, degenerate rows, blocks, mass."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from cocotb_tests.golden.attention_cases import CLOSE, HEADS, SETTINGS, prepared, queries
from cocotb_tests.golden.draws import calibration, clustered, generator, real
from cocotb_tests.golden.plain_attention import Attention, plain_attention
from golden.dsq.compressor import compress
from golden.dsq.dequantizer import expand
from golden.dsq.rotation import rotation_block, rotation_shift
from golden.dsq.row_quantizer import quantize_rows, quantize_token_rows, reconstruct_rows
from golden.dsq.salient import pick_salient
from golden.mha.core import Fetch, attend, delta_planes
from golden.reference import attention, hadamard
from golden.settings import default_settings
from golden.state import Groups, HeadState


def float_rows(made: HeadState) -> tuple[np.ndarray, np.ndarray]:
    """K (rotated domain) and V rows that the cache stands for: compressed groups, then INT8 tokens."""
    c, bits = made.calibration, made.settings.delta_bits
    k, v = zip(*(expand(group, c, delta_bits=bits) for group in made.closed), strict=True) if made.closed else ((), ())
    k_int8, v_int8 = reconstruct_rows(made.k_codes, made.k_scale), reconstruct_rows(made.v_codes, made.v_scale)
    return np.concatenate([*k, k_int8]).astype(float), np.concatenate([*v, v_int8]).astype(float)


def float_attention(made: HeadState, q: np.ndarray, shift: int) -> np.ndarray:
    """The reference's output on the cache's rows, for unquantized queries."""
    head_dim, count = q.shape[2], q.shape[1]
    k, v = float_rows(made)
    scale = np.sqrt(rotation_block(head_dim)) / 2 ** rotation_shift(head_dim) / 2 ** (shift + 8)
    future = np.arange(len(k))[None, :] > np.arange(len(k) - count, len(k))[:, None]
    return np.stack([attention(head @ hadamard(head_dim).T * scale, k, v, masked=future)[0] for head in q])


def relative(error: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Root mean square and largest error, in shares of the expected root mean square."""
    size = np.sqrt((expected**2).mean())
    return float(np.sqrt((error**2).mean()) / size), float(np.abs(error).max() / size)


@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("delta_bits", [2, 4])
def test_without_pruning_it_is_attention_on_the_dequantized_rows(head_dim, delta_bits):
    """INT8 queries, integer scores and weights: errors in shares of V's root mean square."""
    settings = replace(SETTINGS, prune=False, delta_bits=delta_bits)
    made, q = prepared("float", settings, count=16, head_dim=head_dim)
    expected = float_attention(made, q, 15)
    out, _ = attend(made, q, shift=15)
    rms, largest = relative(out - expected, expected)
    print(f"head_dim {head_dim}, {delta_bits} bits: rms {rms:.4f}, max {largest:.4f}")
    assert rms < 0.02 and largest < 0.2


def test_real_rows_without_pruning_are_near_float_attention():
    """K and V of one head of SmolLM2 in compressed groups, synthetic queries along its K rows."""
    settings = replace(default_settings(), prune=False)
    groups = [g for g in real() if (g.layer, g.kv_head) == (14, 0)]
    made = HeadState(settings, groups[0].calibration)
    for g in groups:
        salient = pick_salient(g.mass, g.first_group, salient_tokens=settings.salient_tokens, sink_tokens=4)
        rows = quantize_token_rows(g.k_rows, g.v_rows)
        made.closed.append(compress(*rows, salient, g.calibration, delta_bits=settings.delta_bits))
    made.groups = Groups.stack(made.closed, delta_bits=settings.delta_bits)
    made.recent = made.history = np.zeros(len(groups), np.int64)
    draw = generator("real attention")
    made.append(groups[1].k_rows[:8], groups[1].v_rows[:8])
    directions = groups[1].k_rows[draw.integers(64, size=(HEADS, 8))] - groups[1].k_rows.mean(axis=0)
    q = np.clip(directions + draw.normal(0, 500, directions.shape), -32768, 32767).astype(np.int16)
    expected = float_attention(made, q, 17)
    out, _ = attend(made, q, shift=17)
    rms, largest = relative(out - expected, expected)
    print(f"real rows: rms {rms:.4f}, max {largest:.4f}")
    assert rms < 0.01 and largest < 0.05


def fresh(head_dim: int = 64, **changes) -> tuple[HeadState, np.random.Generator]:
    """An empty cache."""
    draw = generator("fresh", head_dim)
    return HeadState(replace(SETTINGS, **changes), calibration(draw, head_dim)), draw


@pytest.mark.parametrize("size", [4, 40, 400, 4000, 32000])
def test_one_token_gives_its_v_row(size):
    """The INT8 reconstruction itself; below a scale of 8 a tie may round the other way. The mass is exactly one."""
    made, draw = fresh()
    v = np.clip(draw.normal(0, size / 3, (1, 64)), -size, size).astype(np.int16)
    v[0, 0] = size
    made.append(clustered(draw, 1, 64), v)
    out, fetch = attend(made, queries(draw, 1, 64), shift=15)
    codes, scale = quantize_rows(v)
    difference = np.abs(out.astype(int) - reconstruct_rows(codes, scale)).max()
    assert difference == 0 if scale >= 11 << 3 else difference <= 1
    assert made.mass.tolist() == [HEADS * 65536] and made.recent.tolist() == [HEADS * 65536]
    assert not fetch.scanned.size


def test_all_tokens_equal_give_their_v_row_and_equal_mass():
    made, draw = fresh()
    k, v = (np.repeat(clustered(draw, 1, 64), 8, axis=0) for _ in range(2))
    made.append(k, v)
    out, _ = attend(made, queries(draw, 8, 64), shift=15)
    expected = reconstruct_rows(*quantize_rows(v[0]))
    assert (out == expected).all()
    share = sum(HEADS * 65536 / seen for seen in range(8, 0, -1))
    assert abs(made.mass[0] - share) < HEADS * 8 and made.mass.sum() == HEADS * 8 * 65536


@pytest.mark.parametrize("value", [-32768, 32767])
def test_saturated_rows_stay_saturated(value):
    made, _ = fresh()
    made.append(np.full((4, 64), value, np.int16), np.full((4, 64), value, np.int16))
    out, _ = attend(made, np.full((HEADS, 4, 64), value, np.int16), shift=0)
    assert (out == value).all()
    assert made.mass.sum() == HEADS * 4 * 65536


def test_zero_queries_give_the_mean_of_v():
    made, _ = prepared("mean", replace(SETTINGS, prune=False), count=1)
    _, v = float_rows(made)
    out, _ = attend(made, np.zeros((HEADS, 1, 64), np.int16), shift=15)
    assert np.abs(out - v.mean(axis=0)).max() < 3  # V deltas take whole steps in the rows, but not in the sum


def test_all_salient_groups_need_no_deltas():
    made, q = prepared("all salient", replace(SETTINGS, salient_tokens=16), groups=6)
    whole = copy.deepcopy(made)
    whole.settings = replace(made.settings, prune=False)
    expected = float_attention(made, q, 15)
    out, fetch = attend(made, q, shift=15)
    full, _ = attend(whole, q, shift=15)
    assert fetch.k_delta.shape == fetch.v_delta.shape == (6, 5, 0)
    assert np.abs(full - expected).max() < 0.2 * np.sqrt((expected**2).mean())
    assert out.shape == full.shape


def test_one_salient_token_a_group():
    made, q = prepared("one salient", replace(SETTINGS, salient_tokens=1, sink_tokens=1, keep_fraction=1.0), groups=6)
    _, fetch = attend(made, q, shift=15)
    assert fetch.k_delta.shape == (6, 5, 15)
    assert (fetch.k_delta.any(axis=2) == fetch.k_delta.all(axis=2)).all()


def test_mass_of_all_queries_is_one_each():
    for prune in (False, True):
        made, q = prepared("mass", replace(SETTINGS, prune=prune))
        before = made.mass.sum()
        attend(made, q, shift=15)
        missing = 1 - made.recent.sum() / (HEADS * 6 * 65536)
        print(f"mass missing {'with' if prune else 'without'} pruning: {missing:.6f}")
        assert 0 <= missing < 0.001
        assert 0 < made.mass.sum() - before < made.recent.sum()


def test_later_tokens_of_a_block_do_not_count():
    made, q = prepared("causal", replace(SETTINGS, prune=False))
    changed = copy.deepcopy(made)
    changed.k_codes[-1], changed.v_codes[-1] = -changed.k_codes[-1], 99
    changed.k_scale[-1] += 9
    out, _ = attend(made, q, shift=15)
    other, _ = attend(changed, q, shift=15)
    np.testing.assert_array_equal(out[:, :-1], other[:, :-1])
    assert (out[:, -1] != other[:, -1]).any()


def test_a_block_of_queries_equals_one_query_at_a_time():
    """Histories change at group closes alone, so the block sees what its queries see one by one."""
    made, q = prepared("blocks", SETTINGS)
    together, fetch = attend(copy.deepcopy(made), q, shift=15)
    for i in range(q.shape[1]):
        alone = copy.deepcopy(made)
        keep = len(made.k_codes) - q.shape[1] + i + 1
        alone.k_codes, alone.k_scale = made.k_codes[:keep], made.k_scale[:keep]
        alone.v_codes, alone.v_scale = made.v_codes[:keep], made.v_scale[:keep]
        alone.mass = made.mass[:keep].copy()
        out, one = attend(alone, q[:, i : i + 1], shift=15)
        np.testing.assert_array_equal(out[:, 0], together[:, i])
        np.testing.assert_array_equal(one.k_delta[0], fetch.k_delta[i])
        np.testing.assert_array_equal(one.v_delta[0], fetch.v_delta[i])
        np.testing.assert_array_equal(one.v_int8[0], fetch.v_int8[i, :keep])


def test_pruning_that_drops_nothing_changes_nothing():
    open_wide = replace(
        SETTINGS, history_drop=0.0, keep_fraction=1.0, run_margin=64.0, estimate_margin=64.0, value_margin=64.0
    )
    made, q = prepared("wide", open_wide)
    q *= 3  # distances beyond the 32 units that the histogram tells apart
    whole = copy.deepcopy(made)
    whole.settings = replace(open_wide, prune=False)
    out, fetch = attend(made, q, shift=15)
    expected, everything = attend(whole, q, shift=15)
    for name in Fetch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(fetch, name), getattr(everything, name), err_msg=name)
        assert name == "v_int8" or getattr(fetch, name).all()
    np.testing.assert_array_equal(fetch.v_int8, np.tri(6, 22, 16, dtype=bool))  # up to each query's own token
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(made.mass, whole.mass)
    np.testing.assert_array_equal(made.recent, whole.recent)


def test_planes_of_deltas_add_up_to_the_level():
    """The coarse one is the middle of what the upper two bits leave open, the fine one the rest."""
    levels = np.arange(-15, 16, 2).astype(np.int8)
    coarse, fine = delta_planes(levels, 4)
    for level, middle in zip(levels, coarse, strict=True):
        code = (level + 15) // 2
        assert middle == np.mean([2 * c - 15 for c in range(16) if c >> 2 == code >> 2])
    np.testing.assert_array_equal(coarse + fine, levels)
    assert set(fine) == {-3, -1, 1, 3} and coarse.dtype == fine.dtype == np.int8
    np.testing.assert_array_equal(delta_planes(levels[6:10], 2), [[-3, -1, 1, 3], [0, 0, 0, 0]])


def check_plain(plain: Attention, out: np.ndarray, fetch: Fetch, made: HeadState, before: HeadState) -> None:
    """Output, fetch and masses are those of the plain loops."""
    np.testing.assert_array_equal(out.transpose(1, 0, 2), plain.out)
    for i, fetched in enumerate(plain.fetched):
        for name, members in fetched.items():
            assert {tuple(at) for at in np.argwhere(getattr(fetch, name)[i]).tolist()} == members, name
    assert (made.mass - before.mass).tolist() == plain.token_mass
    assert (made.recent - before.recent)[: len(plain.group_mass)].tolist() == plain.group_mass


@pytest.mark.parametrize("delta_bits", [2, 4])
@pytest.mark.parametrize("prune", [True, False])
def test_matches_plain_loops_token_by_token(delta_bits, prune):
    """Everything that attention gives, bit for bit, with tiles that end before, at and behind the last scanned group.

    The shifts take scores from two base-2 units to saturation.
    """
    rises = 0
    for tile_groups, shift in ((1, 12), (2, 15), (2, 11), (4, 12), (4, 9), (4, -2), (8, 12)):
        settings = replace(SETTINGS, delta_bits=delta_bits, prune=prune, tile_groups=tile_groups)
        made, q = prepared("loops", settings, groups=9, count=3, head_dim=16)
        before = copy.deepcopy(made)
        out, fetch = attend(made, q, shift=shift)
        plain = plain_attention(before, q, shift, np.flatnonzero(fetch.scanned).tolist())
        check_plain(plain, out, fetch, made, before)
        rises += plain.rises
    print(f"{delta_bits} bits: a maximum rose {rises} times within a group")
    assert rises > 5


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("places", [[0], [2], [1, 4], [2, 3], [0, 1, 2, 3, 4, 5]])
def test_faulty_groups_keep_their_place_in_a_tile_and_give_nothing(prune, places):
    """The first group, one within a tile, a whole tile of two, all of them; beside them one that is not scanned."""
    settings = replace(SETTINGS, prune=prune, tile_groups=2)
    made, q = prepared("faulty", settings, groups=8, count=2, head_dim=16)
    before, sound = copy.deepcopy(made), copy.deepcopy(made)
    _, whole = attend(sound, q, shift=12)
    listed = np.flatnonzero(whole.scanned)
    faulty = {int(g) for g in listed[places]} | {int(g) for g in np.flatnonzero(~whole.scanned)[:1]}
    out, fetch = attend(made, q, shift=12, faulty=faulty)
    assert np.flatnonzero(fetch.scanned).tolist() == [g for g in listed if g not in faulty]
    check_plain(plain_attention(before, q, 12, listed.tolist(), faulty), out, fetch, made, before)
    assert (made.recent != sound.recent).any()


def test_mass_of_groups_is_what_the_history_gets():
    """Groups and INT8 tokens of which no V is read get none; other tokens count for the waiting or the open group."""
    made, q = prepared("group mass", replace(SETTINGS, **CLOSE))
    made.history[3] = 0
    before = copy.deepcopy(made)
    _, fetch = attend(made, q, shift=15)
    gained, tokens = made.recent - before.recent, made.mass - before.mass
    read = fetch.v_salient.any(axis=(0, 2)) | fetch.v_delta.any(axis=(0, 2))
    assert gained[:-2].any() and not gained[:-2][~read].any()
    assert not fetch.scanned[3] and not read[~fetch.scanned].any()
    assert gained[-2:].tolist() == [tokens[:16].sum(), tokens[16:].sum()]
    unread = ~fetch.v_int8.any(axis=0)
    assert unread.any() and not tokens[unread].any() and tokens[~unread].any()
