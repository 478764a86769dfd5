"""What the golden tests draw: seeded generators, rows, calibrations, groups, filled caches."""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib.environment import rng
from cocotb_tests.lib.real import RealGroup, real_groups
from golden.dsq.compressor import Calibration
from golden.dsq.row_quantizer import quantize_token_rows
from golden.settings import KvoSettings, default_settings
from golden.state import HeadState

__all__ = ["calibration", "clustered", "generator", "group", "real", "rows", "state"]

LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1


def generator(*labels: object) -> np.random.Generator:
    """NumPy's generator, seeded by the seed of the session and the labels."""
    return np.random.default_rng(rng(*labels).getrandbits(64))


def rows(draw: np.random.Generator, count: int, head_dim: int) -> NDArray[np.int16]:
    """Rows of magnitudes from below one to beyond saturation, one in eight uniform over INT16."""
    normal = draw.normal(size=(count, head_dim)) * 10 ** draw.uniform(-1, 5, (count, 1))
    uniform = draw.integers(LOWEST, HIGHEST + 1, (count, head_dim))
    drawn = np.where(draw.random((count, 1)) < 0.125, uniform, normal)
    return np.clip(np.floor(drawn + 0.5), LOWEST, HIGHEST).astype(np.int16)


def clustered(draw: np.random.Generator, count: int, head_dim: int, spread: float = 0.3) -> NDArray[np.int16]:
    """Rows around eight centres of a few thousand units, as K rows of a real model lie."""
    centres = draw.normal(0, 3000, (8, head_dim))
    drawn = centres[draw.integers(8, size=count)] + draw.normal(0, 3000 * spread, (count, head_dim))
    return np.clip(np.floor(drawn + 0.5), LOWEST, HIGHEST).astype(np.int16)


def calibration(draw: np.random.Generator, head_dim: int) -> Calibration:
    """Shapes around 1, means of a few hundred units, norms as the best steps of Gaussian differences have them."""
    shapes = 256 * np.exp(draw.normal(0, 0.5, (2, head_dim)))
    k_shape, v_shape = np.clip(shapes, 1, 4095).astype(np.int64)
    return Calibration(
        k_shape=k_shape,
        v_shape=v_shape,
        v_mean=draw.integers(-500, 500, head_dim),
        k_norm=int(0.8 * k_shape.sum()),
        v_norm=int(0.8 * v_shape.sum()),
    )


def group(
    draw: np.random.Generator, tokens: int, head_dim: int
) -> tuple[NDArray[np.int8], NDArray[np.uint8], NDArray[np.int8], NDArray[np.uint8]]:
    """One group in INT8: ``k_codes, k_scale, v_codes, v_scale``."""
    return quantize_token_rows(clustered(draw, tokens, head_dim), clustered(draw, tokens, head_dim))


def state(
    draw: np.random.Generator, settings: KvoSettings, tokens: int, head_dim: int, *, opened: int = 0
) -> HeadState:
    """A cache of ``tokens`` tokens (whole groups) under random attention masses, and ``opened`` newer ones."""
    made = HeadState(settings, calibration(draw, head_dim))
    blocks = tokens // settings.group_tokens
    mass = draw.gamma(0.3, 1, (blocks, tokens))
    mass *= np.arange(tokens) < settings.group_tokens * (1 + np.arange(blocks))[:, None]  # causal
    k, v = clustered(draw, tokens + opened, head_dim), clustered(draw, tokens + opened, head_dim)
    made.load(k[:tokens], v[:tokens], mass)
    made.append(k[tokens:], v[tokens:])
    return made


@cache
def _real(settings: KvoSettings) -> tuple[RealGroup, ...]:
    return tuple(real_groups(27, settings=settings))


def real(**changes: int) -> tuple[RealGroup, ...]:
    """Groups of SmolLM2, three of each head of three layers, under the default settings with some changes."""
    return _real(replace(default_settings(), **changes))
