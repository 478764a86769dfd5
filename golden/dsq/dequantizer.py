"""A packed record back to INT16 rows."""

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import VALUE_BITS, Calibration, CompressedGroup, channel_steps
from golden.dsq.record import unpack
from golden.dsq.row_quantizer import reconstruct_rows
from golden.fixed import half_up, saturate

__all__ = ["decode_deltas", "dequantize", "expand"]


def decode_deltas(codes: NDArray[np.uint8], *, delta_bits: int) -> NDArray[np.int64]:
    """Codes c to odd levels ``2 c - (2**delta_bits - 1)``, in half steps.

    Linear, so the two planes of a 4-bit code add up: ``4 * decode_deltas(c >> 2) + decode_deltas(c & 3)``, 2 bits each.
    """
    return 2 * codes.astype(np.int64) - ((1 << delta_bits) - 1)


def expand(
    group: CompressedGroup, calibration: Calibration, *, delta_bits: int
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """``k_rows, v_rows[N, head_dim]`` in record order (salient tokens, then the runs), K in the rotated domain."""
    k_base = reconstruct_rows(group.k_base, group.k_base_scale)
    k_step = channel_steps(group.k_group_scale, calibration.k_shape)
    k_offset = half_up(decode_deltas(group.k_delta, delta_bits=delta_bits) * k_step, 1)
    k_rest = saturate(np.repeat(k_base, group.run_length, axis=0) + k_offset, 16)
    v_step = channel_steps(group.v_group_scale, calibration.v_shape)
    v_offset = half_up(decode_deltas(group.v_delta, delta_bits=VALUE_BITS) * v_step, 1)
    v_rest = saturate(calibration.v_mean + v_offset, 16)
    v_salient = reconstruct_rows(group.v_salient, group.v_salient_scale)
    return (
        np.concatenate([k_base, k_rest.astype(np.int16)]),
        np.concatenate([v_salient, v_rest.astype(np.int16)]),
    )


def dequantize(
    record: NDArray[np.uint8],
    calibration: Calibration,
    *,
    head_dim: int,
    group_tokens: int,
    delta_bits: int = 2,
    bus_bits: int = 128,
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """``k_rows, v_rows[group_tokens, head_dim]`` of a record, in record order, K in the rotated domain.

    Raises ``RecordError`` on a faulty record.
    """
    group = unpack(record, head_dim=head_dim, group_tokens=group_tokens, delta_bits=delta_bits, bus_bits=bus_bits)
    return expand(group, calibration, delta_bits=delta_bits)
