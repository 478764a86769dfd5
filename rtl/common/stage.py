"""Registers between two streams."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ForwardStage", "Stage"]


class Stage(wiring.Component):
    """Two registers: valid, payload and ``ready`` come from registers alone.

    Latency: 1 cycle. Throughput: a word a cycle.
    """

    def __init__(self, shape: Any) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        held, waiting = Signal.like(self.i.payload), Signal()
        m.d.comb += self.i.ready.eq(~waiting)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(self.i.valid | waiting),
                self.o.payload.eq(Mux(waiting, held, self.i.payload)),
                waiting.eq(0),
            ]
        with m.Elif(self.i.valid & ~waiting):
            m.d.sync += [held.eq(self.i.payload), waiting.eq(1)]
        return m


class ForwardStage(wiring.Component):
    """One register: valid and payload come from it, ``ready`` passes through.

    Behind block RAM, whose words come late in a cycle. Latency: 1 cycle. Throughput: a word a cycle.
    """

    def __init__(self, shape: Any) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        return m
