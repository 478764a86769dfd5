"""Stall patterns: infinite iterators of booleans, True where a stream pauses for one cycle.

A source asks before each word that it has not offered yet; a sink asks in every cycle.
"""

import random as _random
from collections.abc import Iterator

__all__ = ["bursty", "every", "named", "random"]


def random(seed: int | str, probability: float = 0.5) -> Iterator[bool]:
    """Pause in each cycle with `probability`, independently."""
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"probability must be in [0, 1), not {probability!r}")
    draw = _random.Random(seed).random
    while True:
        yield draw() < probability


def bursty(seed: int | str, flow: float = 20.0, pause: float = 20.0) -> Iterator[bool]:
    """Alternate between flowing and pausing, for a mean of `flow` and `pause` cycles each."""
    if flow < 1.0 or pause < 1.0:
        raise ValueError(f"flow and pause must be at least 1 cycle, not {flow!r} and {pause!r}")
    draw = _random.Random(seed).random
    paused = False
    while True:
        paused = draw() < 1.0 / flow if not paused else draw() >= 1.0 / pause
        yield paused


def every(period: int) -> Iterator[bool]:
    """Pause in every `period`-th cycle: `every(2)` halves the rate."""
    if period < 2:
        raise ValueError(f"period must be at least 2, not {period!r}")
    while True:
        for _ in range(period - 1):
            yield False
        yield True


def named(name: str, seed: int | str) -> Iterator[bool] | None:
    """Return a pattern by its name (`none`, `random`, `heavy`, `bursty`, `every2`), as test parameters carry it."""
    match name:
        case "none":
            return None
        case "random":
            return random(seed, 0.3)
        case "heavy":
            return random(seed, 0.8)
        case "bursty":
            return bursty(seed)
        case "every2":
            return every(2)
    raise ValueError(f"stall pattern must be one of none, random, heavy, bursty, every2, not {name!r}")
