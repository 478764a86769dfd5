"""Part of Epilogue: values that are needed again many cycles later."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["Delay"]


class Delay(wiring.Component):
    """Gives what it got ``cycles`` cycles with ``en`` ago: a ring in distributed RAM, and a register behind it.

    Parameters
    ----------
    shape: of the values.
    cycles: at least 3; up to 17 the ring takes one distributed RAM of ECP5, which has 16 words.

    Members
    -------
    en : the cycle counts.
    i, o : the values.
    """

    def __init__(self, shape: Any, *, cycles: int) -> None:
        self.depth = cycles - 1
        super().__init__({"en": In(1), "i": In(shape), "o": Out(shape)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.words = words = Memory(shape=self.i.shape(), depth=self.depth, init=[])
        write, read = words.write_port(), words.read_port(domain="comb")
        place = Signal(range(self.depth))
        m.d.comb += [write.en.eq(self.en), write.addr.eq(place), write.data.eq(self.i), read.addr.eq(place)]
        with m.If(self.en):
            m.d.sync += [self.o.eq(read.data), place.eq(Mux(place == self.depth - 1, 0, place + 1))]
        return m
