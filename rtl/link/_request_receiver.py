"""Finds requests among the bytes that come. Part of HostLink."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from golden.link.host_link import REQUEST_SYNC, Operation
from rtl.link._bus_port import WORD_BITS

__all__ = ["REQUEST_SHAPE", "RequestReceiver"]

REQUEST_SHAPE = data.StructLayout({"operation": 7, "fixed": 1, "sequence": 8, "last": 8, "address": WORD_BITS})


class _Part(enum.Enum, shape=unsigned(2)):
    """The word of a request that is coming."""

    HEADER = 0
    ADDRESS = 1
    DATA = 2
    CRC = 3


class RequestReceiver(wiring.Component):
    """Takes a request from the bytes; its data go to a memory.

    Bytes that come while the link is busy are lost, and so are those after a wrong CRC or stop bit, until a pause.

    Latency: ``good`` comes two cycles after the last byte.

    Parameters
    ----------
    pause_cycles : cycles without a byte that end a frame

    Members
    -------
    data, valid, error : bytes from the receiver
    busy : the link carries out or answers a request
    request : the one that came last
    good : strobe: it is whole, and its CRC is right
    bad : strobe: what came, or stopped to come, was no such request
    w_en, w_addr, w_data : words of its data
    crc_start, crc_valid, crc_match : to and from the CRC, whose data are the bytes
    """

    def __init__(self, pause_cycles: int) -> None:
        self._pause = pause_cycles
        super().__init__(
            {
                "data": In(8),
                "valid": In(1),
                "error": In(1),
                "busy": In(1),
                "request": Out(REQUEST_SHAPE),
                "good": Out(1),
                "bad": Out(1),
                "w_en": Out(1),
                "w_addr": Out(8),
                "w_data": Out(WORD_BITS),
                "crc_start": Out(1),
                "crc_valid": Out(1),
                "crc_match": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        request, word = self.request, self.w_data
        part, count, earlier = Signal(_Part), Signal(2), Signal(WORD_BITS - 8)
        index = self.w_addr
        heard, paused, timer = Signal(), Signal(), Signal(range(self._pause + 1))
        m.d.comb += [
            heard.eq(self.valid | self.error),
            paused.eq(timer == self._pause),
            word.eq(Cat(earlier, self.data)),
        ]
        with m.If(heard):
            m.d.sync += timer.eq(0)
        with m.Elif(~paused):
            m.d.sync += timer.eq(timer + 1)
        with m.If(self.valid):
            m.d.sync += [earlier.eq(word[8:]), count.eq(count + 1)]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(heard & self.busy):
                    m.next = "FLUSH"
                with m.Elif(self.valid & (self.data == REQUEST_SYNC)):
                    m.d.comb += [self.crc_start.eq(1), self.crc_valid.eq(1)]
                    m.d.sync += [part.eq(_Part.HEADER), count.eq(1), index.eq(0)]
                    m.next = "RECEIVE"
            with m.State("RECEIVE"):
                m.d.comb += self.crc_valid.eq(self.valid)
                with m.If(self.error):
                    m.next = "FLUSH"
                with m.Elif(paused):
                    m.d.comb += self.bad.eq(1)
                    m.next = "IDLE"
                with m.Elif(self.valid & (count == 3)), m.Switch(part):
                    with m.Case(_Part.HEADER):
                        m.d.sync += [request.as_value()[:24].eq(word[8:]), part.eq(_Part.ADDRESS)]
                    with m.Case(_Part.ADDRESS):
                        m.d.sync += [request.address.eq(word), part.eq(_Part.CRC)]
                        with m.If(request.operation == Operation.WRITE):
                            m.d.sync += part.eq(_Part.DATA)
                    with m.Case(_Part.DATA):
                        m.d.comb += self.w_en.eq(1)
                        m.d.sync += index.eq(index + 1)
                        with m.If(index == request.last):
                            m.d.sync += part.eq(_Part.CRC)
                    with m.Case(_Part.CRC):
                        m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += self.good.eq(self.crc_match)
                m.next = "FLUSH"
                with m.If(self.crc_match):
                    m.next = "IDLE"
            with m.State("FLUSH"), m.If(paused & ~self.busy):
                m.d.comb += self.bad.eq(1)
                m.next = "IDLE"
        return m
