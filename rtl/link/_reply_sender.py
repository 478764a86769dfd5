"""Makes the bytes of a reply. Part of HostLink."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.link.host_link import REPLY_SYNC
from rtl.link._bus_port import STATUS_BITS, WORD_BITS

__all__ = ["REPLY_SHAPE", "ReplySender"]

REPLY_SHAPE = data.StructLayout({"status": STATUS_BITS, "with_data": 1, "sequence": 8, "last": 8})


class _Part(enum.Enum, shape=unsigned(2)):
    """The word of a reply that is being sent."""

    HEADER = 0
    DATA = 1
    CRC = 2


class ReplySender(wiring.Component):
    """Sends a reply; its data come from a memory.

    Latency: the first byte is valid in the cycle after ``start``; two or three cycles lie between two words.

    Members
    -------
    start, reply : sends this, when ``ready``; ``reply`` holds until ``ready`` is back
    ready : none is being sent
    r_addr, r_data : words of its data, one cycle after their address
    crc_start, crc_valid, crc : to and from the CRC, whose data are the bytes
    o : stream of bytes
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "reply": In(REPLY_SHAPE),
                "ready": Out(1),
                "r_addr": Out(8),
                "r_data": In(WORD_BITS),
                "crc_start": Out(1),
                "crc_valid": Out(1),
                "crc": In(WORD_BITS),
                "o": Out(stream.Signature(8)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        part, count, word = Signal(_Part), Signal(2), Signal(WORD_BITS)
        index, more = self.r_addr, Signal()
        m.d.comb += self.o.payload.eq(word[:8])
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.ready.eq(1)
                m.d.sync += [part.eq(_Part.HEADER), index.eq(0), more.eq(self.reply.with_data)]
                with m.If(self.start):
                    m.d.comb += self.crc_start.eq(1)
                    m.d.sync += word.eq(Cat(Const(REPLY_SYNC, 8), self.reply))
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.comb += self.crc_valid.eq(part != _Part.CRC)
                    m.d.sync += [word.eq(word >> 8), count.eq(count + 1)]
                    with m.If(count == 3):
                        m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [word.eq(self.crc), part.eq(Mux(more, _Part.DATA, _Part.CRC))]
                m.next = "SEND"
                with m.If(more):
                    m.next = "LOAD"
                with m.Elif(part == _Part.CRC):
                    m.next = "IDLE"
            with m.State("LOAD"):
                m.d.sync += [word.eq(self.r_data), index.eq(index + 1), more.eq(index != self.reply.last)]
                m.next = "SEND"
        return m
