"""Attention history of groups: which ones are scanned at all."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["HISTORY_BITS", "history_code", "select_groups", "update_history"]

#: bits of a group's history; it saturates
HISTORY_BITS = 32
_CODES = 256


def update_history(history: NDArray[np.int64], mass: NDArray[np.int64]) -> NDArray[np.int64]:
    """``H <- floor(H / 2) + mass`` at a group close, saturated; both ``[..., groups]`` unsigned."""
    return np.minimum((history >> 1) + mass, (1 << HISTORY_BITS) - 1)


def history_code(history: NDArray[np.int64]) -> NDArray[np.int64]:
    """A logarithmic code 0..255 (bit length and the three bits below the leading one), growing with ``history``.

    Values below 8 are their own code; above, ``code = 8 * (length - 3) + three bits``.
    """
    length = np.frexp(history.astype(np.float64))[1]
    shift = np.maximum(length - 4, 0)
    return np.where(history < 8, history, 8 * (shift + 1) + ((history >> shift) & 7))


def select_groups(history: NDArray[np.int64], *, drop_count: int) -> NDArray[np.bool_]:
    """Which of ``history[..., groups]`` are scanned: at most ``drop_count`` groups with the lowest codes are not.

    A histogram of the codes gives a threshold: the highest one such that no more than ``drop_count`` groups lie below
    it; all groups with codes below it are dropped, never the first group.
    """
    code = history_code(history)
    below = np.stack([(code < t).sum(axis=-1) for t in range(_CODES)], axis=-1)
    threshold = np.where(below <= drop_count, np.arange(_CODES), 0).max(axis=-1)
    scanned = code >= threshold[..., None]
    scanned[..., 0] = True
    return scanned
