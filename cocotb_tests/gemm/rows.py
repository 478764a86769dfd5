"""Activation rows for the tests of the prologue: corners, random ones, and such with a wanted power."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.gemm.prologue import EPSILON_BITS, Norm

__all__ = ["Case", "corner_rows", "lengths", "power_cases", "random_case"]

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
MOST_EPSILON = (1 << EPSILON_BITS) - 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command and its rows ``x[M, K]``."""

    x: NDArray[np.int32]
    norm: Norm = Norm.NONE
    epsilon: int = 0


def corner_rows(k: int, act_bits: int, *, step: int = 1) -> NDArray[np.int32]:
    """Zeros, constants, alternations, single elements, extremes, ties and what saturates.

    The latter of every ``step``-th magnitude from where rows are not shifted on.
    """
    signs = 1 - 2 * (np.arange(k) % 2)
    rows = [np.zeros(k, np.int64)]
    for value in (1, -1, 2, -2, 1000, HIGHEST, LOWEST, 1 << 30, -(1 << 30)):
        rows += [np.full(k, value), value * signs]
    for bits in range(act_bits - 2, 32, step):
        top = (1 << bits) - 1
        rows += [np.full(k, top), top - np.arange(k) % 7, np.where(np.arange(k) % 3 == 0, ~top, top >> 1)]
        rows.append(top - np.arange(k) * (top // max(k - 1, 1)) * 2)
    for value in (HIGHEST, LOWEST, 1):
        for place in {0, k // 2, k - 1}:
            rows.append(np.where(np.arange(k) == place, value, 0))
    return np.clip(rows, LOWEST, HIGHEST).astype(np.int32)


def lengths(lanes: int, max_k: int) -> list[int]:
    """One element, a beat and one less or more, two beats, the longest row and one less."""
    wanted = {1, 2, lanes - 1, lanes, lanes + 1, 2 * lanes, max_k - 1, max_k}
    return sorted(k for k in wanted if 1 <= k <= max_k)


def random_case(draw: random.Random, rows: int, k: int, norm: Norm | None = None) -> Case:
    """Rows of several magnitudes, shapes and means; epsilons of all lengths."""
    numbers = np.random.default_rng(draw.getrandbits(64))
    size = 2.0 ** numbers.uniform(0, 32, (rows, 1))
    x = numbers.normal(size=(rows, k)) * size / 4 + size * draw.choice([0, 0, 1, -2])
    if draw.random() < 0.3:
        x[:, draw.randrange(k)] *= 50
    return Case(
        x=np.clip(np.floor(x + 0.5), LOWEST, HIGHEST).astype(np.int32),
        norm=draw.choice(list(Norm)) if norm is None else norm,
        epsilon=draw.getrandbits(draw.randint(0, EPSILON_BITS)),
    )


def power_cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Rows of one zero, whose power is epsilon: every length, around squares, and ``count`` random ones."""
    powers = [0, 1, 2, 3, MOST_EPSILON]
    for bits in range(2, EPSILON_BITS):
        root = draw.randrange(1 << 15, 1 << 16)
        square = root * root
        square = square << bits - 32 if bits >= 32 else square >> 32 - bits
        powers += [1 << bits, (2 << bits) - 1, square - 1, square, square + 1]
    powers += [draw.getrandbits(draw.randint(1, EPSILON_BITS)) for _ in range(count)]
    for power in powers:
        if 0 <= power <= MOST_EPSILON:
            yield Case(x=np.zeros((1, 1), np.int32), norm=draw.choice([Norm.RMS, Norm.LAYER]), epsilon=power)
