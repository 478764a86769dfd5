"""The cache of one head: appending in any blocks, group closes, history, loading a prompt."""

from dataclasses import fields

import numpy as np
import pytest

from cocotb_tests.golden.draws import calibration, clustered, generator
from golden.dsq.compressor import CompressedGroup, compress
from golden.dsq.dequantizer import decode_deltas
from golden.dsq.row_quantizer import quantize_token_rows
from golden.dsq.salient import pick_salient
from golden.hcap.history import update_history
from golden.mha.core import attend
from golden.settings import KvoSettings
from golden.state import Groups, HeadState

SETTINGS = KvoSettings(group_tokens=16, salient_tokens=4, sink_tokens=2, delta_bits=4)


def assert_same_state(a: HeadState, b: HeadState) -> None:
    """Every field, the compressed groups and their stacked form included."""
    for name in ("k_codes", "k_scale", "v_codes", "v_scale", "mass", "history", "recent"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert len(a.closed) == len(b.closed) and (a.groups is None) == (b.groups is None)
    for one, other in zip(a.closed, b.closed, strict=True):
        for field in fields(CompressedGroup):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)
    if a.groups is not None:
        for field in fields(Groups):
            np.testing.assert_array_equal(getattr(a.groups, field.name), getattr(b.groups, field.name))


