"""Two-phase attention on the compressed cache, integer and exact, for one block of queries of one (layer, kv_head).

The chain of the parts' functions: prepare_query, select_groups, estimates, select_runs, the scores of what is kept,
softmax_streaming, accumulate, finish_output, normalize.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.record import COARSE_BITS
from golden.hcap.estimator import lower_nibble, upper_nibble
from golden.hcap.history import select_groups
from golden.hcap.selector import keep_limit, select_runs
from golden.mha.mass import normalize
from golden.mha.query import Query, prepare_query
from golden.mha.scores import scores
from golden.mha.softmax import MASKED, shifted_sum, softmax_streaming
from golden.mha.value_sum import accumulate, finish_output
from golden.settings import KvoSettings
from golden.state import Groups, HeadState

__all__ = ["Fetch", "attend", "delta_planes"]


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What each of n queries fetched: booleans over g compressed groups with S bases and R other tokens each."""

    scanned: NDArray[np.bool_]  # [g] upper nibbles (the same groups for every query of a block)
    lower: NDArray[np.bool_]  # [n, g, S] lower nibbles of base rows
    k_delta: NDArray[np.bool_]  # [n, g, R]
    v_salient: NDArray[np.bool_]  # [n, g, S]
    v_delta: NDArray[np.bool_]  # [n, g, R]
    v_int8: NDArray[np.bool_]  # [n, tokens] of the INT8 tokens, all of whose K is read

    @staticmethod
    def nothing(queries: int, groups: int = 0, bases: int = 0, others: int = 0, tokens: int = 0) -> "Fetch":
        """Nothing of that many groups and INT8 tokens."""
        of_bases = np.zeros((queries, groups, bases), bool)
        of_others = np.zeros((queries, groups, others), bool)
        return Fetch(
            scanned=np.zeros(groups, bool),
            lower=of_bases,
            k_delta=of_others,
            v_salient=of_bases.copy(),
            v_delta=of_others.copy(),
            v_int8=np.zeros((queries, tokens), bool),
        )


