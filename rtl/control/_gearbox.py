"""Part of the control: rows of words of one width to words of another one."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Gearbox"]


class Gearbox(wiring.Component):
    """Repacks rows; each begins in a new word on both sides, in the low bits. The widths differ by a power of two.

    Latency: 1 cycle from the last part of a word. Throughput: a word of the narrower width a cycle.
    Combinational paths: ``o.ready`` to ``i.ready``.

    Parameters
    ----------
    i_bits, o_bits : widths
    max_parts : of a row

    Members
    -------
    parts : words of the narrower width in a row, at least 1; constant while there is one
    i : stream of words. What a row's last word holds behind its last part is dropped.
    o : stream of struct{data, last}: ``last`` of its row; bits behind the last part are 0 in words of the wider width
    """

    def __init__(self, i_bits: int, o_bits: int, *, max_parts: int) -> None:
        self.i_bits, self.o_bits = i_bits, o_bits
        narrow, wide = sorted((i_bits, o_bits))
        self.ratio = wide // narrow
        assert wide == narrow * self.ratio and self.ratio & (self.ratio - 1) == 0, (i_bits, o_bits)
        super().__init__(
            {
                "parts": In(range(max_parts + 1)),
                "i": In(stream.Signature(i_bits)),
                "o": Out(stream.Signature(data.StructLayout({"data": o_bits, "last": 1}))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        place = Signal(range(self.ratio))  # in the wider word
        part = Signal.like(self.parts)  # in the row
        last, ends, step = Signal(), Signal(), Signal()
        m.d.comb += [last.eq(part == self.parts - 1), ends.eq(last | (place == self.ratio - 1))]
        with m.If(step):
            m.d.sync += [part.eq(Mux(last, 0, part + 1)), place.eq(Mux(ends, 0, place + 1))]
        if self.i_bits <= self.o_bits:
            self._collect(m, place, last, ends, step)
        else:
            self._split(m, last, ends, step)
        return m

    def _collect(self, m: Module, place: Signal, last: Signal, ends: Signal, step: Signal) -> None:
        i, o = self.i, self.o
        m.d.comb += [i.ready.eq(~o.valid | o.ready), step.eq(i.valid & i.ready)]
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(step):
            m.d.sync += [o.valid.eq(ends), o.payload.last.eq(last)]
            with m.Switch(place):
                for n in range(self.ratio):
                    with m.Case(n):
                        below = n * self.i_bits
                        m.d.sync += o.payload.data[below:].eq(i.payload)

    def _split(self, m: Module, last: Signal, ends: Signal, step: Signal) -> None:
        i, o = self.i, self.o
        held = Signal(self.i_bits)
        m.d.comb += [
            step.eq(o.valid & o.ready),
            i.ready.eq(~o.valid | (step & ends)),
            o.payload.data.eq(held),
            o.payload.last.eq(last),
        ]
        with m.If(step):
            m.d.sync += [held.eq(held >> self.o_bits), o.valid.eq(~ends)]
        with m.If(i.valid & i.ready):
            m.d.sync += [held.eq(i.payload), o.valid.eq(1)]
