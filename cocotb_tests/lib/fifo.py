"""A small queue: the design that the test library is tested on."""

from typing import Any

from amaranth.hdl import Module, Shape, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

__all__ = ["FAULTS", "Queue"]

FAULTS = ("unstable", "retract", "drop")


class Queue(wiring.Component):
    """Words leave in the order in which they came, one per cycle.

    Latency: 2 cycles from the transfer at `i` to the one at `o`. Throughput: one word per cycle.

    Parameters
    ----------
    shape : payload shape
    depth : words that fit
    fault : breaks a rule in every eighth cycle, on purpose: `unstable` changes the payload, `retract` takes valid back,
        `drop` loses the word that comes in
    """

    def __init__(self, shape: Any, depth: int, fault: str = "") -> None:
        if fault and fault not in FAULTS:
            raise ValueError(f"fault must be one of {', '.join(FAULTS)}, not {fault!r}")
        self.depth = depth
        self.fault = fault
        self._width = Shape.cast(shape).width
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = SyncFIFOBuffered(width=self._width, depth=self.depth)
        count = Signal(3)
        broken = Signal()
        m.d.sync += count.eq(count + 1)
        m.d.comb += [
            broken.eq((count == 7) if self.fault else 0),
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid & ~broken if self.fault == "drop" else self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            self.o.payload.eq(queue.r_data ^ broken if self.fault == "unstable" else queue.r_data),
            self.o.valid.eq(queue.r_rdy & ~broken if self.fault == "retract" else queue.r_rdy),
            queue.r_en.eq(self.o.ready & self.o.valid),
        ]
        return m
