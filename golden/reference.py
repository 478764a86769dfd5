"""Float truth of DSQ, HCAP and attention: the same methods in real numbers, without any rounding of widths or scales.

The integer functions are bounded against these by measured figures (``cocotb_tests/golden/test_reference.py``).
"""

import numpy as np
from numpy.typing import NDArray

from golden.dsq.rotation import rotation_block

__all__ = ["attention", "dsq_rows", "hadamard", "keep_runs", "quantize_int8", "softmax"]

Float = NDArray[np.float64]


def hadamard(head_dim: int) -> Float:
    """Orthonormal block-diagonal Hadamard matrix ``[head_dim, head_dim]`` in power-of-two blocks, Sylvester order."""
    block = rotation_block(head_dim)
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    return np.kron(np.eye(head_dim // block), h / np.sqrt(block))


def quantize_int8(rows: Float) -> Float:
    """Rows ``[..., head_dim]`` rounded to 127 steps of their largest magnitude."""
    step = np.abs(rows).max(axis=-1, keepdims=True) / 127
    safe = np.where(step > 0, step, 1)
    return np.floor(rows / safe + 0.5) * step


def _midpoint(x: Float, step: Float, bits: int) -> Float:
    magnitude = np.minimum(np.floor(np.abs(x) / np.maximum(step, 1e-300)), (1 << (bits - 1)) - 1) + 0.5
    return np.where(x < 0, -1, 1) * magnitude * step


def dsq_rows(
    k: Float,
    v: Float,
    salient: NDArray[np.int64],
    *,
    k_shape: Float,
    v_shape: Float,
    v_mean: Float,
    k_norm: float,
    v_norm: float,
    delta_bits: int,
) -> tuple[Float, Float]:
    """One group ``k, v[N, head_dim]`` after quantization, in token order, K in the (orthonormally) rotated domain.

    Salient rows are INT8; every other K row is its nearest salient row plus a midpoint delta of step
    ``scale * k_shape``, with ``scale = mean over tokens of sum |difference| / k_norm``; V likewise around ``v_mean``.
    """
    k8, v8 = quantize_int8(k @ hadamard(k.shape[1]).T), quantize_int8(v)
    base = k8[salient]
    rest = np.setdiff1d(np.arange(len(k)), salient)
    if not len(rest):
        return k8, v8
    nearest = ((k8[rest, None, :] - base[None]) ** 2).sum(axis=2).argmin(axis=1)
    k_difference, v_difference = k8[rest] - base[nearest], v8[rest] - v_mean
    k_scale = np.abs(k_difference).sum(axis=1).mean() / k_norm
    v_scale = np.abs(v_difference).sum(axis=1).mean() / v_norm
    k8[rest] = base[nearest] + _midpoint(k_difference, k_scale * k_shape, delta_bits)
    v8[rest] = v_mean + _midpoint(v_difference, v_scale * v_shape, 2)
    return k8, v8


def softmax(score: Float) -> Float:
    """Base-2 softmax over the last axis; rows that are all ``-inf`` give zeros."""
    top = score.max(axis=-1, keepdims=True)
    weight = np.exp2(score - np.where(np.isfinite(top), top, 0))
    return weight / np.maximum(weight.sum(axis=-1, keepdims=True), 1e-300)


def keep_runs(distance: Float, run_length: NDArray[np.int64], *, margin: float, keep_count: int) -> NDArray[np.bool_]:
    """One query's kept bases by sorting: nearest first within ``margin``, at most ``keep_count`` tokens in all."""
    order = np.argsort(distance, kind="stable")
    total = np.cumsum(run_length[order])
    kept = np.zeros(len(distance), bool)
    kept[order[total <= keep_count]] = True
    return kept & (distance <= margin)


def attention(q: Float, k: Float, v: Float, *, masked: NDArray[np.bool_] | None = None) -> tuple[Float, Float]:
    """Rows ``q[Q, head_dim]`` (score constant folded in, base 2) on ``k, v[T, head_dim]``: output and probabilities."""
    score = q @ k.T
    if masked is not None:
        score = np.where(masked, -np.inf, score)
    probability = softmax(score)
    return probability @ v, probability
