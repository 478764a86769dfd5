"""Two-phase attention on the compressed cache: error against float, degenerate rows, blocks, mass."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from cocotb_tests.golden.attention_cases import HEADS, SETTINGS, prepared, queries
from cocotb_tests.golden.draws import calibration, clustered, generator, real
from golden.attention import Fetch, attend, coarse_levels
from golden.dsq.compressor import compress
from golden.dsq.dequantizer import decode_deltas, expand
from golden.dsq.rotation import rotation_block, rotation_shift
from golden.dsq.row_quantizer import quantize_rows, quantize_token_rows, reconstruct_rows
from golden.dsq.salient import pick_salient
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
        assert made.recent.sum() == HEADS * 6 * 65536
        assert 0 < made.mass.sum() - before < HEADS * 6 * 65536


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


def test_pruning_that_drops_nothing_changes_nothing():
    open_wide = replace(
        SETTINGS, history_drop=0.0, keep_fraction=1.0, run_margin=64.0, estimate_margin=64.0, value_margin=64.0
    )
    made, q = prepared("wide", open_wide)
    q //= 8  # scores within the 32 units that the histogram spans
    whole = copy.deepcopy(made)
    whole.settings = replace(open_wide, prune=False)
    out, fetch = attend(made, q, shift=15)
    expected, everything = attend(whole, q, shift=15)
    for name in Fetch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(fetch, name), getattr(everything, name), err_msg=name)
        assert getattr(fetch, name).all()
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(made.mass, whole.mass)
    np.testing.assert_array_equal(made.recent, whole.recent)


def test_coarse_levels_are_the_middle_of_what_the_upper_two_bits_leave_open():
    for code in range(16):
        same = [c for c in range(16) if c >> 2 == code >> 2]
        middle = np.mean([decode_deltas(np.array([c], np.uint8), delta_bits=4)[0] for c in same])
        level = decode_deltas(np.array([code], np.uint8), delta_bits=4).astype(np.int8)
        assert coarse_levels(level, 4)[0] == middle
    levels = np.array([-3, -1, 1, 3], np.int8)
    np.testing.assert_array_equal(coarse_levels(levels, 2), levels)
