"""Two-phase attention on the compressed cache, integer and exact, for one block of queries of one (layer, kv_head).

The chain of the parts' functions: prepare_query, estimates, select_groups and select_runs, exact scores, softmax,
value sum.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.hcap.estimator import upper_nibble
from golden.hcap.history import select_groups
from golden.hcap.selector import select_runs
from golden.mha.scores import prepare_query, scores
from golden.mha.softmax import MASKED, integer_maximum, normalize, softmax
from golden.mha.value_sum import finish_output, scale_weights
from golden.settings import KvoSettings
from golden.state import Groups, HeadState

__all__ = ["Fetch", "attend"]

#: a distance beyond every margin
FAR = np.int32(1 << 30)


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What each of n queries fetched: booleans over g compressed groups with S bases and R other tokens each."""

    scanned: NDArray[np.bool_]  # [g] upper nibbles (the same groups for every query of a block)
    lower: NDArray[np.bool_]  # [n, g, S] lower nibbles of base rows
    k_delta: NDArray[np.bool_]  # [n, g, R]
    v_salient: NDArray[np.bool_]  # [n, g, S]
    v_delta: NDArray[np.bool_]  # [n, g, R]

    @staticmethod
    def nothing(queries: int) -> "Fetch":
        """No compressed groups yet."""
        none = np.zeros((queries, 0, 0), bool)
        return Fetch(scanned=np.zeros(0, bool), lower=none, k_delta=none, v_salient=none, v_delta=none)


def _everything(groups: Groups, queries: int) -> Fetch:
    g, s = groups.run_length.shape
    r = groups.base_of.shape[1]
    bases, rest = np.ones((queries, g, s), bool), np.ones((queries, g, r), bool)
    return Fetch(scanned=np.ones(g, bool), lower=bases, k_delta=rest, v_salient=bases, v_delta=rest)


