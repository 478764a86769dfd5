"""Part of the registers: counters of events, in a memory."""

from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.common.memory import NO_COLLISIONS, ram_style

__all__ = ["Counters"]

#: cycles from the place of a counter to its sum being written
_STAGES = 2


class Counters(wiring.Component):
    """Counts events of many kinds in words of 32 bits, which wrap.

    Each kind has a few bits of its own. One kind after the other, a cycle each, they are added to the sum in memory.

    A count can be had when its turn comes: ``shown`` is then 1 for a cycle, at most ``count + 2`` cycles after its bit
    of ``wanted`` is set; ``value`` has all events but those of this cycle and the last. ``clear`` sets all to 0, as a
    reset does.

    Parameters
    ----------
    count : of kinds

    Members
    -------
    events : of each kind, in this cycle
    clear : all counts are 0, an event in the same cycle does not count
    wanted : one bit at most, the kind that is asked for
    shown, value : its count
    """

    WIDTH = 32

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(
            {
                "events": In(count),
                "clear": In(1),
                "wanted": In(count),
                "shown": Out(1),
                "value": Out(self.WIDTH),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count = max(self.count, _STAGES + 2)  # whose turn it is, is long written when it comes again
        attributes = NO_COLLISIONS | ram_style(count)
        m.submodules.sums = sums = Memory(shape=self.WIDTH, depth=count, init=[], attrs=attributes)
        write, read = sums.write_port(), sums.read_port()
        index, index_1, index_2 = (Signal(range(count), name=f"index_{n}") for n in range(_STAGES + 1))
        turn, turn_2 = Signal(count), Signal(count)  # one-hot: whose sum has been read, is being added to
        m.d.comb += read.addr.eq(index)
        m.d.sync += [
            index.eq(Mux(index == count - 1, 0, index + 1)),
            index_1.eq(index),
            index_2.eq(index_1),
            turn.eq(1 << index),
            turn_2.eq(turn),
        ]

        # Of a kind: events that are not in its sum, and whether it has none.
        recent, fresh = [], Signal(self.count, init=-1)
        for n in range(self.count):
            events = Signal(bits_for(count), name=f"recent_{n}")
            m.d.sync += [events.eq(Mux(turn[n], 0, events) + self.events[n]), fresh[n].eq(fresh[n] & ~turn[n])]
            with m.If(self.clear):
                m.d.sync += [events.eq(0), fresh[n].eq(1)]
            recent.append(events)
        amount, before = Signal(bits_for(count)), Signal(self.WIDTH)
        first = (fresh & turn).any()
        m.d.sync += [
            amount.eq(reduce(or_, (Mux(turn[n], events, Value.cast(0)) for n, events in enumerate(recent)))),
            before.eq(Mux(first, 0, read.data)),
        ]
        m.d.comb += [
            self.value.eq(before + amount),
            self.shown.eq((turn_2 & self.wanted).any()),
            write.en.eq(1),
            write.addr.eq(index_2),
            write.data.eq(self.value),
        ]
        return m