def delta_planes(levels: NDArray[np.int8], delta_bits: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Odd K delta levels as the sum of two: what the first two code bits show, and what the other ones add.

    The first is the middle of what the other bits leave open; with two bits in all, the second is 0.
    """
    span = 1 << (delta_bits - COARSE_BITS)
    code = (levels.astype(np.int16) + (1 << delta_bits) - 1) >> 1
    coarse = span * (2 * (code // span) + 1 - (1 << COARSE_BITS))
    return coarse.astype(np.int8), (levels - coarse).astype(np.int8)


def attend(
    state: HeadState, q_rows: NDArray[np.int16], *, shift: int, faulty: Collection[int] = ()
) -> tuple[NDArray[np.int16], Fetch]:
    """Attention of the newest n tokens of ``state``, which are already appended, all in the open group.

    ``q_rows[G, n, head_dim]`` are INT16 with ``log2(e) / sqrt(head_dim)`` folded in; ``shift`` is what takes the
    product of q and K units to 8 fraction bits: ``q_fraction + k_fraction - 8``, less one when ``rotate`` halves the
    dot product. ``faulty`` groups, whose record contradicts itself, have their place in a tile but count as not
    scanned. Returns ``out[G, n, head_dim]`` in V units and what was fetched; the attention mass goes to the state.
    """
    heads, n, dim = q_rows.shape
    query = prepare_query(q_rows, state.calibration.k_shape)
    tokens = len(state.k_codes)
    dense = scores(query.codes, query.scale, state.k_codes, state.k_scale, shift=shift)
    dense[:, np.arange(tokens)[None, :] > np.arange(tokens - n, tokens)[:, None]] = MASKED

    # Columns in the hardware's order: INT8 tokens, then group by group its bases and its other tokens.
    near = dense[0] != MASKED
    if state.settings.prune:
        margin = KvoSettings.fixed_point(state.settings.value_margin)
        near &= (dense.max(axis=2, keepdims=True) - dense <= margin).any(axis=0)
    groups, fetch, scanned = state.groups, Fetch.nothing(n, tokens=tokens), np.zeros(0, np.int64)
    score = np.where(near, dense, MASKED)
    is_delta, scale, codes = np.zeros(tokens, bool), state.v_scale, state.v_codes
    if groups is not None:
        fetch, of_groups = _rebuild(state, query, dense, shift, faulty)
        scanned = np.flatnonzero(fetch.scanned)
        score = np.concatenate([score, of_groups.reshape(heads, n, -1)], axis=2)
        of_delta, of_scale, of_codes = (field[scanned] for field in _value_columns(groups))
        is_delta, scale = np.concatenate([is_delta, of_delta.ravel()]), np.concatenate([scale, of_scale.ravel()])
        codes = np.concatenate([codes, of_codes.reshape(-1, dim)])
    fetch.v_int8[:] = near
    weights, maximum = softmax_streaming(score.reshape(heads * n, -1))
    sums = accumulate(weights, maximum, is_delta, scale, codes)
    out = finish_output(sums, state.calibration.v_shape, state.calibration.v_mean).reshape(heads, n, dim)

    entry_weights, entry_maximum = _mass_entries(weights, maximum, tokens, len(scanned))
    mass = normalize(entry_weights, entry_maximum, maximum[:, -1], sums.total).sum(axis=0)
    group_mass = np.zeros(len(fetch.scanned), np.int64)
    group_mass[scanned] = mass[tokens:]
    state.observe(group_mass, mass[:tokens])
    return out, fetch


def _rebuild(
    state: HeadState, query: Query, dense: NDArray[np.int32], shift: int, faulty: Collection[int]
) -> tuple[Fetch, NDArray[np.int32]]:
    """What is fetched of the compressed groups, and the final scores of the scanned ones, ``[G, n, g', S + R]``.

    Groups are selected among in tiles of ``tile_groups`` scanned ones: the peak that distances count from is that of
    the tiles so far, this one included. Whether a V row is read depends on the scores of its own and earlier groups.
    """
    settings, groups = state.settings, state.groups
    assert groups is not None
    g, s = groups.run_length.shape
    n, r = dense.shape[1], groups.base_of.shape[1]
    fetch = Fetch.nothing(n, g, s, r, dense.shape[2])
    drop_count = keep_limit(settings.history_drop, g) if settings.prune else 0
    fetch.scanned[:] = select_groups(state.history[:g], drop_count=drop_count)
    listed = np.flatnonzero(fetch.scanned)
    fetch.scanned[list(faulty)] = False
    peak = top = dense.max(axis=2)
    final = [np.zeros((len(dense), n, 0, s + r), np.int32)]
    for start in range(0, len(listed), settings.tile_groups):
        tile = listed[start : start + settings.tile_groups]
        tile = tile[fetch.scanned[tile]]
        if not tile.size:
            continue
        planes = _plane_scores(groups, tile, query, shift, settings.delta_bits)
        estimate, lower, coarse, fine = planes
        peak = np.maximum(peak, estimate.max(axis=(2, 3)))
        candidate, kept = _select(settings, peak, estimate, groups.run_length[tile])
        known = estimate + np.where(candidate, lower, 0)
        owner = groups.base_of[tile]
        rest_known = np.take_along_axis(known, owner[None, None], axis=3)
        rest_kept = np.take_along_axis(kept, owner[None], axis=2)
        base = np.where(candidate, known, MASKED)
        rough = np.where(rest_kept, rest_known + coarse, MASKED)
        seen = np.concatenate([base, rough], axis=3)
        tops = np.maximum.accumulate(np.concatenate([top[..., None], seen.max(axis=3)], axis=2), axis=2)
        top = tops[..., -1]
        near = seen != MASKED
        if settings.prune:
            margin = KvoSettings.fixed_point(settings.value_margin)
            near &= (tops[..., 1:, None] - seen <= margin).any(axis=0)
        exact = np.concatenate([base, np.where(rest_kept, rest_known + coarse + fine, MASKED)], axis=3)
        final.append(np.where(near, exact, MASKED))
        fetch.lower[:, tile], fetch.k_delta[:, tile] = candidate, rest_kept
        fetch.v_salient[:, tile], fetch.v_delta[:, tile] = near[0, :, :, :s], near[0, :, :, s:]
    return fetch, np.concatenate(final, axis=2)


def _plane_scores(
    groups: Groups, tile: NDArray[np.int64], query: Query, shift: int, delta_bits: int
) -> list[NDArray[np.int32]]:
    """Scores of the planes, each rounded on its own: upper and lower nibbles of bases ``[G, n, t, S]``, coarse and fine
    levels of the others ``[G, n, t, R]``."""
    base, level, base_scale = groups.k_base[tile], groups.k_level[tile], groups.k_base_scale[tile]
    level_scale = np.broadcast_to(groups.k_group_scale[tile, None], level.shape[:2])
    made = []
    for codes in (upper_nibble(base), lower_nibble(base)):
        rows = codes.reshape(-1, codes.shape[2])
        score = scores(query.codes, query.scale, rows, base_scale.ravel(), shift=shift)
        made.append(score.reshape(*score.shape[:2], *codes.shape[:2]))
    for codes in delta_planes(level, delta_bits):
        rows = codes.reshape(-1, codes.shape[2])
        score = scores(query.shaped_codes, query.shaped_scale, rows, level_scale.ravel(), shift=shift + 1)
        made.append(score.reshape(*score.shape[:2], *codes.shape[:2]))
    return made


def _select(
    settings: KvoSettings, peak: NDArray[np.int32], estimate: NDArray[np.int32], run_length: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Bases of a tile whose lower nibbles are read, and those whose run is kept, both ``[n, t, S]``."""
    distance = (peak[..., None, None] - estimate).min(axis=0)
    if not settings.prune:
        return np.ones(distance.shape, bool), np.ones(distance.shape, bool)
    kept = select_runs(
        distance.reshape(len(distance), -1),
        run_length.ravel(),
        run_margin=KvoSettings.fixed_point(settings.run_margin),
        keep_count=keep_limit(settings.keep_fraction, len(run_length) * settings.group_tokens),
    )
    return distance <= KvoSettings.fixed_point(settings.estimate_margin), kept.reshape(distance.shape)


def _value_columns(groups: Groups) -> tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.int8]]:
    """Of each group's tokens, bases first: whether it is a delta, its V scale and its V codes."""
    g, s, _ = groups.v_salient.shape
    r = groups.v_level.shape[1]
    is_delta = np.broadcast_to(np.arange(s + r) >= s, (g, s + r))
    scale = np.concatenate([groups.v_salient_scale, np.repeat(groups.v_group_scale[:, None], r, axis=1)], axis=1)
    return is_delta, scale, np.concatenate([groups.v_salient, (groups.v_level + 3) >> 1], axis=1)


def _mass_entries(
    weights: NDArray[np.int32], maximum: NDArray[np.int32], tokens: int, groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The weight of each INT8 token and the sum of each group, with the maximum that it is against: ``[rows, tokens +
    groups]``. A sum is shifted like the others when the maximum rises within its group."""
    if not groups:
        return weights.astype(np.int64), maximum
    inside, highest = (x[:, tokens:].reshape(len(x), groups, -1) for x in (weights.astype(np.int64), maximum))
    final = highest[:, :, -1]
    sums = inside.sum(axis=2)
    for row, group in np.argwhere(highest[:, :, 0] != final):
        sums[row, group] = shifted_sum(inside[row, group], highest[row, group])
    return np.concatenate([weights[:, :tokens], sums], axis=1), np.concatenate([maximum[:, :tokens], final], axis=1)
