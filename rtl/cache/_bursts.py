"""Part of the AXI4 reader and writer: requests become bursts (golden `bursts`)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.cache.axi import AxiConfig

__all__ = ["Bursts"]


class Bursts(wiring.Component):
    """Splits requests into bursts of at most ``max_burst`` beats that never cross 4 KiB; bad ones into single words.

    Latency: 2 cycles. Throughput: a burst a cycle, also of successive requests.
    Combinational paths: from ``o.ready`` to ``i.ready``.

    A request of no words gives no burst. Addresses wrap at the end of the address space.
    """

    def __init__(self, config: AxiConfig) -> None:
        self.config = config
        super().__init__(
            {"i": In(stream.Signature(config.request_shape)), "o": Out(stream.Signature(config.burst_shape))}
        )
        #: what is left of a request
        self.address, self.bad = Signal(config.word_addr_bits), Signal()
        self.left = Signal(config.request_shape["count"].shape)
        self.to_boundary = Signal(range(config.boundary_words + 1))  # words up to the next 4 KiB

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        address, left, bad, to_boundary = self.address, self.left, self.bad, self.to_boundary
        last, free = Signal(), Signal()
        beats = Signal(c.beats_shape)
        limit = Signal(c.beats_shape)
        m.d.comb += [
            limit.eq(Mux(bad, 1, Mux(to_boundary < c.max_burst, to_boundary, Const(c.max_burst)))),
            last.eq(left <= limit),
            beats.eq(Mux(last, left, limit)),
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq((left == 0) | (free & last)),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(left != 0),
                self.o.payload.eq(Cat(address, beats, bad, last)),
                address.eq(address + beats),
                to_boundary.eq(Mux(to_boundary == beats, c.boundary_words, to_boundary - beats)),
                left.eq(left - beats),
            ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [address.eq(self.i.payload.address), left.eq(self.i.payload.count), bad.eq(self.i.payload.bad)]
            m.d.sync += to_boundary.eq(c.boundary_words - self.i.payload.address % c.boundary_words)
        return m