def coarse_levels(levels: NDArray[np.int8], delta_bits: int) -> NDArray[np.int8]:
    """Odd delta levels as their upper two code bits show them: sign and upper magnitude bit, the middle of the rest."""
    if delta_bits == 2:
        return levels
    span = 1 << (delta_bits - 1)
    magnitude = (np.abs(levels) // span) * span + span // 2
    return (np.sign(levels) * magnitude).astype(np.int8)


def _fixed_share(share: float, total: int) -> int:
    """A share as the hardware holds it, in 256ths."""
    return (round(share * 256) * total) >> 8


def attend(
    state: HeadState, q_rows: NDArray[np.int16], *, shift: int
) -> tuple[NDArray[np.int16], Fetch]:
    """Attention of the newest n tokens of ``state``, which are already appended, all in the open group.

    ``q_rows[G, n, head_dim]`` are INT16 with ``log2(e) / sqrt(head_dim)`` folded in; ``shift`` is what takes the
    product of q and K units to 8 fraction bits: ``q_fraction + k_fraction - 8``, less one when ``rotate`` halves the
    dot product. Returns ``out[G, n, head_dim]`` in V units and what was fetched; the attention mass goes to the state.
    """
    settings, calibration, groups = state.settings, state.calibration, state.groups
    heads, n, dim = q_rows.shape
    query = prepare_query(q_rows, calibration.k_shape)
    dense_tokens = len(state.k_codes)
    dense = scores(query.codes, query.scale, state.k_codes, state.k_scale, shift=shift)
    future = np.arange(dense_tokens)[None, :] > np.arange(dense_tokens - n, dense_tokens)[:, None]
    dense[:, future] = MASKED

    if groups is None:
        maximum = integer_maximum(dense)
        fetch = Fetch.nothing(n)
        base = rest = np.zeros((heads, n, 0), np.int32)
    else:
        g, s = groups.run_length.shape
        r = groups.base_of.shape[1]
        exact = scores(
            query.codes, query.scale, groups.k_base.reshape(g * s, dim), groups.k_base_scale.ravel(), shift=shift
        )
        delta = scores(
            query.shaped_codes,
            query.shaped_scale,
            groups.k_level.reshape(g * r, dim),
            np.repeat(groups.k_group_scale, r),
            shift=shift + 1,
        )
        owner = (groups.base_of + s * np.arange(g)[:, None]).ravel()
        base = exact
        if settings.prune:
            candidate, kept, scanned, estimate = _select(state, settings, query.codes, query.scale, dense, shift)
            base = np.where(candidate, exact, MASKED)
            known = np.where(candidate, exact, estimate)[..., owner]
            rough = scores(
                query.shaped_codes,
                query.shaped_scale,
                coarse_levels(groups.k_level, settings.delta_bits).reshape(g * r, dim),
                np.repeat(groups.k_group_scale, r),
                shift=shift + 1,
            )
            rough = np.where(kept[:, owner], known + rough, MASKED)
            top = np.maximum(dense.max(axis=2), np.maximum(base.max(axis=2), rough.max(axis=2, initial=MASKED)))
            margin = KvoSettings.fixed_point(settings.value_margin)
            v_base = ((top[..., None] - base) <= margin).any(axis=0)
            v_rest = ((top[..., None] - rough) <= margin).any(axis=0)
            base, rest = np.where(v_base, base, MASKED), np.where(v_rest, known + delta, MASKED)
            fetch = Fetch(
                scanned=scanned,
                lower=candidate.reshape(n, g, s),
                k_delta=kept[:, owner].reshape(n, g, r),
                v_salient=v_base.reshape(n, g, s),
                v_delta=v_rest.reshape(n, g, r),
            )
            maximum = integer_maximum(np.concatenate([dense, base, rest], axis=2))
        else:
            rest = exact[..., owner] + delta
            fetch = _everything(groups, n)
            maximum = integer_maximum(np.concatenate([dense, base, rest], axis=2))

    out, mass = _value_sum(state, softmax(np.concatenate([dense, base, rest], axis=2), maximum))
    dense_mass = mass[:dense_tokens]
    n_base = base.shape[2]
    if groups is not None:
        g = len(groups.run_length)
        group_mass = mass[dense_tokens : dense_tokens + n_base].reshape(g, -1).sum(axis=1)
        group_mass = group_mass + mass[dense_tokens + n_base :].reshape(g, -1).sum(axis=1)
    else:
        group_mass = np.zeros(0, np.int64)
    state.observe(group_mass, dense_mass)
    return out, fetch


def _select(
    state: HeadState,
    settings: KvoSettings,
    q_codes: NDArray[np.int8],
    q_scale: NDArray[np.uint8],
    dense: NDArray[np.int32],
    shift: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int32]]:
    """Candidates (lower nibble read) and kept bases ``[n, g * S]``, scanned groups ``[g]``, estimates ``[G, n, g *
    S]``."""
    groups = state.groups
    assert groups is not None
    g, s = groups.run_length.shape
    heads, n, _ = q_codes.shape
    scanned = select_groups(state.history[:g], drop_count=_fixed_share(settings.history_drop, g))
    rough = upper_nibble(groups.k_base[scanned]).reshape(-1, groups.k_base.shape[2])
    seen = scores(q_codes, q_scale, rough, groups.k_base_scale[scanned].ravel(), shift=shift)
    peak = np.maximum(dense.max(axis=2), seen.max(axis=2))
    distance = np.full((n, g, s), FAR, np.int32)
    distance[:, scanned] = (peak[..., None] - seen).min(axis=0).reshape(n, -1, s)
    estimate = np.full((heads, n, g, s), MASKED, np.int32)
    estimate[:, :, scanned] = seen.reshape(heads, n, -1, s)
    flat = distance.reshape(n, g * s)
    candidate = flat <= KvoSettings.fixed_point(settings.estimate_margin)
    kept = select_runs(
        flat,
        groups.run_length.ravel(),
        run_margin=KvoSettings.fixed_point(settings.run_margin),
        keep_count=_fixed_share(settings.keep_fraction, g * settings.group_tokens),
    )
    return candidate, kept, scanned, estimate.reshape(heads, n, g * s)


def _value_sum(state: HeadState, weights: NDArray[np.int32]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Output rows and the mass of each token summed over heads and queries; ``weights[G, n, dense + base + rest]``."""
    groups, calibration = state.groups, state.calibration
    dense_tokens = len(state.v_codes)
    total = weights.sum(axis=2, dtype=np.int64)
    heads, n, _ = weights.shape
    exact = scale_weights(weights[..., :dense_tokens], state.v_scale) @ state.v_codes.astype(np.float64)
    delta = np.zeros_like(exact)
    rest_total = np.zeros((heads, n), np.int64)
    if groups is not None:
        g, s = groups.run_length.shape
        dim = groups.v_salient.shape[2]
        w_base = weights[..., dense_tokens : dense_tokens + g * s]
        w_rest = weights[..., dense_tokens + g * s :]
        r = groups.base_of.shape[1]
        salient = groups.v_salient.reshape(g * s, dim).astype(np.float64)
        exact += scale_weights(w_base, groups.v_salient_scale.ravel()) @ salient
        rest_scale = np.repeat(groups.v_group_scale, r)
        delta = scale_weights(w_rest, rest_scale) @ groups.v_level.reshape(g * r, dim).astype(float)
        rest_total = w_rest.sum(axis=2, dtype=np.int64)
    out = finish_output(
        exact.astype(np.int64), delta.astype(np.int64), rest_total, total, calibration.v_shape, calibration.v_mean
    )
    return out, normalize(weights).sum(axis=(0, 1))
