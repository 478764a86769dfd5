"""Part of the DSQ engine: K and V rows of tokens into INT8 blocks (golden `quantize_token_rows`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.control.commands import Opcode
from rtl.cache._write_port import word_shape
from rtl.cache._writer import done_layout, write_layout
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._gearbox import Gearbox
from rtl.control._layout import operand_layout
from rtl.control.scratchpad import ADDRESS_BITS, read_layout, word_layout
from rtl.dsq.row_quantizer import RowQuantizer
from rtl.mha._requests import times

__all__ = ["Appender", "append_layout"]

#: tokens whose rows have not all left the quantizer, at most
_TOKENS = 4
#: tokens that have not been answered, at most
_UNDER_WAY = 15
#: writes of a token: scale and row of K, then of V
_WRITES = 4


def append_layout() -> data.StructLayout:
    """The operands of APPEND."""
    fields = operand_layout(Opcode.APPEND)
    return data.StructLayout({name: field.shape for name, field in fields})


class Appender(wiring.Component):
    """Quantizes rows of the scratchpad and writes them; tokens follow each other through the quantizer.

    Throughput: a token each ``RowQuantizer.row_cycles`` of a K row and a V row, if nothing stalls.

    Members
    -------
    i : stream of operands of APPEND that have been checked
    o_scratch_read, i_scratch_read : words of the scratchpad
    o_store, o_store_word, i_stored : writes to pages, their words, how each ended
    o : stream, whether any write failed, one a token
    busy : a token has not been answered
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(append_layout())),
                "o_scratch_read": Out(stream.Signature(read_layout())),
                "i_scratch_read": In(stream.Signature(word_layout(config))),
                "o_store": Out(stream.Signature(write_layout(config))),
                "o_store_word": Out(stream.Signature(word_shape(KvCache.axi_configs(config)[1]))),
                "i_stored": In(stream.Signature(done_layout())),
                "o": Out(stream.Signature(1)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.requests = requests = SyncFIFOBuffered(width=append_layout().size, depth=_TOKENS)
        m.submodules.tokens = tokens = SyncFIFOBuffered(width=len(self.i.payload.token), depth=_TOKENS)
        m.submodules.quantizer = quantizer = RowQuantizer(self.config.dsq)
        under_way = Signal(range(_UNDER_WAY + 1))
        reading, taken = Signal(), self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(~reading & requests.w_rdy & tokens.w_rdy & (under_way != _UNDER_WAY)),
            requests.w_en.eq(taken),
            requests.w_data.eq(self.i.payload),
            tokens.w_en.eq(taken),
            tokens.w_data.eq(self.i.payload.token),
            self.busy.eq(under_way != 0),
        ]
        m.d.sync += under_way.eq(under_way + taken - (self.o.valid & self.o.ready))
        self._read(m, quantizer, taken, reading)
        self._request(m, requests)
        self._words(m, quantizer, tokens)

        count, failed = Signal(range(_WRITES)), Signal()
        m.d.comb += self.i_stored.ready.eq(~self.o.valid)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i_stored.valid & self.i_stored.ready):
            last = count == _WRITES - 1
            m.d.sync += [
                count.eq(count + 1),
                failed.eq(~last & (failed | self.i_stored.payload.error)),
                self.o.valid.eq(last),
                self.o.payload.eq(failed | self.i_stored.payload.error),
            ]
        return m

    def _read(self, m: Module, quantizer: RowQuantizer, taken: Signal, reading: Signal) -> None:
        """Words of the K row, then of the V row, to the quantizer."""
        c, lanes = self.config.dsq, self.config.gemm.row_lanes
        words = -(-c.head_dim // lanes)
        address, next_address = Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        word, is_v = Signal(range(words)), Signal()
        ask = self.o_scratch_read
        m.d.comb += [ask.valid.eq(reading), ask.payload.address.eq(address)]
        with m.If(taken):
            m.d.sync += [reading.eq(1), address.eq(self.i.payload.source_k), next_address.eq(self.i.payload.source_v)]
        with m.Elif(ask.valid & ask.ready):
            m.d.sync += [word.eq(word + 1), address.eq(address + 1)]
            with m.If(word == words - 1):
                m.d.sync += [word.eq(0), is_v.eq(~is_v), address.eq(next_address), reading.eq(~is_v)]

        m.submodules.rows = rows = Gearbox(16 * lanes, 16 * c.lanes, max_parts=c.head_dim)
        row_is_v = Signal()
        m.d.comb += [
            rows.parts.eq(c.head_dim // min(lanes, c.lanes) if lanes <= c.lanes else c.row_beats),
            rows.i.valid.eq(self.i_scratch_read.valid),
            rows.i.payload.eq(Cat(element[:16] for element in self.i_scratch_read.payload.data)),
            self.i_scratch_read.ready.eq(rows.i.ready),
            quantizer.i.valid.eq(rows.o.valid),
            quantizer.i.payload.rotate.eq(~row_is_v),
            quantizer.i.payload.data.eq(rows.o.payload.data),
            rows.o.ready.eq(quantizer.i.ready),
        ]
        with m.If(rows.o.valid & rows.o.ready & rows.o.payload.last):
            m.d.sync += row_is_v.eq(~row_is_v)

    def _request(self, m: Module, requests: SyncFIFOBuffered) -> None:
        """The four writes of a token."""
        block = self.config.memory_map.block
        word_bytes = self.config.dsq.bus_bits // 8
        oldest = data.View(append_layout(), requests.r_data)
        step, store = Signal(range(_WRITES)), self.o_store
        m.d.comb += [
            store.valid.eq(requests.r_rdy),
            *(store.payload[name].eq(oldest[name]) for name in ("sequence", "stream", "group")),
            store.payload.dense.eq(1),
            store.payload.commit.eq(0),
            requests.r_en.eq(store.valid & store.ready & (step == _WRITES - 1)),
        ]
        scale, row = oldest.token >> ceil_log2(word_bytes), times(oldest.token, block.row_words)
        pieces = ((block.k_scales, scale, 1), (block.k_rows, row, block.row_words))
        pieces += ((block.v_scales, scale, 1), (block.v_rows, row, block.row_words))
        with m.Switch(step):
            for n, ((first, _), word, count) in enumerate(pieces):
                with m.Case(n):
                    m.d.comb += [store.payload.word.eq(first + word), store.payload.count.eq(count)]
        with m.If(store.valid & store.ready):
            m.d.sync += step.eq(step + 1)

    def _words(self, m: Module, quantizer: RowQuantizer, tokens: SyncFIFOBuffered) -> None:
        """Of each row the byte of its scale, then its words."""
        c = self.config.dsq
        word_bytes = c.bus_bits // 8
        m.submodules.codes = codes = Gearbox(8 * c.lanes, c.bus_bits, max_parts=c.head_dim)
        is_v, out = Signal(), self.o_store_word
        beat = Signal(range(c.row_beats + 1))
        more = beat != c.row_beats
        byte = tokens.r_data[: ceil_log2(word_bytes)]
        m.d.comb += [
            codes.parts.eq(c.row_beats if 8 * c.lanes <= c.bus_bits else 8 * c.head_dim // c.bus_bits),
            codes.i.payload.eq(quantizer.o.payload.data),
        ]
        with m.FSM():
            with m.State("SCALE"):
                m.d.comb += [
                    out.valid.eq(quantizer.o.valid),
                    out.payload.data.eq(quantizer.o.payload.scale.replicate(word_bytes)),
                    out.payload.strb.eq(1 << byte),
                ]
                with m.If(out.valid & out.ready):
                    m.next = "ROW"
            with m.State("ROW"):
                m.d.comb += [
                    codes.i.valid.eq(quantizer.o.valid & more),
                    quantizer.o.ready.eq(codes.i.ready & more),
                    out.valid.eq(codes.o.valid),
                    out.payload.data.eq(codes.o.payload.data),
                    out.payload.strb.eq(~0),
                    codes.o.ready.eq(out.ready),
                ]
                m.d.sync += beat.eq(beat + (codes.i.valid & codes.i.ready))
                with m.If(out.valid & out.ready & codes.o.payload.last):
                    m.d.comb += tokens.r_en.eq(is_v)
                    m.d.sync += [is_v.eq(~is_v), beat.eq(0)]
                    m.next = "SCALE"
