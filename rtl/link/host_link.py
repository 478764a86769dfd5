"""A serial line that gives a host access to a bus (golden `LinkModel`)."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.crc import Processor
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from golden.link.host_link import MAX_WORDS, WORD_BYTES, Operation, Status
from rtl.common.memory import NO_COLLISIONS
from rtl.link._bus_port import ACCESS_SHAPE, ADDRESS_BITS, RESULT_SHAPE, WORD_BITS, BusPort
from rtl.link._reply_sender import REPLY_SHAPE, ReplySender
from rtl.link._request_receiver import RequestReceiver
from rtl.link._uart import MIN_CLOCKS, UartReceiver, UartTransmitter, phase_step

__all__ = ["HostLink", "LinkConfig"]

_SIZES = [1 << n for n in range(exact_log2(MAX_WORDS) + 1)]
_BYTE_BITS = 10


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """What a HostLink is made for."""

    #: cycles and bits in a second
    clock_hz: int = 50_000_000
    baud: int = 3_000_000
    #: words of the longest frame
    max_words: int = MAX_WORDS
    #: a frame ends when no byte has come for the time of so many
    pause_bytes: int = 2048
    #: cycles until an access without result is given up
    watchdog_cycles: int = 1 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.baud <= self.clock_hz // MIN_CLOCKS:
            raise ValueError(f"baud must be from 1 to a quarter of clock_hz, not {self.baud!r}")
        phase_step(self.clock_hz, self.baud)
        if self.max_words not in _SIZES:
            raise ValueError(f"max_words must be a power of two from 1 to {MAX_WORDS}, not {self.max_words!r}")
        if not 2 <= self.pause_bytes <= 1 << 20:
            raise ValueError(f"pause_bytes must be from 2 to {1 << 20}, not {self.pause_bytes!r}")
        if not 2 <= self.watchdog_cycles <= 1 << 30:
            raise ValueError(f"watchdog_cycles must be from 2 to {1 << 30}, not {self.watchdog_cycles!r}")

    @property
    def pause_cycles(self) -> int:
        """Cycles without a byte that end a frame."""
        return -(-_BYTE_BITS * self.pause_bytes * self.clock_hz // self.baud)


class HostLink(wiring.Component):
    """Takes requests from a serial line, carries them out on a bus and answers.

    A request is carried out when all of it has come and its CRC is right, and once: one with the sequence number of the
    last that was carried out is answered with what that one gave. Bytes that come while a request is carried out or
    answered are lost. The host is asked to repeat them once they end, as it is after a wrong CRC or stop bit, and when
    a frame stops.

    Latency: see the page.
    Throughput: an access of a frame every 5 cycles, if the bus takes it at once and has its result in the next cycle;
    a reply is sent without gaps.
    Stalls: any. An access without result in ``watchdog_cycles`` ends its request; a result that comes later is dropped.
    Combinational paths: none between ports.

    Parameters
    ----------
    config : LinkConfig

    Members
    -------
    rx, tx : the serial line, 8 data bits, no parity, 1 stop bit; ``rx`` need not be synchronous to the clock
    o_access : stream of struct{address, write, data}: an access to the word with this address
    i_result : stream of struct{data, error}: its result, taken from the cycle after the access was
    """

    def __init__(self, config: LinkConfig) -> None:
        self.config = config
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "o_access": Out(stream.Signature(ACCESS_SHAPE)),
                "i_result": In(stream.Signature(RESULT_SHAPE)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self.config
        m.submodules.uart_receiver = uart_receiver = UartReceiver(config.clock_hz, config.baud)
        m.submodules.uart_transmitter = uart_transmitter = UartTransmitter(config.clock_hz, config.baud)
        m.submodules.receiver = receiver = RequestReceiver(config.pause_cycles)
        m.submodules.sender = sender = ReplySender()
        m.submodules.bus = bus = BusPort(config.watchdog_cycles)
        m.submodules.crc = crc = Processor(CRC32_ISO_HDLC())
        # Data of the request that comes and, in the upper half, of the reply to the last one that was carried out,
        # which a request that comes to nothing must not spoil.
        # A word of one half is used while the other half is written, or none.
        m.submodules.words = words = Memory(
            shape=unsigned(WORD_BITS), depth=2 * config.max_words, init=[], attrs=NO_COLLISIONS
        )
        write, read = words.write_port(), words.read_port()
        connect(m, sender.o, uart_transmitter.i)
        connect(m, bus.o_access, flipped(self.o_access))
        connect(m, bus.i_result, flipped(self.i_result))
        busy, got, index = Signal(), Signal(), Signal(8)
        m.d.comb += [
            uart_receiver.rx.eq(self.rx),
            self.tx.eq(uart_transmitter.tx),
            receiver.data.eq(uart_receiver.data),
            receiver.valid.eq(uart_receiver.valid),
            receiver.error.eq(uart_receiver.error),
            receiver.busy.eq(busy),
            receiver.crc_match.eq(crc.match_detected),
            sender.crc.eq(crc.crc),
            crc.start.eq(receiver.crc_start | sender.crc_start),
            crc.valid.eq(receiver.crc_valid | sender.crc_valid),
            crc.data.eq(Mux(busy, sender.o.payload, receiver.data)),
            write.en.eq(receiver.w_en | got),
            write.addr.eq(self._place(Mux(busy, index, receiver.w_addr), busy)),
            write.data.eq(Mux(busy, bus.data, receiver.w_data)),
            read.addr.eq(Mux(sender.ready, self._place(index, 0), self._place(sender.r_addr, 1))),
            sender.r_data.eq(read.data),
        ]
        self._control(m, receiver, sender, bus, read.data, busy, got, index)
        return m

    def _place(self, index: Value, upper: int | Value) -> Value:
        """The address of a word in the memory."""
        return Cat(index[: exact_log2(self.config.max_words)], upper)

    def _control(
        self,
        m: Module,
        receiver: RequestReceiver,
        sender: ReplySender,
        bus: BusPort,
        word: Value,
        busy: Signal,
        got: Signal,
        index: Signal,
    ) -> None:
        """Decides what becomes of a request: an access for each of its words, a reply."""
        request = receiver.request
        done, reply, known = Signal(REPLY_SHAPE), Signal(REPLY_SHAPE), Signal()
        address = Signal(ADDRESS_BITS)
        is_read, is_write = request.operation == Operation.READ, request.operation == Operation.WRITE
        is_hello = (request.operation == Operation.HELLO) & ~request.fixed
        place, misplaced = request.address[exact_log2(WORD_BYTES) :], request.address[: exact_log2(WORD_BYTES)].any()
        supported = (is_read | is_write) & ~misplaced & (request.last < self.config.max_words)
        m.d.comb += [
            bus.access.address.eq(address),
            bus.access.write.eq(is_write),
            bus.access.data.eq(word),
            sender.reply.eq(reply),
            busy.eq(1),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += busy.eq(0)
                m.d.sync += [
                    index.eq(0),
                    address.eq(place),
                    reply.as_value().eq(Status.UNSUPPORTED),
                    reply.sequence.eq(request.sequence),
                ]
                with m.If(receiver.bad):
                    m.d.sync += reply.status.eq(Status.REPEAT)
                    m.next = "REPLY"
                with m.Elif(receiver.good):
                    m.next = "REPLY"
                    with m.If(is_hello):
                        m.d.sync += [known.eq(0), reply.status.eq(Status.OK), reply.last.eq(self.config.max_words - 1)]
                    with m.Elif(supported & known & (request.sequence == done.sequence)):
                        m.next = "DONE"
                    with m.Elif(supported):
                        m.d.sync += known.eq(1)
                        m.next = "FETCH"
            with m.State("FETCH"):
                m.next = "ACCESS"
            with m.State("ACCESS"):
                m.d.comb += [bus.en.eq(1), got.eq(bus.done & is_read)]
                m.d.sync += [
                    done.status.eq(bus.status),
                    done.with_data.eq(is_read & (bus.status == Status.OK)),
                    done.sequence.eq(request.sequence),
                    done.last.eq(index),
                ]
                with m.If(bus.done):
                    m.d.sync += [index.eq(index + 1), address.eq(Mux(request.fixed, address, address + 1))]
                    m.next = "FETCH"
                    with m.If((bus.status != Status.OK) | (index == request.last)):
                        m.next = "DONE"
            with m.State("DONE"):
                m.d.sync += reply.eq(done)
                m.next = "REPLY"
            with m.State("REPLY"):
                m.d.comb += sender.start.eq(1)
                m.next = "SEND"
            with m.State("SEND"), m.If(sender.ready):
                m.next = "IDLE"
