"""Part of the AXI4 reader and writer: requests become bursts (golden `bursts`)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
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
        #: what is left of a request; words up to the next 4 KiB; the most words that the next burst may have
        self.address, self.bad = Signal(config.word_addr_bits), Signal()
        self.left = Signal(config.request_shape["count"].shape)
        self.to_boundary = Signal(range(config.boundary_words + 1))
        self.limit = Signal(config.beats_shape)

    def _limit(self, to_boundary: Value, bad: Value) -> Value:
        most = self.config.max_burst
        return Mux(bad, 1, Mux(to_boundary < most, to_boundary, Const(most)))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, request = self.config, self.i.payload
        address, left, bad, to_boundary, limit = self.address, self.left, self.bad, self.to_boundary, self.limit
        last, free = Signal(), Signal()
        # Of the burst after a full one. After the last one a request is loaded, or nothing is left.
        boundary_then, boundary_first = Signal.like(to_boundary), Signal.like(to_boundary)
        m.d.comb += [
            last.eq(left <= limit),
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq((left == 0) | (free & last)),
            boundary_then.eq(Mux(to_boundary == limit, c.boundary_words, to_boundary - limit)),
            boundary_first.eq(c.boundary_words - request.address % c.boundary_words),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(left != 0),
                self.o.payload.eq(Cat(address, Mux(last, left, limit)[: len(limit)], bad, last)),
                left.eq(Mux(last, 0, left - limit)),
                address.eq(address + limit),
                to_boundary.eq(boundary_then),
                limit.eq(self._limit(boundary_then, bad)),
            ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                address.eq(request.address),
                left.eq(request.count),
                bad.eq(request.bad),
                to_boundary.eq(boundary_first),
                limit.eq(self._limit(boundary_first, request.bad)),
            ]
        return m
