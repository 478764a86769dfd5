"""Part of the command processor: the counting semaphores."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

__all__ = ["SEMAPHORE_BITS", "Semaphores"]

#: of a semaphore's number
SEMAPHORE_BITS = 8
#: of what it has counted
_COUNT_BITS = 16


class Semaphores(wiring.Component):
    """Counts of signals since reset, in a memory; numbers beyond the last one stand for others.

    Members
    -------
    numbers : two semaphores
    counts : theirs, a cycle later
    signal : the first of the two of a cycle ago counts one more
    clearing : after a reset: wait
    """

    def __init__(self, semaphores: int) -> None:
        self.address_bits = ceil_log2(semaphores)
        super().__init__(
            {
                "numbers": In(data.ArrayLayout(unsigned(SEMAPHORE_BITS), 2)),
                "counts": Out(data.ArrayLayout(unsigned(_COUNT_BITS), 2)),
                "signal": In(1),
                "clearing": Out(1, init=1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth = 1 << self.address_bits
        m.submodules.memory = memory = Memory(shape=unsigned(_COUNT_BITS), depth=depth, init=[])
        write = memory.write_port()
        reads = [memory.read_port() for _ in range(2)]
        number, cleared = Signal(SEMAPHORE_BITS), Signal(range(depth))
        m.d.sync += number.eq(self.numbers[0])
        for n, read in enumerate(reads):
            m.d.comb += [read.addr.eq(self.numbers[n]), self.counts[n].eq(read.data)]
        m.d.comb += [
            write.en.eq(self.clearing | self.signal),
            write.addr.eq(Mux(self.clearing, cleared, number)),
            write.data.eq(Mux(self.clearing, 0, self.counts[0] + 1)),
        ]
        with m.If(self.clearing):
            m.d.sync += [cleared.eq(cleared + 1), self.clearing.eq(cleared != depth - 1)]
        return m
