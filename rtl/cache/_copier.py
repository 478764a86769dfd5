"""Part of the cache: copies a page of blocks, for a sequence that forks."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.cache._translator import address_bits, span_layout
from rtl.config import AcceleratorConfig
from rtl.mha._requests import times

__all__ = ["Copier"]


class Copier(wiring.Component):
    """Reads and writes the block of every stream in turn; words go straight from the reader's port to the writer's.

    Members
    -------
    i : stream of struct{source, target}, block pages
    base : where the pool of blocks begins, in words
    o_read, o_write : requests, of AxiReader and AxiWriter
    i_error : stream of AxiWriter, whether a write failed
    i_read_error : a word that passes has an error
    o : stream, whether anything failed, when all is written
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        page = bits_for(config.cache.block_pages - 1)
        span = span_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"source": page, "target": page}))),
                "base": In(address_bits(config)),
                "o_read": Out(stream.Signature(span)),
                "o_write": Out(stream.Signature(span)),
                "i_error": In(stream.Signature(1)),
                "i_read_error": In(1),
                "o": Out(stream.Signature(1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout, streams = self.config.memory_map, self.config.cache.streams
        stride, step = layout.stride(True), layout.pages(True) * layout.stride(True)
        ports, failed = (self.o_read, self.o_write), Signal()
        asked, answered = Signal(range(streams + 1)), Signal(range(streams + 1))
        with m.If(self.i_read_error | (self.i_error.valid & self.i_error.ready & self.i_error.payload)):
            m.d.sync += failed.eq(1)
        for port in ports:
            m.d.comb += port.payload.count.eq(layout.block.words)
        m.d.comb += self.o.payload.eq(failed)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [asked.eq(0), answered.eq(0), failed.eq(0)]
                for port, page in zip(ports, (self.i.payload.source, self.i.payload.target), strict=True):
                    m.d.sync += port.payload.address.eq(self.base + times(page, stride))
                with m.If(self.i.valid):
                    m.d.sync += [port.valid.eq(1) for port in ports]
                    m.next = "COPY"
            with m.State("COPY"):
                for port in ports:
                    with m.If(port.ready):
                        m.d.sync += port.valid.eq(0)
                m.d.comb += self.i_error.ready.eq(1)
                m.d.sync += answered.eq(answered + self.i_error.valid)
                with m.If(~self.o_read.valid & ~self.o_write.valid & (asked != streams - 1)):
                    m.d.sync += asked.eq(asked + 1)
                    for port in ports:
                        m.d.sync += [port.payload.address.eq(port.payload.address + step), port.valid.eq(1)]
                with m.If(answered == streams):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m
