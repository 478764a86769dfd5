"""The K base rows of the record at hand, written as they are decoded and read a whole delta word at a time."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.config import DsqConfig
from rtl.dsq._row_format import Section, base_index_shape, row_formats

__all__ = ["BaseRows"]


class BaseRows(wiring.Component):
    """INT16 rows, written in words of base elements, read in words of delta elements, one of each a cycle.

    Where a row takes several base words, the even and the odd ones lie in two memories, since a delta word has the
    elements of up to two. Where a base word has several rows, row r lies in memory r mod rows-a-word; where a delta
    word has several rows, all memories are there once for each of them, because each row may have any base. Reading is
    combinational, and what was written shows from the next cycle on. Rows from ``max_salient`` on, which only a record
    without deltas has, go anywhere.

    Members
    -------
    w_en, w_row, w_channel, w_data : a word of base elements, its first row and channel
    r_rows, r_channel : index of the base of each row in a delta word, first channel of the word
    r_data : the base elements under the delta elements of this word
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        formats = row_formats(config)
        self.base, self.delta = formats[Section.K_BASE], formats[Section.K_DELTA]
        super().__init__(
            {
                "w_en": In(1),
                "w_row": In(range(config.group_tokens)),
                "w_channel": In(range(config.head_dim)),
                "w_data": In(data.ArrayLayout(signed(16), self.base.lanes)),
                "r_rows": In(data.ArrayLayout(base_index_shape(config), self.delta.per_word)),
                "r_channel": In(range(config.head_dim)),
                "r_data": Out(data.ArrayLayout(signed(16), self.delta.lanes)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self.base.words > 1:
            self._wide(m)
        else:
            self._narrow(m)
        return m

    def _memory(self, m: Module, name: str, width: int, depth: int) -> tuple[Any, Any]:
        memory = Memory(shape=data.ArrayLayout(signed(16), width), depth=max(2, 1 << ceil_log2(depth)), init=[])
        m.submodules[name] = memory
        return memory.write_port(), memory.read_port(domain="comb")

    def _wide(self, m: Module) -> None:
        """Rows of several base words: memories of the even and the odd words; a delta word has one or two of them."""
        width = self.base.codes
        pairs = 1 << ceil_log2(-(-self.base.words // 2))
        pair_bits, parity = ceil_log2(pairs), self.w_channel[ceil_log2(width)]
        pair = slice(ceil_log2(width) + 1, ceil_log2(width) + 1 + pair_bits)
        banks = []
        for odd in range(2):
            write, read = self._memory(m, f"{'odd' if odd else 'even'}_words", width, self.config.max_salient * pairs)
            m.d.comb += [
                write.en.eq(self.w_en & (parity == odd)),
                write.addr.eq(Cat(self.w_channel[pair], self.w_row)),
                write.data.eq(self.w_data),
                read.addr.eq(Cat(self.r_channel[pair], self.r_rows[0])),
            ]
            banks.append(read.data)
        for lane in range(self.delta.lanes):
            m.d.comb += self.r_data[lane].eq(banks[lane // width][lane % width])

    def _narrow(self, m: Module) -> None:
        """Whole rows: a memory for each row of a base word, all of them for each row of a delta word."""
        head_dim, rows = self.config.head_dim, self.base.per_word
        depth = -(-self.config.max_salient // rows)
        row_bits = ceil_log2(rows)
        for reader in range(self.delta.per_word):
            banks = []
            for i in range(rows):
                write, read = self._memory(m, f"rows_{reader}_{i}", head_dim, depth)
                m.d.comb += [
                    write.en.eq(self.w_en),
                    write.addr.eq(self.w_row[row_bits:]),
                    write.data.eq(Cat(self.w_data[i * head_dim + c] for c in range(head_dim))),
                    read.addr.eq(self.r_rows[reader][row_bits:]),
                ]
                banks.append(read.data)
            chosen = Signal(data.ArrayLayout(signed(16), head_dim), name=f"chosen_{reader}")
            with m.Switch(self.r_rows[reader][:row_bits]):
                for i, bank in enumerate(banks):
                    with m.Case(i):
                        m.d.comb += chosen.eq(bank)
            for c in range(head_dim):
                m.d.comb += self.r_data[reader * head_dim + c].eq(chosen[c])
