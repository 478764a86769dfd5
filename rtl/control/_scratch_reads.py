"""Part of Scratchpad: requests of several ports to a memory that is read once a cycle."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.cache._rotation import Rotation

__all__ = ["ReadPorts"]


class ReadPorts(wiring.Component):
    """Takes the ports' requests in rotation; each port's answers wait in its own buffer, for which room is kept.

    Latency: ``LATENCY`` cycles, when no other port asks. Throughput: a request a cycle, also of one port alone.
    Stalls: a port whose answers are not taken is not asked for more, and holds up no other.
    Combinational paths: none; ``ready`` and ``valid`` depend on registers alone.

    Parameters
    ----------
    ports : at least one
    request, answer : shapes

    Members
    -------
    i, o : arrays of streams
    request, grant : the request of this cycle and, one-hot, whose it is
    answer : the answer to the request of the cycle before
    """

    LATENCY: ClassVar[int] = 4
    DEPTH: ClassVar[int] = 8

    def __init__(self, ports: int, request: Any, answer: Any) -> None:
        self.ports = ports
        self._bits = Shape.cast(answer).width
        super().__init__(
            {
                "i": In(stream.Signature(request)).array(ports),
                "o": Out(stream.Signature(answer)).array(ports),
                "request": Out(request),
                "grant": Out(ports),
                "answer": In(answer),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.rotation = rotation = Rotation(self.ports)
        waiting, answered = Signal(self.ports), Signal(self.ports)
        chosen = 0
        for n, (i, o) in enumerate(zip(self.i, self.o, strict=True)):
            m.submodules[f"answers_{n}"] = answers = SyncFIFO(width=self._bits, depth=self.DEPTH)
            request = Signal.like(i.payload, name=f"request_{n}")
            room = Signal(range(self.DEPTH + 1), init=self.DEPTH, name=f"room_{n}")
            taken, given = i.valid & i.ready, o.valid & o.ready
            m.d.comb += [
                i.ready.eq((room != 0) & (~waiting[n] | rotation.grant[n])),
                answers.w_en.eq(answered[n]),
                answers.w_data.eq(self.answer),
                o.valid.eq(answers.r_rdy),
                o.payload.eq(answers.r_data),
                answers.r_en.eq(o.ready),
            ]
            m.d.sync += room.eq(room - taken + given)
            with m.If(taken):
                m.d.sync += request.eq(i.payload)
            with m.If(taken | rotation.grant[n]):
                m.d.sync += waiting[n].eq(taken)
            chosen = chosen | Mux(rotation.grant[n], request, 0)
        m.d.comb += [rotation.ask.eq(waiting), rotation.taken.eq(1)]
        m.d.sync += [Value.cast(self.request).eq(chosen), self.grant.eq(rotation.grant), answered.eq(self.grant)]
        return m
