"""Part of the DSQ engine: the INT8 rows of a block, token by token."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.cache._read_port import word_shape
from rtl.cache._translator import words_layout
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._gearbox import Gearbox

__all__ = ["BlockRows"]


class BlockRows(wiring.Component):
    """Reads a block: its scales first, then for each token its K row and its V row.

    Throughput: a word of the narrower of bus and beat a cycle.

    Members
    -------
    start : strobe; ``sequence``, ``stream``, ``group`` hold from it until ``loaded``
    o_fetch, i_fetch : requests for words of pages, and the words
    o : stream of struct{scale, data}, ``row_beats`` a row, as ``i_row`` of Compressor
    loaded : all rows have been given since ``start``
    failed : a word was in error; until reset
    """

    def __init__(self, config: AcceleratorConfig, o_shape: data.StructLayout) -> None:
        self.config = config
        words = words_layout(config)
        super().__init__(
            {
                "start": In(1),
                "sequence": In(words["sequence"].shape),
                "stream": In(words["stream"].shape),
                "group": In(words["group"].shape),
                "o_fetch": Out(stream.Signature(words)),
                "i_fetch": In(stream.Signature(word_shape(KvCache.axi_configs(config)[0]))),
                "o": Out(stream.Signature(o_shape)),
                "loaded": Out(1, init=1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config.dsq
        i, o, rows = self.i_fetch, self.o, 2 * c.group_tokens
        scale_words = self.config.memory_map.block.k_scales[1]
        word_bytes = c.bus_bits // 8
        m.submodules.words = words = Gearbox(c.bus_bits, 8 * c.lanes, max_parts=c.head_dim)
        m.submodules.scales = scales = Memory(shape=c.bus_bits, depth=2 * scale_words, init=[])
        write, read = scales.write_port(), scales.read_port(domain="comb")
        self._request(m)

        in_scales, word, row = Signal(), Signal(range(2 * scale_words)), Signal(range(rows))
        token, is_v = row[1:], row[0]
        byte = token[: ceil_log2(word_bytes)]
        m.d.comb += [
            write.addr.eq(word),
            write.data.eq(i.payload.data),
            read.addr.eq((token >> ceil_log2(word_bytes)) + Mux(is_v, scale_words, 0)),
            write.en.eq(in_scales & i.valid),
            words.parts.eq(c.row_beats if 8 * c.lanes <= c.bus_bits else 8 * c.head_dim // c.bus_bits),
            words.i.valid.eq(i.valid & ~in_scales),
            words.i.payload.eq(i.payload.data),
            i.ready.eq(in_scales | words.i.ready),
            o.valid.eq(words.o.valid),
            o.payload.scale.eq(read.data.word_select(byte, 8)),
            o.payload.data.eq(words.o.payload.data),
            words.o.ready.eq(o.ready),
        ]
        with m.If(write.en):
            m.d.sync += word.eq(word + 1)
            with m.If(word == 2 * scale_words - 1):
                m.d.sync += [word.eq(0), in_scales.eq(0)]
        with m.If(o.valid & o.ready & words.o.payload.last):
            m.d.sync += row.eq(row + 1)
            with m.If(row == rows - 1):
                m.d.sync += self.loaded.eq(1)
        with m.If(self.start):
            m.d.sync += [in_scales.eq(1), self.loaded.eq(0)]
        with m.If(i.valid & i.ready & i.payload.error):
            m.d.sync += self.failed.eq(1)
        return m

    def _request(self, m: Module) -> None:
        """Two pieces of scales, then a row of each piece in turn."""
        block, tokens = self.config.memory_map.block, self.config.dsq.group_tokens
        busy, in_scales, is_v = Signal(), Signal(), Signal()
        word, left = Signal(range(tokens * block.row_words)), Signal(range(tokens))
        out = self.o_fetch
        first = Mux(is_v, block.v_rows[0], block.k_rows[0])
        m.d.comb += [
            out.valid.eq(busy),
            *(out.payload[name].eq(getattr(self, name)) for name in ("sequence", "stream", "group")),
            out.payload.dense.eq(1),
            out.payload.word.eq(Mux(in_scales, Mux(is_v, block.v_scales[0], block.k_scales[0]), first + word)),
            out.payload.count.eq(Mux(in_scales, block.k_scales[1], block.row_words)),
        ]
        with m.If(self.start):
            m.d.sync += [busy.eq(1), in_scales.eq(1), word.eq(0), left.eq(tokens - 1)]
        with m.Elif(out.valid & out.ready):
            m.d.sync += is_v.eq(~is_v)
            with m.If(is_v):
                m.d.sync += in_scales.eq(0)
                with m.If(~in_scales):
                    m.d.sync += [word.eq(word + block.row_words), left.eq(left - 1), busy.eq(left != 0)]
