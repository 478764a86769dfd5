"""Where records and blocks of INT8 tokens lie in memory, and the words that a query reads of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.record import RecordLayout
from golden.mha.core import Fetch
from golden.traffic import RECORD_ALIGNMENT

__all__ = ["BlockLayout", "MemoryMap", "fetched_words"]


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """First word and number of words of the parts of a block of ``group_tokens`` INT8 tokens.

    Scales are bytes, one behind the other; every row begins on a word.
    """

    head_dim: int
    group_tokens: int
    bus_bits: int

    @property
    def row_words(self) -> int:
        """Words of an INT8 row."""
        return -(-8 * self.head_dim // self.bus_bits)

    @property
    def k_scales(self) -> tuple[int, int]:
        """Scales of K."""
        return 0, -(-8 * self.group_tokens // self.bus_bits)

    @property
    def k_rows(self) -> tuple[int, int]:
        """Rows of K."""
        return sum(self.k_scales), self.group_tokens * self.row_words

    @property
    def v_scales(self) -> tuple[int, int]:
        """Scales of V."""
        return sum(self.k_rows), self.k_scales[1]

    @property
    def v_rows(self) -> tuple[int, int]:
        """Rows of V."""
        return sum(self.v_scales), self.k_rows[1]

    @property
    def words(self) -> int:
        """Words of the whole block."""
        return sum(self.v_rows)


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """Word addresses of pages: a page is one group of all ``streams``, that is (layer, kv_head) pairs.

    Page ``p`` of stream ``s`` begins ``(s * pages + p) * stride`` words behind the base of its pool. There is a pool of
    records and one of blocks; sizes are in bus words.
    """

    head_dim: int
    group_tokens: int
    max_salient: int
    delta_bits: int
    bus_bits: int
    streams: int
    record_pages: int
    block_pages: int

    @property
    def block(self) -> BlockLayout:
        """The parts of a block."""
        return BlockLayout(head_dim=self.head_dim, group_tokens=self.group_tokens, bus_bits=self.bus_bits)

    def stride(self, dense: bool) -> int:
        """Words from a page of a stream to its next one: the largest record, or a block, in whole 64-byte bursts."""
        word = self.bus_bits // 8
        geometry = {name: getattr(self, name) for name in ("head_dim", "group_tokens", "delta_bits", "bus_bits")}
        counts = range(1, self.max_salient + 1)
        records = (RecordLayout(**geometry, salient_tokens=s).record_bytes for s in counts)
        size = self.block.words * word if dense else max(records)
        return -(-size // RECORD_ALIGNMENT) * RECORD_ALIGNMENT // word

    def pages(self, dense: bool) -> int:
        """Pages of a pool."""
        return self.block_pages if dense else self.record_pages

    def pool_words(self, dense: bool) -> int:
        """Words of a pool."""
        return self.streams * self.pages(dense) * self.stride(dense)

    def offset(self, dense: bool, stream: int, page: int) -> int:
        """First word of a page of a stream, behind the base of its pool.

        Raises `ValueError` when there is no such stream or page.
        """
        if not 0 <= stream < self.streams:
            raise ValueError(f"stream must be from 0 to {self.streams - 1}, not {stream!r}")
        if not 0 <= page < self.pages(dense):
            raise ValueError(f"page must be from 0 to {self.pages(dense) - 1}, not {page!r}")
        return (stream * self.pages(dense) + page) * self.stride(dense)


def fetched_words(fetch: Fetch, layout: RecordLayout) -> NDArray[np.int64]:
    """Bus words that each of the n queries of ``fetch`` reads, all in one: ``[n]``.

    Of every scanned record header and upper nibbles, then the rows that are fetched. Of the INT8 tokens, blocks of
    ``layout.group_tokens`` but for the last one, scales and rows of K, scales of V of a block of which any row of V is
    read, and those rows. Raises `ValueError` when rows of a record share words.
    """
    word = layout.bus_bits // 8
    block = BlockLayout(head_dim=layout.head_dim, group_tokens=layout.group_tokens, bus_bits=layout.bus_bits)
    queries, tokens = fetch.v_int8.shape
    total = np.zeros(queries, np.int64)
    for i in range(queries):
        last = tokens - queries + 1 + i
        for start in range(0, last, layout.group_tokens):
            size = min(layout.group_tokens, last - start)
            near = int(fetch.v_int8[i, start : start + size].sum())
            scales = -(-8 * size // layout.bus_bits)
            total[i] += scales + size * block.row_words + (scales + near * block.row_words if near else 0)
    if not fetch.scanned.size:
        return total
    total += int(fetch.scanned.sum()) * -(-layout.upper.end // word)
    for section, mask in (
        (layout.lower, fetch.lower),
        (layout.k_delta, fetch.k_delta),
        (layout.k_fine, fetch.v_delta),
        (layout.v_salient, fetch.v_salient),
        (layout.v_delta, fetch.v_delta),
    ):
        if section.rows:
            if section.stride % word:
                raise ValueError(f"rows of {section.stride} bytes share a word of {word} bytes: not counted here")
            total += mask.sum(axis=(1, 2)) * (section.stride // word)
    return total
