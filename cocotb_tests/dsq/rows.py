"""Rows for the tests of the DSQ blocks: corner cases, random rows of several magnitudes, stream payloads."""

import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from golden.dsq.rotation import rotation_block
from golden.dsq.scale import ceil_scale

__all__ = ["LOWEST", "HIGHEST", "corner_rows", "pack_row", "random_rows", "scale_rows", "unpack_row"]

LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1


def corner_rows(head_dim: int) -> NDArray[np.int16]:
    """Zero, constant, single spikes at each end, and signs that saturate each channel of the rotation, both ways."""
    channel = np.arange(head_dim)
    block = rotation_block(head_dim)
    rows = [np.full(head_dim, value) for value in (0, 1, -1, 2, HIGHEST, LOWEST)]
    for value in (1, -1, HIGHEST, LOWEST):
        for at in (0, block - 1, head_dim - block, head_dim - 1):
            rows.append(np.where(channel == at, value, 0))
    parity = np.array([bin(n).count("1") & 1 for n in range(head_dim)])
    for row in range(block):
        signs = parity[(channel % block) & row].astype(bool)
        rows.append(np.where(signs, LOWEST, HIGHEST))
        rows.append(np.where(signs, HIGHEST, LOWEST))
    return np.array(rows).astype(np.int16)


def scale_rows(head_dim: int) -> NDArray[np.int16]:
    """For every scale code that a row can have the smallest and the largest peak that leads to it, of both signs."""
    peaks = np.arange(1 << 15 | 1)
    codes = ceil_scale(peaks)
    ends = np.flatnonzero(np.diff(codes)) + 1
    values = np.concatenate([peaks[:1], -peaks[-1:], *(sign * peaks[e] for e in (ends - 1, ends) for sign in (1, -1))])
    rows = np.zeros((len(values), head_dim), np.int64)
    at = np.arange(len(values))
    rows[at, at % head_dim] = values
    rows[at, (at + 1) % head_dim] = -np.sign(values) * (np.abs(values) // 2)  # a second value, half way
    return rows.astype(np.int16)


def random_rows(draw: random.Random, count: int, head_dim: int) -> NDArray[np.int16]:
    """Normally distributed rows of magnitudes from 1 to far beyond saturation; one in eight is uniform over INT16."""
    generator = np.random.default_rng(draw.getrandbits(64))
    rows = generator.normal(size=(count, head_dim)) * 10 ** generator.uniform(0, 5, (count, 1))
    uniform = generator.integers(LOWEST, HIGHEST + 1, (count, head_dim))
    rows = np.where(generator.random((count, 1)) < 0.125, uniform, rows)
    return np.clip(np.rint(rows), LOWEST, HIGHEST).astype(np.int16)


def pack_row(rotate: bool, row: NDArray[np.int16], lanes: int, draw: random.Random) -> list[int]:
    """Beats of RowQuantizer's input; `rotate` counts in the first one only and is random in the others."""
    beats = row.astype("<i2").reshape(-1, lanes)
    flags = [int(rotate), *(draw.getrandbits(1) for _ in range(len(beats) - 1))]
    return [int.from_bytes(beat.tobytes(), "little") << 1 | flag for beat, flag in zip(beats, flags, strict=True)]


def unpack_row(beats: Iterable[int], lanes: int) -> tuple[list[int], NDArray[np.int8]]:
    """Scale of each beat and the codes of a row that RowQuantizer gave out."""
    beats = list(beats)
    codes = b"".join((beat >> 8).to_bytes(lanes, "little") for beat in beats)
    return [beat & 0xFF for beat in beats], np.frombuffer(codes, np.int8)
