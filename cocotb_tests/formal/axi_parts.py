"""Parts of the AXI4 reader and writer, each with its properties beside it."""

from typing import Any

from amaranth.hdl import Assert, Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.formal.axi_rules import assert_holds, assume_holds
from golden.cache.axi import BOUNDARY_BYTES
from rtl.cache._bursts import Bursts
from rtl.cache.axi import AxiConfig

__all__ = ["BurstsAreLegal", "HoldsAndKeepsOrder"]

_COUNT_BITS = 8


class BurstsAreLegal(wiring.Component):
    """Whatever address and count it has, the splitter's burst is legal and part of the request."""

    def __init__(self, config: AxiConfig) -> None:
        self.config = config
        super().__init__({"i": In(stream.Signature(config.request_shape)), "ready": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.bursts = bursts = Bursts(c)
        o, burst = bursts.o, bursts.o.payload
        wiring.connect(m, wiring.flipped(self.i), bursts.i)
        m.d.comb += [Assume(~ResetSignal()), o.ready.eq(self.ready)]
        assert_holds(m, o.valid, o.ready, burst)
        page = BOUNDARY_BYTES // c.word_bytes
        with m.If(o.valid):
            m.d.comb += [
                Assert((burst.beats >= 1) & (burst.beats <= c.max_burst)),
                Assert(burst.address % page + burst.beats <= page),
                Assert(~burst.bad | (burst.beats == 1)),
            ]
        # A burst that is not the last one is followed by the one behind it.
        follows, address, bad = Signal(), Signal.like(burst.address), Signal()
        m.d.sync += [
            follows.eq(o.valid & o.ready & ~burst.last),
            address.eq(burst.address + burst.beats),
            bad.eq(burst.bad),
        ]
        m.d.comb += Assert(~follows | (o.valid & (burst.address == address) & (burst.bad == bad)))
        # That is what is left of the request.
        behind = (bursts.left != 0) & (bursts.address == (burst.address + burst.beats)[: len(address)])
        most = Mux(bursts.bad, 1, Mux(bursts.to_boundary < c.max_burst, bursts.to_boundary, c.max_burst))
        kept = (bursts.to_boundary == page - bursts.address % page) & (bursts.limit == most)
        m.d.comb += Assert((bursts.left == 0) | kept)
        m.d.comb += Assert(~o.valid | burst.last | (behind & (bursts.bad == burst.bad)))
        return m


class HoldsAndKeepsOrder(wiring.Component):
    """Words go in that count up; the same words come out, and hold until they are taken.

    Parameters
    ----------
    part : with streams ``i`` and ``o`` of 8 bits
    """

    def __init__(self, part: wiring.Component) -> None:
        self.part = part
        super().__init__({"give": In(1), "take": In(1), "gave": Out(_COUNT_BITS), "took": Out(_COUNT_BITS)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.part = part = self.part
        i, o = part.i, part.o
        m.d.comb += [
            Assume(~ResetSignal()),
            i.valid.eq(self.give),
            i.payload.eq(self.gave),
            o.ready.eq(self.take),
            Assert(~o.valid | ((o.payload == self.took) & (self.gave != self.took))),
        ]
        assume_holds(m, i.valid, i.ready, i.payload)
        assert_holds(m, o.valid, o.ready, o.payload)
        m.d.sync += [self.gave.eq(self.gave + (i.valid & i.ready)), self.took.eq(self.took + (o.valid & o.ready))]
        # Nothing stays inside: words that are there come out as soon as they can.
        idle = Signal(range(4))
        m.d.sync += idle.eq(Mux(o.valid | (self.gave == self.took), 0, idle + 1))
        m.d.comb += Assert(idle <= 1)
        return m
