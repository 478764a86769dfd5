"""From estimates to kept runs: relative to the running maximum, threshold by histogram."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["BIN_SHIFT", "BINS", "keep_limit", "select_runs"]

#: a histogram bin spans a quarter of a base-2 unit (64 of 256); distances of BINS bins and more share one more bin
BIN_SHIFT = 6
BINS = 128


def keep_limit(keep_fraction: float, tokens: int) -> int:
    """The most tokens that a selection among ``tokens`` keeps; the share is a register in 256ths."""
    return (round(keep_fraction * 256) * tokens) >> 8


def select_runs(
    distance: NDArray[np.int32], run_length: NDArray[np.int64], *, run_margin: int, keep_count: int
) -> NDArray[np.bool_]:
    """Which bases have their run kept, for each query.

    ``distance[..., bases]`` is how far each base's estimate lies below the running maximum (base-2 units, 8 fraction
    bits, the least over the query heads), ``run_length[bases]`` the tokens that each base stands for. Runs within
    ``run_margin`` are kept from the nearest histogram bin on, whole bins, while no more than ``keep_count`` tokens are
    kept.
    """
    bins = np.minimum(np.maximum(distance, 0) >> BIN_SHIFT, BINS)
    rows = np.arange(distance[..., 0].size)[:, None]
    flat = (rows * (BINS + 1) + bins.reshape(len(rows), -1)).ravel()
    weights = np.broadcast_to(run_length, distance.shape).ravel()
    histogram = np.bincount(flat, weights, minlength=len(rows) * (BINS + 1)).reshape(len(rows), BINS + 1)
    bins_kept = (np.cumsum(histogram, axis=1) <= keep_count).sum(axis=1).reshape(distance.shape[:-1])
    return (distance <= run_margin) & (bins < bins_kept[..., None])
