"""UART: one byte after the other, 8 data bits, no parity, one stop bit. Parts of HostLink."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["MIN_CLOCKS", "UartReceiver", "UartTransmitter", "phase_step"]

#: cycles per bit, at least
MIN_CLOCKS = 4
_MAX_PHASE_BITS = 32


def phase_step(clock_hz: int, baud: int) -> tuple[int, int]:
    """What is added in each cycle to a phase of so many bits, whose overflow ends a bit: ``(step, bits)``.

    It has the fewest bits that meet the bit rate, or exceed it by 0.1 % at most.
    """
    for bits in range(2, _MAX_PHASE_BITS):
        step = -(-(baud << bits) // clock_hz)
        if (step * clock_hz - (baud << bits)) * 1000 <= baud << bits:
            return step, bits
    raise ValueError(f"baud must be clock_hz / {1 << _MAX_PHASE_BITS - 10} or more, not {baud!r}")


class UartReceiver(wiring.Component):
    """Takes bytes from a line.

    Each bit is taken in its middle. A start bit must still be there in its middle, or nothing has begun. After a wrong
    stop bit the line must be high before the next byte begins.

    Latency: ``valid`` (or ``error``) comes two cycles and half a bit after the stop bit begins, give or take a cycle.
    Senders may be 2 % faster or slower, at any number of cycles in a bit.

    Parameters
    ----------
    clock_hz, baud : cycles and bits in a second; at least `MIN_CLOCKS` cycles in a bit

    Members
    -------
    rx : the line, not synchronous to the clock
    data : a byte, when ``valid``
    valid, error : strobes: a byte has come; one with a wrong stop bit has
    """

    def __init__(self, clock_hz: int, baud: int) -> None:
        self._step, self._bits = phase_step(clock_hz, baud)
        super().__init__({"rx": In(1, init=1), "data": Out(8), "valid": Out(1), "error": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.rx, line, init=1)
        phase, following, tick = Signal(self._bits), Signal(self._bits), Signal()
        count = Signal(3)
        m.d.comb += Cat(following, tick).eq(phase + self._step)
        m.d.sync += phase.eq(following)
        with m.FSM():
            with m.State("IDLE"):
                # A cycle more than half a bit: the edge is seen up to one late, and so is the overflow.
                m.d.sync += [phase.eq((1 << self._bits - 1) + self._step), count.eq(0)]
                with m.If(~line):
                    m.next = "START"
            with m.State("START"), m.If(tick):
                m.next = "DATA"
                with m.If(line):
                    m.next = "IDLE"
            with m.State("DATA"), m.If(tick):
                m.d.sync += [self.data.eq(Cat(self.data[1:], line)), count.eq(count + 1)]
                with m.If(count == 7):
                    m.next = "STOP"
            with m.State("STOP"), m.If(tick):
                m.d.comb += [self.valid.eq(line), self.error.eq(~line)]
                m.next = "WAIT"
                with m.If(line):  # at once: a fast sender begins the next byte soon
                    m.next = "IDLE"
            with m.State("WAIT"), m.If(line):
                m.next = "IDLE"
        return m


class UartTransmitter(wiring.Component):
    """Gives bytes to a line, back to back as long as ``i`` has some.

    Latency: the start bit begins in the cycle after the transfer. Throughput: a byte in ten bits, rounded up to cycles.

    Parameters
    ----------
    clock_hz, baud : cycles and bits in a second; at least `MIN_CLOCKS` cycles in a bit

    Members
    -------
    i : stream of bytes
    tx : the line, a register
    """

    def __init__(self, clock_hz: int, baud: int) -> None:
        self._step, self._bits = phase_step(clock_hz, baud)
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        phase, following, tick = Signal(self._bits), Signal(self._bits), Signal()
        bits, left = Signal(9, init=0x1FF), Signal(range(11))
        m.d.comb += [
            Cat(following, tick).eq(phase + self._step),
            self.i.ready.eq((left == 0) | ((left == 1) & tick)),
        ]
        m.d.sync += phase.eq(following)
        with m.If(self.i.ready):
            m.d.sync += left.eq(0)
            with m.If(self.i.valid):
                m.d.sync += [self.tx.eq(0), bits.eq(Cat(self.i.payload, 1)), left.eq(10), phase.eq(0)]
        with m.Elif(tick):
            m.d.sync += [Cat(self.tx, bits).eq(Cat(bits, 1)), left.eq(left - 1)]
        return m
