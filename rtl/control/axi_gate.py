"""Lets a manager's transactions end, so that it can be reset while memory goes on."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.cache.axi import AxiSignature

__all__ = ["AxiGate"]

_COUNT_BITS = 16
RESET_CYCLES = 4


class AxiGate(wiring.Component):
    """Between an AXI4 manager and memory. On ``reset`` nothing begins, what has begun ends, and the manager is reset.

    A burst of writes has begun with its address or with its first word, whichever came first, and ends with its
    response. What the manager holds valid stays valid until it is taken. A memory that never answers keeps ``busy``
    high: nothing else would be legal.

    Combinational paths: all channels pass through.

    Members
    -------
    i : the manager's port
    o : the port to memory
    reset : strobe
    busy : from then on until the manager has been reset
    manager_reset : the manager's reset, `RESET_CYCLES` long
    """

    def __init__(self, signature: AxiSignature) -> None:
        super().__init__(
            {"i": In(signature), "o": Out(signature), "reset": In(1), "busy": Out(1), "manager_reset": Out(1)}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        i, o = self.i, self.o
        for name, member in o.signature.members.items():
            if name not in ("arvalid", "arready", "awvalid", "awready", "wvalid", "wready"):
                a, b = getattr(i, name), getattr(o, name)
                m.d.comb += b.eq(a) if member.flow is Out else a.eq(b)

        reads, writes = Signal(_COUNT_BITS), Signal(_COUNT_BITS)  # bursts without their last word, or response
        ahead = Signal(signed(_COUNT_BITS))  # bursts whose address came, less those whose first word did
        inside = Signal()  # words of a burst are missing
        stop = Signal()
        may = {"ar": 0, "aw": ahead < 0, "w": inside | (ahead > 0)}
        held = {}
        for channel, allowed in may.items():
            valid, ready = (getattr(o, f"{channel}{end}") for end in ("valid", "ready"))
            held[channel] = Signal(name=f"{channel}_held")
            go = ~stop | held[channel] | allowed
            m.d.comb += [valid.eq(getattr(i, f"{channel}valid") & go), getattr(i, f"{channel}ready").eq(ready & go)]
            m.d.sync += held[channel].eq(valid & ~ready)
        ar, aw, w = ((getattr(o, f"{c}valid") & getattr(o, f"{c}ready")) for c in ("ar", "aw", "w"))
        m.d.sync += [
            reads.eq(reads + ar - (o.rvalid & o.rready & o.rlast)),
            writes.eq(writes + aw - (o.bvalid & o.bready)),
            ahead.eq(ahead + aw - (w & ~inside)),
            inside.eq(Mux(w, ~o.wlast, inside)),
        ]
        idle = (reads == 0) & (writes == 0) & (ahead == 0) & ~inside & ~(held["ar"] | held["aw"] | held["w"])
        count = Signal(range(RESET_CYCLES))
        with m.FSM():
            with m.State("RUN"):
                with m.If(self.reset):
                    m.d.sync += [stop.eq(1), count.eq(0)]
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += self.busy.eq(1)
                with m.If(stop & idle):
                    m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += [self.busy.eq(1), self.manager_reset.eq(1)]
                m.d.sync += count.eq(count + 1)
                with m.If(count == RESET_CYCLES - 1):
                    m.d.sync += stop.eq(0)
                    m.next = "RUN"
        return m
