"""Part of the GEMM engine: rows of the scratchpad with their magnitudes."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rtl.config import AcceleratorConfig
from rtl.control._gemm_front import NUMBER_BITS, plan_layout
from rtl.control._scratch_reads import ReadPorts
from rtl.control.scratchpad import ADDRESS_BITS, MAGNITUDE_BITS, ask_layout, read_layout, word_layout
from rtl.control.scratchpad import ROW_BITS as MAGNITUDE_ROW_BITS
from rtl.gemm._command import ROW_BITS
from rtl.gemm.core import GemmCore

__all__ = ["PLACE_BITS", "GemmRows", "limited"]

#: bits of an address in the scratchpad that may lie behind its end: a first one, and rows with the longest stride
PLACE_BITS = 25


def limited(address: Value, bits: int) -> Value:
    """The lower bits; all ones if the others are not zero."""
    return Mux(address[bits:].any(), (1 << bits) - 1, address[:bits])


class GemmRows(wiring.Component):
    """Waits for a command's go, then asks for its rows word by word, and for their magnitudes.

    Latency: 1 cycle from a go to the first request. Throughput: a word a cycle, a pause of 2 between commands.
    Combinational paths: ``o.ready``, ``i_word.valid`` and ``i_magnitude.valid`` to the others' ``ready`` and to
    ``o.valid``.

    Members
    -------
    i_command : stream of struct{project, source, source_stride, rows, words, source_magnitude, parts, number}; taken
        with the last request, without ``project`` after the go
    i_go : stream without meaning in its payload
    gone : strobe: a command may go
    o_read, i_word, o_ask, i_magnitude : requests of the scratchpad and their answers
    o : stream of rows, as `GemmCore` takes them
    outside, number : strobe: a request of this command lay behind the end
    """

    def __init__(self, config: AcceleratorConfig, core: GemmCore) -> None:
        self.config = config
        names = ("project", "source", "source_stride", "rows", "words", "source_magnitude", "parts", "number")
        fields = {name: plan_layout(config)[name].shape for name in names}
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout(fields))),
                "i_go": In(stream.Signature(1)),
                "gone": Out(1),
                "o_read": Out(stream.Signature(read_layout())),
                "i_word": In(stream.Signature(word_layout(config))),
                "o_ask": Out(stream.Signature(ask_layout())),
                "i_magnitude": In(stream.Signature(MAGNITUDE_BITS)),
                "o": Out(core.i_row.signature.flip()),
                "outside": Out(1),
                "number": Out(NUMBER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, command = self.config.control, self.i_command.payload
        m.submodules.ends = ends = SyncFIFO(width=1, depth=ReadPorts.DEPTH)
        address, row_address = Signal(PLACE_BITS), Signal(PLACE_BITS)
        word, rows_left = Signal.like(command.words), Signal(ROW_BITS)
        asked, asks_left = Signal(MAGNITUDE_ROW_BITS + 1), Signal(ROW_BITS)
        row_ends = word == command.words - 1
        read, ask = self.o_read.valid & self.o_read.ready, self.o_ask.valid & self.o_ask.ready
        m.d.comb += [
            self.o_read.valid.eq((rows_left != 0) & ends.w_rdy),
            self.o_read.payload.address.eq(limited(address, ADDRESS_BITS)),
            ends.w_en.eq(read),
            ends.w_data.eq(row_ends),
            self.o_ask.valid.eq(asks_left != 0),
            self.o_ask.payload.row.eq(limited(asked, MAGNITUDE_ROW_BITS)),
            self.o_ask.payload.parts.eq(command.parts),
            self.outside.eq((read & (address >= c.scratch_words)) | (ask & (asked >= c.scratch_rows))),
            self.number.eq(command.number),
        ]
        with m.If(read):
            m.d.sync += [word.eq(word + 1), address.eq(address + 1)]
            with m.If(row_ends):
                following = row_address + command.source_stride
                m.d.sync += [word.eq(0), address.eq(following), row_address.eq(following), rows_left.eq(rows_left - 1)]
        with m.If(ask):
            m.d.sync += [asked.eq(asked + 1), asks_left.eq(asks_left - 1)]
        with m.FSM():
            with m.State("WAIT"):
                m.d.comb += [
                    self.i_go.ready.eq(self.i_command.valid),
                    self.gone.eq(self.i_go.valid & self.i_go.ready),
                    self.i_command.ready.eq(self.i_go.valid & ~command.project),
                ]
                with m.If(self.gone & command.project):
                    m.d.sync += [
                        *(place.eq(command.source) for place in (address, row_address)),
                        *(left.eq(command.rows) for left in (rows_left, asks_left)),
                        asked.eq(command.source_magnitude),
                    ]
                    m.next = "READ"
            with m.State("READ"):
                with m.If((rows_left == 0) & (asks_left == 0)):
                    m.d.comb += self.i_command.ready.eq(1)
                    m.next = "WAIT"
        both = self.i_word.valid & self.i_magnitude.valid
        m.d.comb += [
            self.o.valid.eq(both),
            self.o.payload.elements.eq(self.i_word.payload.data),
            self.o.payload.magnitude.eq(self.i_magnitude.payload),
            self.i_word.ready.eq(self.o.ready & self.i_magnitude.valid),
            self.i_magnitude.ready.eq(self.o.ready & self.i_word.valid & ends.r_data),
            ends.r_en.eq(both & self.o.ready),
        ]
        return m
