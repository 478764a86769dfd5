"""Part of the arbiters: ports in rotation (golden `rotate`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Rotation", "first"]


def first(ask: Value) -> Value:
    """One-hot: the lowest one that asks."""
    return Cat(ask[n] & ~ask[:n].any() for n in range(len(ask)))


class Rotation(wiring.Component):
    """The next one that asks after the last one that was taken; one-hot, none if nobody asks.

    Combinational: ``ask`` to ``grant``. ``taken``: the grant of this cycle is used.
    """

    def __init__(self, ports: int) -> None:
        super().__init__({"ask": In(ports), "grant": Out(ports), "taken": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        beyond = Signal.like(self.ask)  # those after the last one
        later = self.ask & beyond
        m.d.comb += self.grant.eq(Mux(later.any(), first(later), first(self.ask)))
        with m.If(self.taken & self.ask.any()):
            m.d.sync += beyond.eq(Cat(self.grant[:n].any() for n in range(len(beyond))))
        return m
