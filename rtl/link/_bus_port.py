"""The bus side of HostLink: one access at a time, with a watchdog."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.link.host_link import Status

__all__ = ["ACCESS_SHAPE", "ADDRESS_BITS", "RESULT_SHAPE", "STATUS_BITS", "WORD_BITS", "BusPort"]

ADDRESS_BITS, WORD_BITS, STATUS_BITS = 30, 32, 7
ACCESS_SHAPE = data.StructLayout({"address": ADDRESS_BITS, "write": 1, "data": WORD_BITS})
RESULT_SHAPE = data.StructLayout({"data": WORD_BITS, "error": 1})


class BusPort(wiring.Component):
    """Carries out accesses.

    One that has no result in time is given up. It stays on offer until the bus takes it, and its result is dropped when
    it comes; only then the next one is offered, which is given up in turn if that takes too long.

    Latency: an access is offered in the cycle after ``en`` rises; its result is taken from the cycle after its transfer
    on, and is ``done`` with its transfer.

    Parameters
    ----------
    watchdog_cycles : cycles from ``en`` until an access is given up

    Members
    -------
    en, access : carry this out; both hold until ``done``
    done, status, data : strobe: what became of it
    o_access, i_result : the bus
    """

    def __init__(self, watchdog_cycles: int) -> None:
        self._cycles = watchdog_cycles
        super().__init__(
            {
                "en": In(1),
                "access": In(ACCESS_SHAPE),
                "done": Out(1),
                "status": Out(STATUS_BITS),
                "data": Out(WORD_BITS),
                "o_access": Out(stream.Signature(ACCESS_SHAPE)),
                "i_result": In(stream.Signature(RESULT_SHAPE)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        o, i = self.o_access, self.i_result
        begun, waiting, timer = Signal(), Signal(), Signal(range(self._cycles))
        answered = begun & waiting & i.valid
        m.d.comb += [
            i.ready.eq(waiting),
            self.data.eq(i.payload.data),
            self.done.eq(self.en & (answered | (timer == self._cycles - 1))),
            self.status.eq(Mux(answered, Mux(i.payload.error, Status.ERROR, Status.OK), Status.TIMEOUT)),
        ]
        m.d.sync += timer.eq(timer + 1)
        with m.If(self.en & ~(begun | waiting | o.valid)):
            m.d.sync += [o.valid.eq(1), o.payload.eq(self.access), begun.eq(1)]
        with m.If(o.valid & o.ready):
            m.d.sync += [o.valid.eq(0), waiting.eq(1)]
        with m.If(waiting & i.valid):
            m.d.sync += waiting.eq(0)
        with m.If(self.done | ~self.en):
            m.d.sync += [begun.eq(0), timer.eq(0)]
        return m