def feed(state: HeadState, k, v, mass, block: int) -> None:
    """Append rows in blocks; at each group end add that group's row of ``mass`` and close."""
    n = state.settings.group_tokens
    for start in range(0, len(k), block):
        state.append(k[start : start + block], v[start : start + block])
        if state.tokens % n == 0:
            row = mass[state.tokens // n - 1]
            compressed = state.compressed_tokens
            state.observe(row[:compressed].reshape(-1, n).sum(axis=1), row[compressed : state.tokens])
            state.close_group()


def draw_case(groups: int, head_dim: int = 16):
    """Rows, causal integer masses, calibration."""
    draw = generator("state", groups, head_dim)
    tokens = groups * SETTINGS.group_tokens
    mass = draw.integers(0, 200000, (groups, tokens))
    mass *= np.arange(tokens) < SETTINGS.group_tokens * (1 + np.arange(groups))[:, None]
    return clustered(draw, tokens, head_dim), clustered(draw, tokens, head_dim), mass, calibration(draw, head_dim)


@pytest.mark.parametrize("block", [1, 2, 8])
def test_tokens_may_come_one_by_one_or_in_blocks(block):
    k, v, mass, constants = draw_case(5)
    whole, parts = HeadState(SETTINGS, constants), HeadState(SETTINGS, constants)
    feed(whole, k, v, mass, SETTINGS.group_tokens)
    feed(parts, k, v, mass, block)
    assert_same_state(whole, parts)


@pytest.mark.parametrize("groups", [0, 1, 2, 3, 7])
def test_loading_a_prompt_equals_feeding_it(groups):
    """The masses in units of 2**-16, as ``load`` rounds them."""
    k, v, mass, constants = draw_case(groups)
    loaded, fed = HeadState(SETTINGS, constants), HeadState(SETTINGS, constants)
    loaded.load(k, v, mass / 65536)
    feed(fed, k, v, mass, SETTINGS.group_tokens)
    assert_same_state(loaded, fed)


def test_loading_rounds_masses_half_up():
    k, v, _, constants = draw_case(1)
    state = HeadState(SETTINGS, constants)
    state.load(k, v, np.full((1, 16), 2.5 / 65536))
    assert state.mass.tolist() == [3] * 16 and state.history.tolist() == [48]


def test_loading_equals_running_attention():
    """attend, observe and close on the run leave what load makes of the masses that they saw."""
    k, v, _, constants = draw_case(6, head_dim=32)
    draw = generator("running")
    n = SETTINGS.group_tokens
    run = HeadState(SETTINGS, constants)
    blocks = []
    observe = run.observe
    for start in range(0, len(k), n):
        run.append(k[start : start + n], v[start : start + n])
        row = np.zeros(len(k), np.int64)

        def spread(group_mass, token_mass, row=row):
            """The mass of a compressed group on its first token: only its sum counts."""
            compressed = len(group_mass) * n
            row[:compressed:n] += group_mass
            row[compressed : compressed + len(token_mass)] += token_mass
            observe(group_mass, token_mass)

        run.observe = spread
        q = draw.normal(0, 2000, (3, n, 32)).astype(np.int16)
        attend(run, q, shift=17)
        assert 0 <= 3 * n * 65536 - row.sum() < 0.0005 * 3 * n * 65536
        blocks.append(row / 65536)
        run.close_group()
    loaded = HeadState(SETTINGS, constants)
    loaded.load(k, v, np.array(blocks))
    assert_same_state(run, loaded)


def test_group_closes_one_group_late():
    k, v, _, constants = draw_case(3)
    state = HeadState(SETTINGS, constants)
    seen = []
    for g in range(3):
        span = slice(16 * g, 16 * g + 16)
        state.append(k[span], v[span])
        state.close_group()
        counts = len(state.closed), state.compressed_tokens, len(state.k_codes), state.tokens
        seen.append((*counts, state.groups is None))
    assert seen == [(0, 0, 16, 16, True), (1, 16, 16, 32, False), (2, 32, 16, 48, False)]


def test_groups_are_compressed_with_the_mass_of_their_own_and_the_next_group():
    k, v, mass, constants = draw_case(4)
    state = HeadState(SETTINGS, constants)
    feed(state, k, v, mass, 4)
    for g, made in enumerate(state.closed):
        span = slice(16 * g, 16 * g + 16)
        votes = mass[g : g + 2, span].sum(axis=0).astype(np.uint32)
        salient = pick_salient(votes, g == 0, salient_tokens=4, sink_tokens=2)
        expected = compress(*quantize_token_rows(k[span], v[span]), salient, constants, delta_bits=4)
        for field in fields(CompressedGroup):
            np.testing.assert_array_equal(getattr(made, field.name), getattr(expected, field.name))
    np.testing.assert_array_equal(state.mass, mass[3, 48:])


def test_history_halves_at_each_close():
    k, v, mass, constants = draw_case(4)
    state = HeadState(SETTINGS, constants)
    feed(state, k, v, mass, 16)
    history = np.zeros(4, np.int64)
    for row in mass:
        history = update_history(history, row.reshape(4, 16).sum(axis=1))
    np.testing.assert_array_equal(state.history, history)
    assert not state.recent.any() and len(state.recent) == 4


@pytest.mark.parametrize(("fifth", "ninth", "picked"), [(7, 1 << 40, 9), ((1 << 32) - 1, 1 << 40, 5)])
def test_mass_of_a_token_saturates_at_32_bits_for_the_pick(fifth, ninth, picked):
    """Masses beyond 32 bits count as the largest one, so the lower token wins."""
    k, v, _, constants = draw_case(2)
    settings = KvoSettings(group_tokens=16, salient_tokens=1, sink_tokens=0)
    state = HeadState(settings, constants)
    state.append(k, v)
    mass = np.zeros(32, np.int64)
    mass[5], mass[9] = fifth, ninth
    state.observe(np.zeros(0, np.int64), mass)
    state.close_group()
    assert state.closed[0].order[0] == picked


def test_stacked_groups_hold_the_fields_of_each():
    k, v, mass, constants = draw_case(5)
    state = HeadState(SETTINGS, constants)
    feed(state, k, v, mass, 16)
    stacked = state.groups
    for g, made in enumerate(state.closed):
        for name in ("k_base", "k_base_scale", "run_length", "k_group_scale"):
            np.testing.assert_array_equal(getattr(stacked, name)[g], getattr(made, name))
        for name in ("v_salient", "v_salient_scale", "v_group_scale"):
            np.testing.assert_array_equal(getattr(stacked, name)[g], getattr(made, name))
        np.testing.assert_array_equal(stacked.k_level[g], decode_deltas(made.k_delta, delta_bits=4))
        np.testing.assert_array_equal(stacked.v_level[g], decode_deltas(made.v_delta, delta_bits=2))
        owners = [s for s in range(4) for _ in range(made.run_length[s])]
        assert stacked.base_of[g].tolist() == owners


def test_all_salient_groups_stack_without_rest():
    settings = KvoSettings(group_tokens=16, salient_tokens=16)
    k, v, mass, constants = draw_case(3)
    state = HeadState(settings, constants)
    feed(state, k, v, mass, 16)
    assert state.groups.k_level.shape == state.groups.v_level.shape == (2, 0, 16)
    assert state.groups.base_of.shape == (2, 0)
