"""One group of INT16 K/V rows and its attention mass to the packed record: the chain of the parts' functions."""

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import Calibration, compress
from golden.dsq.record import RecordLayout, pack
from golden.dsq.row_quantizer import quantize_token_rows
from golden.dsq.salient import pick_salient

__all__ = ["quantize"]


def quantize(
    k_rows: NDArray[np.int16],
    v_rows: NDArray[np.int16],
    mass: NDArray[np.uint32],
    first_group: bool,
    calibration: Calibration,
    *,
    salient_tokens: int,
    sink_tokens: int = 4,
    delta_bits: int = 2,
    bus_bits: int = 128,
) -> NDArray[np.uint8]:
    """The record's bytes for one closed group.

    ``k_rows, v_rows[group_tokens, head_dim]`` are INT16 (K after rotary embedding, before rotation),
    ``mass[group_tokens]`` unsigned 32 bits; ``first_group`` says that the group starts its sequence.
    """
    group_tokens, head_dim = k_rows.shape
    layout = RecordLayout(
        head_dim=head_dim,
        group_tokens=group_tokens,
        salient_tokens=salient_tokens,
        delta_bits=delta_bits,
        bus_bits=bus_bits,
    )
    salient = pick_salient(mass, first_group, salient_tokens=salient_tokens, sink_tokens=sink_tokens)
    group = compress(*quantize_token_rows(k_rows, v_rows), salient, calibration, delta_bits=delta_bits)
    return pack(group, layout)
