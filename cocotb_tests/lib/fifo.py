"""Small designs that the test library is tested on."""

from typing import Any, ClassVar

from amaranth.hdl import ClockSignal, Instance, Module, Shape, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

__all__ = ["FAULTS", "Queue", "UnknownSource"]

FAULTS = ("unstable", "retract", "drop")


class Queue(wiring.Component):
    """Words leave in the order in which they came.

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


class UnknownSource(wiring.Component):
    """Offers words for ever and takes any; one of `valid`, `payload` and `ready` is unknown after 20 cycles."""

    VERILOG: ClassVar[str] = """\
module unknown (input clk, output reg value);
  reg [4:0] count;
  initial begin count = 0; value = 1; end
  always @(posedge clk) begin
    count <= count + 1;
    if (count == 20) value <= 1'bx;
  end
endmodule
"""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__({"i": In(stream.Signature(unsigned(4))), "o": Out(stream.Signature(unsigned(4)))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        unknown = Signal()
        m.submodules.unknown = Instance("unknown", i_clk=ClockSignal(), o_value=unknown)
        m.d.comb += [
            self.o.payload.eq(unknown if self.part == "payload" else 5),
            self.o.valid.eq(unknown if self.part == "valid" else 1),
            self.i.ready.eq(unknown if self.part == "ready" else 1),
        ]
        return m
