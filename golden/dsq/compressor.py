"""One closed group of INT8 rows to its differential form: bases, nearest-base runs, deltas around them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.row_quantizer import reconstruct_rows
from golden.dsq.scale import SCALE_BIAS, divide_scale, split_scale
from golden.fixed import half_up

__all__ = [
    "SHAPE_FRACTION_BITS",
    "STEP_BITS",
    "VALUE_BITS",
    "Calibration",
    "CompressedGroup",
    "assign_nearest",
    "channel_steps",
    "compress",
    "encode_deltas",
]

#: a channel's shape is an unsigned fixed-point number of 12 bits, 8 of them fraction
SHAPE_FRACTION_BITS = 8
STEP_BITS = 17
#: bits of a V delta; K deltas have ``delta_bits``
VALUE_BITS = 2


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Offline constants of one (layer, kv_head), each ``[head_dim]``; see ``golden/calibrate.py``.

    ``k_shape`` and ``v_shape`` are 1..4095 (8 fraction bits), ``v_mean`` is INT16 in units of the V rows.
    ``k_norm`` and ``v_norm`` (1..2**20-1, the fraction bits of the shapes) are what one token's summed magnitudes are
    divided by to give the group scale: the sum of the shapes, times the ratio of mean magnitude to best step.
    """

    k_shape: NDArray[np.int64]
    v_shape: NDArray[np.int64]
    v_mean: NDArray[np.int64]
    k_norm: int
    v_norm: int


@dataclass(frozen=True, kw_only=True)
class CompressedGroup:
    """The fields of one record, before packing; S salient of N tokens, head_dim channels.

    ``order[N]`` is the token that each stored row came from (salient ones first, ascending; then the others by base,
    then by token): a side result, not stored. Deltas are offset-binary codes of ``delta_bits`` (K) and 2 (V) bits: code
    c of b bits stands for the odd level 2 c - (2**b - 1), in half steps.
    """

    k_base: NDArray[np.int8]  # [S, head_dim]
    k_base_scale: NDArray[np.uint8]  # [S]
    v_salient: NDArray[np.int8]  # [S, head_dim]
    v_salient_scale: NDArray[np.uint8]  # [S]
    run_length: NDArray[np.int64]  # [S] tokens that each base stands for
    k_group_scale: int
    v_group_scale: int
    k_delta: NDArray[np.uint8]  # [N - S, head_dim]
    v_delta: NDArray[np.uint8]  # [N - S, head_dim]
    order: NDArray[np.int64]  # [N]


def assign_nearest(rows: NDArray[np.int16], base_rows: NDArray[np.int16]) -> NDArray[np.int64]:
    """For each of ``rows[T, head_dim]`` the index of the nearest of ``base_rows[S, head_dim]``.

    Squared distance without the row's own norm, ``|base|^2 - 2 row.base`` (exact integers below 2**40); ties go to
    the lower index.
    """
    r, b = rows.astype(np.float64), base_rows.astype(np.float64)  # exact: products sum below 2**53
    return np.argmin((b * b).sum(axis=1)[None, :] - 2.0 * (r @ b.T), axis=1)


def channel_steps(group_scale: int, shape: NDArray[np.int64]) -> NDArray[np.int64]:
    """Quantization step of each channel, ``half_up(scale * shape)`` saturated to ``STEP_BITS`` unsigned bits.

    In units of the rows' least significant bit; a saturated step is wider than any difference of two INT16 values.
    """
    significand, exponent = split_scale(group_scale)
    step = half_up(significand * shape, SCALE_BIAS + SHAPE_FRACTION_BITS - exponent)
    return np.minimum(step, (1 << STEP_BITS) - 1)


def encode_deltas(
    difference: NDArray[np.int64], shape: NDArray[np.int64], norm: int, *, delta_bits: int
) -> tuple[int, NDArray[np.uint8]]:
    """Quantize ``difference[T, head_dim]`` with one scale for the group; returns ``(group_scale, codes)``.

    The scale is ``sum |difference| / (T * norm)``, with ``norm`` in the shapes' fixed point. The magnitude m counts the
    whole steps (at least one unit wide) in ``|difference|``, saturating; the code is ``2**(delta_bits - 1)`` plus m, or
    less m + 1 for a negative difference: codes grow with the difference. With T = 0 the scale code is 0.
    """
    tokens = difference.shape[0]
    if tokens == 0:
        return 0, np.zeros(difference.shape, np.uint8)
    total = int(np.abs(difference).sum()) << SHAPE_FRACTION_BITS
    group_scale = int(divide_scale(total, tokens * norm))
    step = np.maximum(channel_steps(group_scale, shape), 1)
    half = 1 << (delta_bits - 1)
    magnitude = np.minimum(np.abs(difference) // step, half - 1)
    return group_scale, (half + np.where(difference < 0, ~magnitude, magnitude)).astype(np.uint8)


def compress(
    k_codes: NDArray[np.int8],
    k_scale: NDArray[np.uint8],
    v_codes: NDArray[np.int8],
    v_scale: NDArray[np.uint8],
    salient: NDArray[np.int64],
    calibration: Calibration,
    *,
    delta_bits: int = 2,
) -> CompressedGroup:
    """Compress one closed group: ``*_codes[N, head_dim]``, ``*_scale[N]``, ``salient[S]`` ascending token indices.

    Salient rows are kept as they are. Every other K row becomes a difference to its nearest base (the reconstructed
    salient K rows), every other V row a difference to the calibrated mean; both are taken between INT16
    reconstructions.
    """
    tokens = k_codes.shape[0]
    is_salient = np.zeros(tokens, bool)
    is_salient[salient] = True
    rest = np.flatnonzero(~is_salient)
    k_rows, v_rows = reconstruct_rows(k_codes, k_scale), reconstruct_rows(v_codes, v_scale)
    base_rows = k_rows[salient]
    nearest = assign_nearest(k_rows[rest], base_rows)
    by_base = np.argsort(nearest, kind="stable")
    rest, nearest = rest[by_base], nearest[by_base]
    k_difference = k_rows[rest].astype(np.int64) - base_rows[nearest]
    v_difference = v_rows[rest].astype(np.int64) - calibration.v_mean
    c = calibration
    k_group_scale, k_delta = encode_deltas(k_difference, c.k_shape, c.k_norm, delta_bits=delta_bits)
    v_group_scale, v_delta = encode_deltas(v_difference, c.v_shape, c.v_norm, delta_bits=VALUE_BITS)
    return CompressedGroup(
        k_base=k_codes[salient],
        k_base_scale=k_scale[salient],
        v_salient=v_codes[salient],
        v_salient_scale=v_scale[salient],
        run_length=np.bincount(nearest, minlength=len(salient)),
        k_group_scale=k_group_scale,
        v_group_scale=v_group_scale,
        k_delta=k_delta,
        v_delta=v_delta,
        order=np.concatenate([salient, rest]),
    )
