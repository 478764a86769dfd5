"""What `sim.memory` compares with: the accelerator on records without run order, and beside GEMM cores that read."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect
from amaranth.utils import bits_for, ceil_log2

from golden.dsq.record import RecordLayout
from rtl.cache._translator import STREAM_BITS
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOT_BITS, SLOTS
from rtl.mha._requests import request_layout
from rtl.mha.core import MhaCore
from rtl.top import CachedAttention

__all__ = ["LoadedAttention", "PlaceMemory", "section_rows"]

#: words of a request of a GEMM core
GEMM_WORDS = 64


def section_rows(config: AcceleratorConfig, salient_tokens: int) -> tuple[int, int]:
    """First word and rows of the coarse plane of K differences; a row is one word or more, all alike."""
    c = config.dsq
    layout = RecordLayout(
        head_dim=c.head_dim,
        group_tokens=c.group_tokens,
        salient_tokens=salient_tokens,
        delta_bits=c.delta_bits,
        bus_bits=c.bus_bits,
    )
    return layout.k_delta.offset * 8 // c.bus_bits, layout.k_delta.rows


class PlaceMemory(wiring.Component):
    """Cuts runs of coarse rows into single rows, each at the place that a memory gives for it.

    Members
    -------
    enable : else requests pass as they are
    i_place : stream: place of row after row, group after group, stream after stream
    begin, stream : strobe, the core takes a query on that stream
    i, o : requests
    """

    def __init__(self, config: AcceleratorConfig, *, groups: int, streams: int, salient_tokens: int) -> None:
        self.config = config
        self.groups, self.streams = groups, streams
        self.first, self.rows = section_rows(config, salient_tokens)
        request = request_layout(config)
        super().__init__(
            {
                "enable": In(1),
                "i_place": In(stream.Signature(bits_for(self.rows - 1))),
                "begin": In(1),
                "stream": In(STREAM_BITS),
                "i": In(stream.Signature(request)),
                "o": Out(stream.Signature(request)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        words, rows = self.config.dsq.row_words(2), self.rows
        depth = self.streams * self.groups * rows
        m.submodules.places = places = Memory(shape=bits_for(rows - 1), depth=depth, init=[])
        write, read = places.write_port(), places.read_port(domain="comb")
        streams = [Signal(STREAM_BITS, name=f"stream_{n}") for n in range(SLOTS)]
        next_slot, given = Signal(SLOT_BITS), Signal.like(self.i.payload.count)
        with m.If(self.begin):
            m.d.sync += next_slot.eq(next_slot + 1)
            for n, kept in enumerate(streams):
                with m.If(next_slot == n):
                    m.d.sync += kept.eq(self.stream)
        request = self.i.payload
        inside = (request.word >= self.first) & (request.word < self.first + rows * words)
        cuts = self.enable & ~request.dense & inside
        row = Signal(range(rows + 1))
        owner = Signal(STREAM_BITS)
        with m.Switch(request.slot):
            for n, kept in enumerate(streams):
                with m.Case(n):
                    m.d.comb += owner.eq(kept)
        last = ~cuts | (given + words >= request.count)
        m.d.comb += [
            self.i_place.ready.eq(1),
            write.en.eq(self.i_place.valid),
            write.data.eq(self.i_place.payload),
            row.eq((request.word - self.first + given) >> ceil_log2(words)),
            read.addr.eq((owner * self.groups + request.group) * rows + row),
            self.o.valid.eq(self.i.valid),
            self.o.payload.eq(request),
            self.i.ready.eq(self.o.ready & last),
        ]
        with m.If(cuts):
            m.d.comb += [self.o.payload.word.eq(self.first + read.data * words), self.o.payload.count.eq(words)]
        with m.If(self.i_place.valid):
            m.d.sync += write.addr.eq(write.addr + 1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += given.eq(Mux(last, 0, given + words))
        return m


class LoadedAttention(CachedAttention):
    """The accelerator with `PlaceMemory` between core and cache, and GEMM ports that read on and on.

    Members
    -------
    scatter, i_place : of PlaceMemory
    gemm : the GEMM ports ask for one piece of memory after the other, and take all words
    others : of CachedAttention, but for the GEMM ports
    """

    def __init__(self, config: AcceleratorConfig, *, groups: int, salient_tokens: int) -> None:
        streams = config.cache.streams
        self._places = PlaceMemory(config, groups=groups, streams=streams, salient_tokens=salient_tokens)
        super().__init__(config)

    def _members(self) -> dict[str, wiring.Member]:
        members = {name: member for name, member in super()._members().items() if name not in ("i_read", "o_read")}
        return {**members, "scatter": In(1), "gemm": In(1), "i_place": self._places.signature.members["i_place"]}

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        cache = self._cache
        pieces = self.config.memory_map.pool_words(False) // GEMM_WORDS
        for n, (request, words) in enumerate(zip(cache.i_read, cache.o_read, strict=True)):
            piece = Signal(range(pieces), init=n, name=f"gemm_piece_{n}")
            m.d.comb += [
                request.valid.eq(self.gemm),
                request.payload.address.eq(piece * GEMM_WORDS),
                request.payload.count.eq(GEMM_WORDS),
                words.ready.eq(1),
            ]
            with m.If(request.valid & request.ready):
                m.d.sync += piece.eq(Mux(piece >= pieces - len(cache.i_read), n, piece + len(cache.i_read)))
        return m

    def _connect_requests(self, m: Module, core: MhaCore, cache: KvCache) -> None:
        m.submodules.places = places = self._places
        connect(m, core.o_request, places.i)
        connect(m, places.o, cache.i_request)
        connect(m, cache.o, core.i)
        connect(m, wiring.flipped(self.i_place), places.i_place)
        m.d.comb += [
            places.enable.eq(self.scatter),
            places.begin.eq(self.i_query.valid & self.i_query.ready),
            places.stream.eq(self.i_query.payload.owner.stream),
        ]
