"""Caches and queries for the tests of attention."""

import numpy as np

from cocotb_tests.golden.draws import generator, state
from golden.settings import KvoSettings

__all__ = ["CLOSE", "HEADS", "NARROW", "SETTINGS", "prepared", "queries"]

SETTINGS = KvoSettings(
    group_tokens=16,
    salient_tokens=4,
    sink_tokens=2,
    delta_bits=4,
    history_drop=0.25,
    keep_fraction=0.5,
    estimate_margin=4.0,
    value_margin=3.0,
)
#: many kept runs of bases whose lower nibbles are not read, with V all the same
NARROW = {"estimate_margin": 0.5, "value_margin": 6.0}
#: INT8 tokens with V that no query of a block reads
CLOSE = {"value_margin": 0.25}
HEADS = 3


def queries(draw: np.random.Generator, count: int, head_dim: int) -> np.ndarray:
    """Query rows of some heads, for scores of about two base-2 units at a shift of 15 and 64 channels."""
    return draw.normal(0, 700, (HEADS, count, head_dim)).astype(np.int16)


def prepared(label: str, settings: KvoSettings, *, groups: int = 12, count: int = 6, head_dim: int = 64):
    """A cache with ``count`` tokens in its open group, and their queries."""
    draw = generator("attention", label, head_dim)
    made = state(draw, settings, groups * settings.group_tokens, head_dim, opened=count)
    return made, queries(draw, count, head_dim)
