"""What commands find in memory: projections, angles, calibrations, states of attention, rows; little-endian."""

import numpy as np
from numpy.typing import NDArray

from golden.control.commands import LINE_BYTES
from golden.dsq.compressor import Calibration
from golden.gemm.epilogue import Columns

__all__ = [
    "COLUMN_BYTES",
    "pack_angles",
    "pack_calibration",
    "pack_projection",
    "pack_rows",
    "pack_state",
    "projection_words",
    "row_bytes",
    "unpack_rows",
    "unpack_state",
]

#: of a column's parameters
COLUMN_BYTES = 8


def _padded(content: bytes, multiple: int) -> bytes:
    return content + bytes(-len(content) % multiple)


def projection_words(k: int, *, tile_columns: int, bus_bits: int) -> tuple[int, int]:
    """Words of the bus that a tile's parameters take, and its weights behind them."""
    return -(-tile_columns * COLUMN_BYTES * 8 // bus_bits), -(-k * tile_columns * 8 // bus_bits)


def pack_projection(weights: NDArray[np.int8], columns: Columns, tile_columns: int, bus_bits: int) -> bytes:
    """``weights[N, K]`` and the parameters of N columns, tile of ``tile_columns`` columns by tile.

    A tile has its columns' parameters, 8 bytes each (``scale`` 16 bits, ``shift`` from bit 16 on, ``bias`` from bit 32
    on), then for each k the weights of its columns. Both are padded to whole words of the bus, the last tile's columns
    with zeros to as many as the others have.
    """
    n, k = weights.shape
    tiles = -(-n // tile_columns)
    parameters = np.zeros(tiles * tile_columns, np.uint64)
    parameters[:n] = columns.scale | (columns.shift & 0x7F) << 16 | (columns.bias & 0xFFFFFFFF) << 32
    steps = np.zeros((tiles * tile_columns, k), np.int8)
    steps[:n] = weights
    out = []
    for tile in range(0, tiles * tile_columns, tile_columns):
        part = slice(tile, tile + tile_columns)
        for content in (parameters[part].astype("<u8"), steps[part].T):
            out.append(_padded(content.tobytes(), bus_bits // 8))
    return b"".join(out)


def pack_angles(cos: NDArray[np.integer], sin: NDArray[np.integer]) -> bytes:
    """Cosines and sines ``[M, head_dim / 2]``, 16 bits each, the cosine first; row by row without gaps."""
    return np.stack([cos, sin], axis=-1).astype("<i2").tobytes()


def pack_calibration(calibration: Calibration) -> bytes:
    """8 bytes a channel: ``k_shape`` 12 bits, ``v_shape`` 12, ``v_mean`` 16, zeros."""
    c = calibration
    return (c.k_shape | c.v_shape << 12 | (c.v_mean & 0xFFFF) << 24).astype("<u8").tobytes()


def pack_state(
    history: NDArray[np.integer],
    recent: NDArray[np.integer],
    votes: NDArray[np.integer],
    max_groups: int,
    group_tokens: int,
) -> bytes:
    """Attention history and recent mass of at most ``max_groups`` groups, votes for at most two groups of tokens.

    32 bits each; each of the three parts begins a new line and has room for the most entries, zeros behind those given.
    """
    out = []
    for values, room in ((history, max_groups), (recent, max_groups), (votes, 2 * group_tokens)):
        part = np.zeros(room, np.int64)
        part[: len(values)] = values
        out.append(_padded(part.astype("<u4").tobytes(), LINE_BYTES))
    return b"".join(out)


def unpack_state(
    content: bytes, max_groups: int, group_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """History, recent mass and votes, with the zeros behind them."""
    parts, at = [], 0
    for room in (max_groups, max_groups, 2 * group_tokens):
        parts.append(np.frombuffer(content, "<u4", room, at).astype(np.int64))
        at += -(-4 * room // LINE_BYTES) * LINE_BYTES
    return parts[0], parts[1], parts[2]


def row_bytes(k: int) -> int:
    """From a row of ``k`` elements to the next one."""
    return -(-4 * k // LINE_BYTES) * LINE_BYTES


def pack_rows(rows: NDArray[np.integer]) -> bytes:
    """Rows ``[M, K]`` of 32 bits a signed element, each from a new line on."""
    return b"".join(_padded(row.tobytes(), LINE_BYTES) for row in rows.astype("<i4"))


def unpack_rows(content: bytes, rows: int, k: int) -> NDArray[np.int32]:
    """What `pack_rows` was given."""
    return np.frombuffer(content, "<i4", rows * row_bytes(k) // 4).reshape(rows, -1)[:, :k].astype(np.int32)
