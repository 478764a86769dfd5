"""Formats in memory of what commands take: byte by byte, and back."""

import numpy as np
import pytest

from cocotb_tests.golden import draws
from cocotb_tests.golden.draws import generator
from golden.control.memory import (
    pack_angles,
    pack_calibration,
    pack_projection,
    pack_rows,
    pack_state,
    projection_words,
    row_bytes,
    unpack_rows,
    unpack_state,
)
from golden.gemm.epilogue import Columns


def columns(draw: np.random.Generator, n: int) -> Columns:
    return Columns(
        scale=draw.integers(1 << 15, 1 << 16, n),
        shift=draw.integers(-64, 64, n),
        bias=draw.integers(-(1 << 31), 1 << 31, n),
    )


def test_projection_by_hand():
    given = Columns(scale=np.array([0x8001, 0xFFFF]), shift=np.array([-1, 5]), bias=np.array([-2, 3]))
    weights = np.array([[1, -1, 2], [-128, 127, 0]], np.int8)
    content = pack_projection(weights, given, tile_columns=2, bus_bits=64)
    parts = "01807f00feffffff", "ffff050003000000", "0180ff7f02000000"
    assert content.hex() == "".join(parts)


@pytest.mark.parametrize(("n", "k", "tile", "bus"), [(4, 3, 4, 32), (9, 5, 4, 128), (1, 7, 8, 512), (17, 576, 8, 128)])
def test_projection_lies_tile_by_tile(n, k, tile, bus):
    draw = generator("projection", n, k)
    given, weights = columns(draw, n), draw.integers(-127, 128, (n, k)).astype(np.int8)
    content = pack_projection(weights, given, tile_columns=tile, bus_bits=bus)
    parameters, steps = (words * bus // 8 for words in projection_words(k, tile_columns=tile, bus_bits=bus))
    assert parameters >= 8 * tile and steps >= tile * k
    assert len(content) == -(-n // tile) * (parameters + steps)
    for column in range(n):
        at = column // tile * (parameters + steps)
        entry = int.from_bytes(content[at + column % tile * 8 :][:8], "little")
        assert entry & 0xFFFF == given.scale[column]
        assert (entry >> 16 & 0x7F) == given.shift[column] % 128
        assert entry >> 23 & 0x1FF == 0
        assert entry >> 32 == given.bias[column] % (1 << 32)
        found = np.frombuffer(content, np.int8, steps, at + parameters)[column % tile :: tile][:k]
        np.testing.assert_array_equal(found, weights[column])


def test_angles_by_hand():
    cos, sin = np.array([[16384, -1], [2, 3]]), np.array([[0, -16384], [4, 5]])
    assert pack_angles(cos, sin).hex() == "00400000ffff00c00200040003000500"


def test_calibration_lies_channel_by_channel():
    given = draws.calibration(generator("calibration"), 20)
    entries = np.frombuffer(pack_calibration(given), "<u8").astype(np.int64)
    np.testing.assert_array_equal(entries & 0xFFF, given.k_shape)
    np.testing.assert_array_equal(entries >> 12 & 0xFFF, given.v_shape)
    np.testing.assert_array_equal((entries >> 24).astype(np.int16), given.v_mean)
    assert not (entries >> 40).any()


def test_parts_of_a_state_begin_lines():
    draw = generator("state")
    history, recent, votes = (draw.integers(1 << 32, size=n) for n in (17, 5, 30))
    content = pack_state(history, recent, votes, max_groups=20, group_tokens=16)
    assert len(content) == 128 + 128 + 128
    assert content[128 : 128 + 20] == recent.astype("<u4").tobytes()
    found = unpack_state(content, max_groups=20, group_tokens=16)
    assert [len(part) for part in found] == [20, 20, 32]
    for part, given in zip(found, (history, recent, votes), strict=True):
        np.testing.assert_array_equal(part[: len(given)], given)
        assert not part[len(given) :].any()


@pytest.mark.parametrize("k", [1, 15, 16, 17, 576])
def test_rows_begin_lines_and_come_back(k):
    rows = generator("rows", k).integers(-(1 << 31), 1 << 31, (3, k))
    content = pack_rows(rows)
    assert row_bytes(k) % 64 == 0 and len(content) == 3 * row_bytes(k)
    assert content[row_bytes(k) :][: 4 * k] == rows[1].astype("<i4").tobytes()
    np.testing.assert_array_equal(unpack_rows(content, rows=3, k=k), rows)
