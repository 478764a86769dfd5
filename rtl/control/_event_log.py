"""Part of the command processor: what has happened when, for who wants to know."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.cache._queue import Queue
from rtl.config import AcceleratorConfig

__all__ = ["EventKind", "EventLog", "event_layout"]

_COUNT_BITS = 32


class EventKind(enum.Enum, shape=2):
    """What has happened in a queue."""

    #: the waits of a command are satisfied
    BEGIN = 0
    #: a command is done
    END = 1
    #: a command begins to wait for a semaphore, and none is running
    WAIT = 2
    #: the queue stops
    ERROR = 3


def event_layout() -> data.StructLayout:
    """``time`` in cycles, see register ``cycles``; ``tag`` of the command."""
    return data.StructLayout({"time": 32, "queue": 4, "kind": EventKind, "tag": 16})


class EventLog(wiring.Component):
    """Keeps events until they are taken; drops and counts those for which there is no room.

    Members
    -------
    event, event_en : an event
    o_event : stream of them
    lost : events that were dropped since ``clear``
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.depth = config.control.event_depth
        super().__init__(
            {
                "event": In(event_layout()),
                "event_en": In(1),
                "o_event": Out(stream.Signature(event_layout())),
                "lost": Out(_COUNT_BITS),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = Queue(event_layout(), depth=self.depth)
        connect(m, queue.o, flipped(self.o_event))
        m.d.comb += [queue.i.payload.eq(self.event), queue.i.valid.eq(self.event_en)]
        with m.If(self.clear):
            m.d.sync += self.lost.eq(0)
        with m.Elif(self.event_en & ~queue.i.ready):
            m.d.sync += self.lost.eq(self.lost + 1)
        return m
