"""The packed record of one compressed group: layout, packing, unpacking.

A record is a whole number of bus words, little-endian (bit 0 of a word is bit 0 of its first byte). Its sections, each
starting on a bus word:

====== ======================================================== ====================================================
scan   header, then the upper nibbles of the K base rows        read for every group that is scanned
lower  lower nibbles of the K base rows                         read by row, for bases near the maximum
delta  upper two bits of the K delta rows, sorted by base:      read by run
       a base's run is adjacent
fine   the other bits of the K delta rows (delta_bits above 2)  read by row, with the row's V
value  V salient rows                                           read by row
rest   V delta rows, in the order of the K delta rows           read by row
====== ======================================================== ====================================================

The header's bytes: salient count, delta_bits, K group scale, V group scale; then per base its run length, per base its
K scale, per base its V scale.
Rows hold one code a channel, channel 0 in the lowest bits. A row that is narrower than a bus word takes the next
power-of-two part of it, a wider one whole bus words; unused bits are zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import VALUE_BITS, CompressedGroup
from golden.dsq.scale import MAX_EXPONENT, split_scale

__all__ = ["COARSE_BITS", "HEADER_BYTES", "RecordError", "RecordLayout", "Section", "pack", "unpack"]

#: header bytes before the per-base ones
HEADER_BYTES = 4
#: bits of a K delta code that the first of its two planes holds
COARSE_BITS = 2


class RecordError(ValueError):
    """A record whose header contradicts itself or the geometry."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A run of rows: first byte, bytes from one row to the next, rows, bits a code."""

    offset: int
    stride: int
    rows: int
    code_bits: int

    @property
    def end(self) -> int:
        """First byte behind the section's rows (before padding to a bus word)."""
        return self.offset + self.stride * self.rows


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Where everything lies in a record with ``salient_tokens`` salient tokens of ``group_tokens``."""

    head_dim: int = 64
    group_tokens: int = 64
    salient_tokens: int = 13
    delta_bits: int = 2
    bus_bits: int = 128

    def __post_init__(self) -> None:
        if not 1 <= self.salient_tokens <= self.group_tokens:
            limit = f"group_tokens={self.group_tokens}"
            raise ValueError(f"salient_tokens must be 1 to {limit}, not {self.salient_tokens!r}")
        if self.delta_bits not in (2, 4):
            raise ValueError(f"delta_bits must be 2 or 4, not {self.delta_bits!r}")
        if self.bus_bits < 32 or self.bus_bits & (self.bus_bits - 1):
            raise ValueError(f"bus_bits must be a power of two of at least 32, not {self.bus_bits!r}")

    def row_stride(self, code_bits: int) -> int:
        """Bytes from one row to the next."""
        bits = self.head_dim * code_bits
        if bits >= self.bus_bits:
            return -(-bits // self.bus_bits) * self.bus_bits // 8
        return max(8, 1 << (bits - 1).bit_length()) // 8

    def _align(self, offset: int) -> int:
        word = self.bus_bits // 8
        return -(-offset // word) * word

    def _section(self, offset: int, rows: int, code_bits: int) -> Section:
        return Section(offset=self._align(offset), stride=self.row_stride(code_bits), rows=rows, code_bits=code_bits)

    @property
    def header_bytes(self) -> int:
        """Bytes of the header before padding: counts and scales."""
        return HEADER_BYTES + 3 * self.salient_tokens

    @property
    def upper(self) -> Section:
        """Upper nibbles of the K base rows."""
        return self._section(self.header_bytes, self.salient_tokens, 4)

    @property
    def lower(self) -> Section:
        """Lower nibbles of the K base rows."""
        return self._section(self.upper.end, self.salient_tokens, 4)

    @property
    def k_delta(self) -> Section:
        """Upper two bits of the K delta codes."""
        return self._section(self.lower.end, self.group_tokens - self.salient_tokens, COARSE_BITS)

    @property
    def k_fine(self) -> Section:
        """The other bits of the K delta codes; no rows when ``delta_bits`` is 2."""
        rows = self.group_tokens - self.salient_tokens if self.delta_bits > COARSE_BITS else 0
        return self._section(self.k_delta.end, rows, self.delta_bits - COARSE_BITS)

    @property
    def v_salient(self) -> Section:
        """V salient rows."""
        return self._section(self.k_fine.end, self.salient_tokens, 8)

    @property
    def v_delta(self) -> Section:
        """V delta rows."""
        return self._section(self.v_salient.end, self.group_tokens - self.salient_tokens, VALUE_BITS)

    @property
    def record_bytes(self) -> int:
        """Bytes of the whole record, a whole number of bus words."""
        return self._align(self.v_delta.end)


def _put(record: NDArray[np.uint8], section: Section, codes: NDArray[np.integer]) -> None:
    """Write ``codes[rows, head_dim]`` (their low ``code_bits``) into the section's rows."""
    shifts = np.arange(section.code_bits)
    bits = (codes[..., None].astype(np.int64) >> shifts & 1).astype(np.uint8)
    bits = bits.reshape(section.rows, codes.shape[1] * section.code_bits)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows = record[section.offset : section.end].reshape(section.rows, section.stride)
    rows[:, : packed.shape[1]] = packed


