"""Part of the control: rows between memory and the scratchpad, zeros to memory."""

from typing import Any, ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.control.commands import Opcode
from rtl.cache._read_port import word_shape as read_word_shape
from rtl.cache._write_port import word_shape
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._dma_check import ELEMENT_BITS, LINE_ELEMENTS, OperandCheck, ceil_divide
from rtl.control._gearbox import Gearbox
from rtl.control._layout import Error, command_layout, done_layout, operand_layout
from rtl.control._magnitude import RowMagnitude
from rtl.control.scratchpad import ADDRESS_BITS, ROW_BITS, magnitude_layout, read_layout, word_layout, write_layout

__all__ = ["DmaEngine"]

#: writes that memory has not answered, at most
_UNDER_WAY = 15
#: lines that a write of zeros has at most
_FILL_LINES = 64


class DmaEngine(wiring.Component):
    """Carries out LOAD, STORE and FILL, one after the other.

    A command whose operands lie outside of memory or of the scratchpad, or that has nothing to do, is answered before
    anything has been read or written. Of the last word of a stored row only the bytes of its elements are written.

    Latency: `LATENCY` cycles from a command to its first request of memory, if it may go at once.
    Throughput: a word of the narrower of bus and scratchpad a cycle.
    Stalls: any stream may stall.
    Combinational paths: ``o_scratch_write.ready`` to ``i_read.ready``, ``o_word.ready`` to ``i_scratch_read.ready``.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    i_command, i_go, o_done : a command, that it may go, how it ended. After an error no command is taken until reset
    o_read, i_read : requests in words of memory, and their words
    o_write, o_word, i_written : requests, words with byte strobes, whether each request failed
    outside : a request of memory lay outside the window
    o_scratch_read, i_scratch_read : words of the scratchpad
    o_scratch_write : stream of struct{address, mask, data}: elements with a bit in ``mask`` are written
    o_magnitude : stream of struct{row, slot, magnitude, first}, one a loaded row, behind its words
    scratch_outside : an access lay behind the end of the scratchpad
    """

    LATENCY: ClassVar[int] = 6

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        reads, writes = KvCache.axi_configs(config)
        self.lanes, self.bus_lanes = config.gemm.row_lanes, config.dsq.bus_bits // ELEMENT_BITS
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout())),
                "i_go": In(stream.Signature(1)),
                "o_done": Out(stream.Signature(done_layout())),
                "o_read": Out(stream.Signature(reads.request_shape)),
                "i_read": In(stream.Signature(read_word_shape(reads))),
                "o_write": Out(stream.Signature(writes.request_shape)),
                "o_word": Out(stream.Signature(word_shape(writes))),
                "i_written": In(stream.Signature(1)),
                "outside": In(1),
                "o_scratch_read": Out(stream.Signature(read_layout())),
                "i_scratch_read": In(stream.Signature(word_layout(config))),
                "o_scratch_write": Out(stream.Signature(write_layout(config))),
                "o_magnitude": Out(stream.Signature(magnitude_layout())),
                "scratch_outside": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        command = Signal(command_layout())
        is_load, is_store, is_nop = (command.opcode == which for which in (Opcode.LOAD, Opcode.STORE, Opcode.NOP))
        m.submodules.check = check = OperandCheck(self.config)
        start, complete, stopped = Signal(), Signal(), Signal()
        m.d.comb += check.command.eq(command)
        failed = Signal()
        written, zeros = self._requests(m, command, start, failed)
        step = self._places(m, command, start, is_store)
        loaded = self._load(m, command, start, step, is_load)
        self._store(m, command, zeros)
        m.d.comb += complete.eq(Mux(is_load, loaded, written))

        read_failed = self.i_read.valid & self.i_read.ready & self.i_read.payload.error
        write_failed = self.i_written.valid & self.i_written.payload
        with m.If(read_failed | write_failed):
            m.d.sync += failed.eq(1)
        done = self.o_done
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(~stopped)
                with m.If(self.i_command.valid & ~stopped):
                    m.d.sync += command.eq(self.i_command.payload)
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += check.start.eq(1)
                m.next = "CHECK"
            with m.State("CHECK"):
                with m.If(check.done):
                    m.next = "GO"
            with m.State("GO"):
                m.d.comb += self.i_go.ready.eq(1)
                m.d.sync += done.payload.error.eq(check.error)
                m.d.sync += done.payload.detail.eq(Mux(check.error == Error.OPCODE, command.opcode, 0))
                with m.If(self.i_go.valid):
                    m.d.comb += start.eq(~is_nop & (check.error == Error.NONE))
                    m.next = "DONE"
                    with m.If(start):
                        m.next = "RUN"
            with m.State("RUN"):
                with m.If(failed):
                    m.d.sync += done.payload.error.eq(Mux(self.outside, Error.ADDRESS, Error.MEMORY))
                    m.next = "DONE"
                with m.Elif(complete):
                    with m.If(self.scratch_outside):
                        m.d.sync += done.payload.error.eq(Error.SCRATCHPAD)
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += done.valid.eq(1)
                m.d.sync += stopped.eq(done.payload.error != Error.NONE)
                with m.If(done.ready):
                    m.next = "COMMAND"
        return m

    def _requests(self, m: Module, command: data.View, start: Signal, failed: Signal) -> tuple[Value, Value]:
        """A request of memory for each row, or for so many lines of zeros, until one has failed.

        Returns whether all writes are answered, and whether a word of zeros is due.
        """
        rows = data.View(operand_layout(Opcode.LOAD), command.operands)
        lines = data.View(operand_layout(Opcode.FILL), command.operands).lines
        is_load, is_fill = command.opcode == Opcode.LOAD, command.opcode == Opcode.FILL
        shift = ceil_log2(LINE_ELEMENTS // self.bus_lanes)  # words of a line
        line, left = Signal(len(rows.address)), Signal(len(lines))
        some = Mux(left < _FILL_LINES, left, _FILL_LINES)
        under_way, words = Signal(range(_UNDER_WAY + 1)), Signal(range((_FILL_LINES << shift) + 1))
        asking = left != 0
        may_write = asking & ~is_load & (under_way != _UNDER_WAY) & (words == 0)
        m.d.comb += [self.o_read.valid.eq(asking & is_load), self.o_write.valid.eq(may_write)]
        m.d.comb += self.i_written.ready.eq(1)
        for port in (self.o_read, self.o_write):
            count = Mux(is_fill, some << shift, ceil_divide(rows.k, self.bus_lanes))
            m.d.comb += [port.payload.address.eq(line << shift), port.payload.count.eq(count)]
        writes = self.o_write.valid & self.o_write.ready
        m.d.sync += under_way.eq(under_way + writes - self.i_written.valid)
        with m.If(start):
            m.d.sync += [line.eq(rows.address), left.eq(Mux(is_fill, lines, rows.rows))]
        with m.Elif(writes | (self.o_read.valid & self.o_read.ready)):
            m.d.sync += left.eq(Mux(failed, 0, left - Mux(is_fill, some, 1)))
            m.d.sync += line.eq(line + Mux(is_fill, _FILL_LINES, ceil_divide(rows.k, LINE_ELEMENTS)))
        with m.If(writes & is_fill):
            m.d.sync += words.eq(some << shift)
        with m.Elif((words != 0) & self.o_word.ready):
            m.d.sync += words.eq(words - 1)
        return ~asking & (under_way == 0), words != 0

    def _places(self, m: Module, command: data.View, start: Signal, is_store: Value) -> Signal:
        """Word after word of the rows in the scratchpad, each by a ``step`` that is returned; STORE asks for them."""
        rows = data.View(operand_layout(Opcode.LOAD), command.operands)
        step, left = Signal(), Signal(len(rows.rows))
        row, word = Signal(ADDRESS_BITS), Signal(len(rows.k))
        last = word == ceil_divide(rows.k, self.lanes) - 1
        m.d.comb += [
            self.o_scratch_read.valid.eq((left != 0) & is_store),
            self.o_scratch_read.payload.address.eq(row + word),
            self.o_scratch_write.payload.address.eq(row + word),
        ]
        with m.If(start):
            m.d.sync += [row.eq(rows.scratchpad), left.eq(Mux(command.opcode == Opcode.FILL, 0, rows.rows))]
        with m.Elif(step | (self.o_scratch_read.valid & self.o_scratch_read.ready)):
            m.d.sync += word.eq(word + 1)
            with m.If(last):
                m.d.sync += [word.eq(0), row.eq(row + rows.stride), left.eq(left - 1)]
        return step

    def _load(self, m: Module, command: data.View, start: Signal, step: Signal, is_load: Value) -> Value:
        """Words of memory to the scratchpad, and the magnitude of each row; returns whether all of both are there."""
        rows = data.View(operand_layout(Opcode.LOAD), command.operands)
        m.submodules.load_words = gearbox = self._gearbox(self.bus_lanes, self.lanes)
        m.submodules.magnitude = magnitude = RowMagnitude(self.lanes)
        write, left = self.o_scratch_write, Signal(len(rows.rows))
        mask = _mask(rows.k, gearbox.o.payload.last, self.lanes)
        put, may = self.o_magnitude, ~gearbox.o.payload.last | magnitude.free
        m.d.comb += [
            gearbox.parts.eq(ceil_divide(rows.k, min(self.lanes, self.bus_lanes))),
            gearbox.i.valid.eq(self.i_read.valid),
            gearbox.i.payload.eq(self.i_read.payload.data),
            self.i_read.ready.eq(gearbox.i.ready),
            write.valid.eq(gearbox.o.valid & may),
            write.payload.mask.eq(mask),
            write.payload.data.eq(gearbox.o.payload.data),
            gearbox.o.ready.eq(write.ready & may),
            step.eq(write.valid & write.ready),
            magnitude.i.valid.eq(step),
            magnitude.i.data.eq(gearbox.o.payload.data),
            magnitude.i.mask.eq(mask),
            magnitude.i.last.eq(gearbox.o.payload.last),
            put.valid.eq(magnitude.o.valid),
            put.payload.row.eq(rows.magnitude + rows.rows - left),
            put.payload.magnitude.eq(magnitude.o.payload),
            put.payload.first.eq(1),
            magnitude.o.ready.eq(put.ready),
        ]
        with m.If(start & is_load):
            m.d.sync += left.eq(rows.rows)
        with m.Elif(put.valid & put.ready):
            m.d.sync += left.eq(left - 1)
        return left == 0

    def _store(self, m: Module, command: data.View, zeros: Value) -> None:
        """Words of the scratchpad, or zeros, to memory."""
        rows = data.View(operand_layout(Opcode.LOAD), command.operands)
        m.submodules.store_words = gearbox = self._gearbox(self.lanes, self.bus_lanes)
        mask = _mask(rows.k, gearbox.o.payload.last, self.bus_lanes)
        strobes = Cat(bit.replicate(ELEMENT_BITS // 8) for bit in mask)
        word = self.o_word
        m.d.comb += [
            gearbox.parts.eq(ceil_divide(rows.k, min(self.lanes, self.bus_lanes))),
            gearbox.i.valid.eq(self.i_scratch_read.valid),
            gearbox.i.payload.eq(self.i_scratch_read.payload),
            self.i_scratch_read.ready.eq(gearbox.i.ready),
            word.valid.eq(gearbox.o.valid | zeros),
            word.payload.data.eq(Mux(zeros, 0, gearbox.o.payload.data)),
            word.payload.strb.eq(Mux(zeros, ~0, strobes)),
            gearbox.o.ready.eq(word.ready & ~zeros),
        ]

    def _gearbox(self, i_lanes: int, o_lanes: int) -> Gearbox:
        """Repacks rows of at most ``2**ROW_BITS - 1`` elements."""
        most = -(-(1 << ROW_BITS) // min(i_lanes, o_lanes))
        return Gearbox(ELEMENT_BITS * i_lanes, ELEMENT_BITS * o_lanes, max_parts=most)


def _mask(k: Value, last: Value, lanes: int) -> Value:
    """The lanes of a word that hold elements of a row of ``k``, by bit."""
    tail = k[: ceil_log2(lanes)]
    beyond = [tail > n if n < lanes - 1 else 0 for n in range(lanes)]  # the last one only if all are
    return Cat((~last | (tail == 0) | more)[0] for more in beyond)
