"""Weighted sum of V rows: INT8 rows by multiplication, delta rows by addition, mean and shape once per output."""

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.dsq.scale import SCALE_BIAS, split_scale
from golden.fixed import half_up, saturate

__all__ = ["divide_half_up", "finish_output", "scale_weights"]


def scale_weights(weights: NDArray[np.integer], scale: NDArray[np.uint8]) -> NDArray[np.float64]:
    """``half_up(weight * scale)`` for weights ``[..., T]`` and scale codes ``[T]``, as whole float64 numbers."""
    significand, exponent = split_scale(scale)
    factor = np.ldexp(significand.astype(np.float64), exponent - SCALE_BIAS)
    scaled = weights.astype(np.float64)
    scaled *= factor
    scaled += 0.5
    return np.floor(scaled, out=scaled)


def divide_half_up(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.int64]:
    """``floor(numerator / denominator + 1/2)``; a zero denominator gives 0."""
    safe = np.maximum(denominator, 1)
    return np.where(denominator > 0, (2 * numerator + safe) // (2 * safe), 0)


def finish_output(
    exact: NDArray[np.int64],
    delta: NDArray[np.int64],
    rest_weight: NDArray[np.int64],
    total: NDArray[np.int64],
    v_shape: NDArray[np.int64],
    v_mean: NDArray[np.int64],
) -> NDArray[np.int16]:
    """Attention output row from the accumulators.

    ``exact[..., head_dim]`` sums scaled weight x INT8 code, ``delta[..., head_dim]`` sums scaled weight x odd delta
    level (twice the level), ``rest_weight[...]`` is the weight of all delta rows, ``total[...]`` the weight of
    everything. Returns INT16 rows in the units of the V rows; a total of zero gives zeros.
    """
    spread = half_up(delta * v_shape, SHAPE_FRACTION_BITS + 1)
    numerator = exact + spread + rest_weight[..., None] * v_mean
    return saturate(divide_half_up(numerator, total[..., None]), 16).astype(np.int16)
