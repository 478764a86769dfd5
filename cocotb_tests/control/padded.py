"""What `sim.bench` compares with: attention on a cache whose INT8 rows take the room of 16-bit ones."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect

from rtl.cache.cache import REQUESTS, KvCache
from rtl.config import AcceleratorConfig
from rtl.mha._requests import request_layout
from rtl.mha.core import MhaCore
from rtl.top import CachedAttention

__all__ = ["PaddedAttention", "RowPadder"]


class RowPadder(wiring.Component):
    """Asks for rows of INT8 blocks twice and drops them once: the traffic of rows with twice the bits.

    Members
    -------
    enable : else requests pass as they are; may change while nothing is under way
    i, o : requests of the core, and to memory
    i_word, o_word : words from memory, and to the core
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        request = stream.Signature(request_layout(config))
        word = stream.Signature(data.StructLayout({"data": config.dsq.bus_bits, "error": 1}))
        members = {"i": In(request), "o": Out(request), "i_word": In(word), "o_word": Out(word)}
        super().__init__({"enable": In(1), **members})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        request, block = self.i.payload, self.config.memory_map.block
        rows = 0
        for first, count in (block.k_rows, block.v_rows):
            rows = rows | ((request.word >= first) & (request.word < first + count))
        again, twice = Signal(), Signal()
        order = data.StructLayout({"drop": 1, "count": request.count.shape()})
        m.submodules.order = queue = SyncFIFOBuffered(width=order.size, depth=2 * REQUESTS)
        moved = self.o.valid & self.o.ready
        m.d.comb += [
            twice.eq(self.enable & request.dense & rows),
            self.o.valid.eq(self.i.valid & queue.w_rdy),
            self.o.payload.eq(request),
            self.i.ready.eq(self.o.ready & queue.w_rdy & (again | ~twice)),
            queue.w_en.eq(moved),
            queue.w_data.eq(Cat(again, request.count)),
        ]
        with m.If(moved):
            m.d.sync += again.eq(twice & ~again)
        oldest, given = data.View(order, queue.r_data), Signal.like(request.count)
        taken = self.i_word.valid & self.i_word.ready
        last = given == oldest.count - 1
        m.d.comb += [
            self.o_word.valid.eq(self.i_word.valid & queue.r_rdy & ~oldest.drop),
            self.o_word.payload.eq(self.i_word.payload),
            self.i_word.ready.eq(queue.r_rdy & (oldest.drop | self.o_word.ready)),
            queue.r_en.eq(taken & last),
        ]
        with m.If(taken):
            m.d.sync += given.eq(Mux(last, 0, given + 1))
        return m


class PaddedAttention(CachedAttention):
    """Attention with `RowPadder` between core and cache; ``padded`` enables it."""

    def _members(self) -> dict[str, wiring.Member]:
        return {**super()._members(), "padded": In(1)}

    def _connect_requests(self, m: Module, core: MhaCore, cache: KvCache) -> None:
        m.submodules.padder = padder = RowPadder(self.config)
        m.d.comb += padder.enable.eq(self.padded)
        connect(m, core.o_request, padder.i)
        connect(m, padder.o, cache.i_request)
        connect(m, cache.o, padder.i_word)
        connect(m, padder.o_word, core.i)