def _get(record: NDArray[np.uint8], section: Section, head_dim: int) -> NDArray[np.uint8]:
    """Read the section's rows as unsigned ``codes[rows, head_dim]``."""
    rows = record[section.offset : section.end].reshape(section.rows, section.stride)
    bits = np.unpackbits(rows, axis=1, bitorder="little")[:, : head_dim * section.code_bits]
    weights = (1 << np.arange(section.code_bits)).astype(np.uint8)
    return (bits.reshape(section.rows, head_dim, section.code_bits) * weights).sum(axis=2).astype(np.uint8)


def pack(group: CompressedGroup, layout: RecordLayout) -> NDArray[np.uint8]:
    """The record's bytes, ``[layout.record_bytes]``."""
    record = np.zeros(layout.record_bytes, np.uint8)
    s = layout.salient_tokens
    record[:HEADER_BYTES] = s, layout.delta_bits, group.k_group_scale, group.v_group_scale
    record[HEADER_BYTES : layout.header_bytes].reshape(3, s)[:] = (
        group.run_length,
        group.k_base_scale,
        group.v_salient_scale,
    )
    base = group.k_base.astype(np.int64)
    _put(record, layout.upper, base >> 4)
    _put(record, layout.lower, base)
    fine_bits = layout.delta_bits - COARSE_BITS
    _put(record, layout.k_delta, group.k_delta >> fine_bits)
    if fine_bits:
        _put(record, layout.k_fine, group.k_delta)
    _put(record, layout.v_salient, group.v_salient)
    _put(record, layout.v_delta, group.v_delta)
    return record


def unpack(
    record: NDArray[np.uint8], *, head_dim: int, group_tokens: int, delta_bits: int, bus_bits: int
) -> CompressedGroup:
    """The fields of a record; ``order`` comes back empty, as it is not stored.

    Raises :class:`RecordError` when the salient count is impossible, the delta width differs from ``delta_bits``, the
    record is too short or too long, the run lengths and the salient count do not add up to ``group_tokens``, or the
    scale of a row has an exponent above ``MAX_EXPONENT``.
    """
    if len(record) < HEADER_BYTES:
        raise RecordError(f"record must have at least {HEADER_BYTES} bytes, not {len(record)}")
    s = int(record[0])
    if not 1 <= s <= group_tokens:
        raise RecordError(f"salient count must be 1 to {group_tokens}, not {s}")
    if int(record[1]) != delta_bits:
        raise RecordError(f"delta bits must be {delta_bits}, not {int(record[1])}")
    layout = RecordLayout(
        head_dim=head_dim, group_tokens=group_tokens, salient_tokens=s, delta_bits=delta_bits, bus_bits=bus_bits
    )
    if len(record) != layout.record_bytes:
        raise RecordError(f"record must have {layout.record_bytes} bytes, not {len(record)}")
    run_length, k_scale, v_scale = record[HEADER_BYTES : layout.header_bytes].reshape(3, s)
    if int(run_length.sum()) + s != group_tokens:
        raise RecordError(f"run lengths must sum to {group_tokens - s}, not {int(run_length.sum())}")
    exponent = int(split_scale(np.concatenate([k_scale, v_scale]))[1].max())
    if exponent > MAX_EXPONENT:
        raise RecordError(f"row scales must have exponents of at most {MAX_EXPONENT}, not {exponent}")
    base = _get(record, layout.upper, head_dim) << 4 | _get(record, layout.lower, head_dim)
    fine_bits = delta_bits - COARSE_BITS
    k_delta = _get(record, layout.k_delta, head_dim) << np.uint8(fine_bits)
    if fine_bits:
        k_delta |= _get(record, layout.k_fine, head_dim)
    return CompressedGroup(
        k_base=base.view(np.int8),
        k_base_scale=k_scale,
        v_salient=_get(record, layout.v_salient, head_dim).view(np.int8),
        v_salient_scale=v_scale,
        run_length=run_length.astype(np.int64),
        k_group_scale=int(record[2]),
        v_group_scale=int(record[3]),
        k_delta=k_delta,
        v_delta=_get(record, layout.v_delta, head_dim),
        order=np.zeros(0, np.int64),
    )
