"""A model's float weights as a GEMM core takes them: INT8 rows, one scale per output, gains and biases folded in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.gemm.epilogue import Columns

__all__ = [
    "Inputs",
    "Projection",
    "encode_scale",
    "epsilon_code",
    "fold_norm",
    "identity_projection",
    "pair_halves",
    "quantize_projection",
    "round_along",
]

Float = NDArray[np.floating]
_LIMIT = 127
#: as many typical inputs count as much as the one that stands out
_INPUTS_PER_FIRST = 8


@dataclass(frozen=True, kw_only=True)
class Projection:
    """``weights[N, K]`` and the columns' parameters."""

    weights: NDArray[np.int8]
    columns: Columns

    def part(self, begin: int, end: int) -> "Projection":
        """The columns from ``begin`` up to ``end``."""
        c, span = self.columns, slice(begin, end)
        columns = Columns(scale=c.scale[span], shift=c.shift[span], bias=c.bias[span])
        return Projection(weights=self.weights[span], columns=columns)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Typical inputs of a projection: mean, variance, and one that stands out, of a text's first token; all ``[K]``."""

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    first: NDArray[np.float32]


def encode_scale(scale: Float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positive numbers as ``mantissa * 2**-shift``, mantissa from 2**15 to 2**16 - 1 (zero: 0, 0).

    Off by at most 2**-16, relatively. Raises ``ValueError`` when a shift is not from -64 to 63.
    """
    fraction, exponent = np.frexp(np.asarray(scale, np.float64))
    mantissa = np.floor(fraction * 65536 + 0.5).astype(np.int64)
    shift = np.where(mantissa > 0, 16 - exponent.astype(np.int64), 0)
    carried = mantissa == 65536
    mantissa, shift = np.where(carried, 32768, mantissa), np.where(carried, shift - 1, shift)
    if shift.min(initial=0) < -64 or shift.max(initial=0) > 63:
        raise ValueError(f"scales must be from 2**-48 to 2**79, not {np.min(scale)!r} to {np.max(scale)!r}")
    return mantissa, shift


def epsilon_code(epsilon: float, k: int, fraction_bits: int) -> int:
    """The ``epsilon`` of `prepare_rows` for rows of ``k`` elements with so many fraction bits; at most 48 bits."""
    return min(int(epsilon * k * k * 4.0**fraction_bits + 0.5), (1 << 48) - 1)


def fold_norm(
    weight: Float, gain: Float, offset: Float | None = None, *, centered: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A norm's ``gain[K]`` and ``offset[K]`` folded into ``weight[N, K]``: the new weight, and a bias ``[N]``.

    centered: the norm takes off the mean, which is the same as weights whose rows sum to zero.
    """
    wide = weight.astype(np.float64)
    bias = np.zeros(len(wide)) if offset is None else wide @ offset
    folded = wide * gain
    return (folded - folded.mean(axis=1, keepdims=True) if centered else folded), bias


def pair_halves(count: int, head_dim: int) -> NDArray[np.int64]:
    """The rows of a weight of ``count`` outputs in the order that makes elements i and i + head_dim / 2 neighbours."""
    heads = np.arange(count).reshape(-1, 2, head_dim // 2)
    return heads.transpose(0, 2, 1).ravel()


def identity_projection(size: int) -> Projection:
    """Rows of ``size`` elements come out as they went in, as far as activation codes hold them."""
    columns = Columns(scale=np.full(size, 1 << 15), shift=np.full(size, 15), bias=np.zeros(size, np.int64))
    return Projection(weights=np.eye(size, dtype=np.int8), columns=columns)


def quantize_projection(
    weight: Float,
    *,
    unit: Float | float,
    input_unit: float,
    bias: Float | None = None,
    centered: bool = False,
    inputs: Inputs | None = None,
) -> Projection:
    """INT8 weights of ``weight[N, K]``, each row with its own scale, for outputs in ``unit`` (one number, or ``[N]``).

    input_unit: what a unit of an input row stands for; after a norm, K. bias: ``[N]``, in the unit of the weights'
    products. centered: every row of INT8 weights sums to exactly zero, as the float weight's must. inputs: what
    rounding makes of their mean is taken off the bias (Nagel et al., "Data-free quantization", 2019, section 4.2), and
    weights are rounded so that errors nearly cancel for the input that stands out, see `round_along`.
    """
    wide = weight.astype(np.float64)
    step = np.abs(wide).max(axis=1) / _LIMIT
    scaled = wide / np.where(step > 0, step, 1)[:, None]
    if inputs is None:
        codes = np.floor(scaled + 0.5)
    else:
        codes = round_along(scaled, inputs.first.astype(np.float64) - inputs.mean, inputs.variance)
    if centered:
        codes = _sum_to_zero(scaled, codes)
    mantissa, shift = encode_scale(step * input_unit / unit)
    total = np.zeros(len(wide)) if bias is None else np.asarray(bias, np.float64)
    if inputs is not None:
        total = total - (codes * step[:, None] - wide) @ inputs.mean.astype(np.float64)
    fixed = np.floor(total / unit + 0.5)
    columns = Columns(scale=mantissa, shift=shift, bias=np.clip(fixed, -(2.0**31), 2.0**31 - 1).astype(np.int64))
    return Projection(weights=codes.astype(np.int8), columns=columns)


def round_along(scaled: Float, direction: Float, variance: Float) -> NDArray[np.float64]:
    """Integers for ``scaled[N, K]`` with errors whose product with ``direction[K]`` is small, one row like the other.

    Weight by weight, those that the direction depends on most first; before each is rounded half up, it moves by its
    part in making up for the error so far. Least squares says how far: errors of all that are left, each by its
    ``variance``, against an eighth of the square of the product.
    """
    room = np.maximum(variance.astype(np.float64), 1e-6 * float(np.max(variance, initial=0)) + 1e-30)
    lever = direction / room
    order = np.argsort(-np.abs(direction * lever), kind="stable")
    left = np.cumsum((direction * lever)[order][::-1])[::-1] + _INPUTS_PER_FIRST
    codes, error = np.empty(scaled.shape), np.zeros(len(scaled))
    for k, reach in zip(order, left, strict=True):
        aim = scaled[:, k] - error * (lever[k] / reach)
        codes[:, k] = np.clip(np.floor(aim + 0.5), -_LIMIT, _LIMIT)
        error += (codes[:, k] - scaled[:, k]) * direction[k]
    return codes


def _sum_to_zero(scaled: NDArray[np.float64], codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Codes moved by one where that costs least, until every row sums to zero."""
    codes = codes.copy()
    for row, exact in zip(codes, scaled, strict=True):
        excess = int(row.sum())
        sign = np.sign(excess)
        room = row * -sign < _LIMIT
        cost = np.where(room, (row - sign - exact) ** 2 - (row - exact) ** 2, np.inf)
        row[np.argsort(cost, kind="stable")[: abs(excess)]] -= sign
    return codes
