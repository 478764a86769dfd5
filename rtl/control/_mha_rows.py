"""Parts of the MHA engine: query rows from the scratchpad, outputs to it."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.common.fixed import half_up_by
from rtl.config import AcceleratorConfig
from rtl.control._gearbox import Gearbox
from rtl.control._magnitude import RowMagnitude
from rtl.control._mha_check import row_words
from rtl.mha._value_format import ValueFormat

__all__ = ["OutputWriter", "RowReader", "output_layout"]

_ADDRESS_BITS = 20
_ELEMENT_BITS = 32
#: of queries and outputs
_ROW_BITS = 16
_MAGNITUDE_ROW_BITS = 16
_SLOT_BITS = 3


def output_layout() -> data.StructLayout:
    """Where outputs go, and how far they are shifted; the row of their magnitude, which is the ``first`` of its row."""
    return data.StructLayout({"target": _ADDRESS_BITS, "shift": 4, "row": _MAGNITUDE_ROW_BITS, "first": 1})


def _elements(config: AcceleratorConfig) -> data.ArrayLayout:
    """A word of the scratchpad."""
    return data.ArrayLayout(signed(_ELEMENT_BITS), config.gemm.row_lanes)


def _gearbox(m: Module, config: AcceleratorConfig, i_lanes: int, o_lanes: int) -> Gearbox:
    """Between words of the scratchpad and transfers of the core; all heads of a token are one row."""
    parts = config.mha.q_heads * config.dsq.head_dim // min(i_lanes, o_lanes)
    m.submodules.gearbox = gearbox = Gearbox(_ROW_BITS * i_lanes, _ROW_BITS * o_lanes, max_parts=parts)
    m.d.comb += gearbox.parts.eq(parts)
    return gearbox


class RowReader(wiring.Component):
    """Takes the rows of a token's query heads from the scratchpad to the core, the low 16 bits of each element.

    Throughput: a word or a transfer a cycle, whichever are more. Answers that the core does not take wait.
    Combinational paths: ``o`` to ``i_scratch_read`` (``ready``).

    Members
    -------
    start, source : strobe, the word where the rows begin
    busy : not all transfers have been given
    o_scratch_read, i_scratch_read : of the scratchpad
    o : rows as MhaCore takes them
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "source": In(_ADDRESS_BITS),
                "busy": Out(1),
                "o_scratch_read": Out(stream.Signature(data.StructLayout({"address": _ADDRESS_BITS}))),
                "i_scratch_read": In(stream.Signature(data.StructLayout({"data": _elements(config)}))),
                "o": Out(stream.Signature(data.ArrayLayout(signed(_ROW_BITS), config.dsq.lanes))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, ask, word = self.config, self.o_scratch_read, self.i_scratch_read
        gearbox = _gearbox(m, c, c.gemm.row_lanes, c.dsq.lanes)
        left = Signal(range(row_words(c) + 1))
        m.d.comb += [
            ask.valid.eq(left != 0),
            gearbox.i.valid.eq(word.valid),
            gearbox.i.payload.eq(Cat(element[:_ROW_BITS] for element in word.payload.data)),
            word.ready.eq(gearbox.i.ready),
            self.o.valid.eq(gearbox.o.valid),
            self.o.payload.eq(gearbox.o.payload.data),
            gearbox.o.ready.eq(self.o.ready),
        ]
        with m.If(self.start):
            m.d.sync += [ask.payload.address.eq(self.source), left.eq(row_words(c)), self.busy.eq(1)]
        with m.Elif(ask.valid & ask.ready):
            m.d.sync += [ask.payload.address.eq(ask.payload.address + 1), left.eq(left - 1)]
        with m.If(self.o.valid & self.o.ready & gearbox.o.payload.last):
            m.d.sync += self.busy.eq(0)
        return m


class OutputWriter(wiring.Component):
    """Shifts a token's outputs right, half up, and takes them to the scratchpad, then their magnitude.

    Throughput: a transfer or a word a cycle, whichever are more.
    Combinational paths: ``o_scratch_write.ready`` to ``i.ready``.

    Members
    -------
    start, output : strobe, see `output_layout`
    busy : outputs or their magnitude are to come
    i : outputs as MhaCore gives them, taken while ``busy``
    o_scratch_write, o_magnitude : of the scratchpad
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        lanes = config.gemm.row_lanes
        write = {"address": _ADDRESS_BITS, "mask": lanes, "data": _elements(config)}
        magnitude = {"row": _MAGNITUDE_ROW_BITS, "slot": _SLOT_BITS, "magnitude": RowMagnitude.BITS, "first": 1}
        super().__init__(
            {
                "start": In(1),
                "output": In(output_layout()),
                "busy": Out(1),
                "i": In(stream.Signature(ValueFormat(config).beat_layout)),
                "o_scratch_write": Out(stream.Signature(data.StructLayout(write))),
                "o_magnitude": Out(stream.Signature(data.StructLayout(magnitude))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, put = self.config, self.o_magnitude
        output = Signal(output_layout())
        waits = Signal()  # for the last transfer
        with m.If(self.start):
            m.d.sync += [output.eq(self.output), self.busy.eq(1), waits.eq(1)]
        with m.If(self.i.valid & self.i.ready & self.i.payload.last):
            m.d.sync += waits.eq(0)
        with m.If(put.valid & put.ready):
            m.d.sync += self.busy.eq(0)

        shifted = stream.Signature(_ROW_BITS * c.dsq.lanes).create()
        gearbox = _gearbox(m, c, c.dsq.lanes, c.gemm.row_lanes)
        wiring.connect(m, shifted, gearbox.i)
        free = ~shifted.valid | shifted.ready
        m.d.comb += self.i.ready.eq(waits & free)
        with m.If(free):
            m.d.sync += shifted.valid.eq(self.i.valid & waits)
            m.d.sync += shifted.payload.eq(
                Cat(half_up_by(row, output.shift)[:_ROW_BITS] for row in self.i.payload.data)
            )
        self._write(m, output, gearbox)
        return m

    def _write(self, m: Module, output: data.View, gearbox: Gearbox) -> None:
        """Words to the scratchpad and past the magnitude."""
        write, put, lanes = self.o_scratch_write, self.o_magnitude, self.config.gemm.row_lanes
        word = Signal(range(row_words(self.config)))
        words = gearbox.o.payload.data
        moves, last = write.valid & write.ready, gearbox.o.payload.last
        tail = self.config.mha.q_heads * self.config.dsq.head_dim % lanes or lanes
        m.submodules.magnitude = magnitude = RowMagnitude(lanes, _ROW_BITS)
        m.d.comb += [
            write.valid.eq(gearbox.o.valid),
            write.payload.address.eq(output.target + word),
            write.payload.mask.eq(Cat(1 if n < tail else ~last for n in range(lanes))),
            *(write.payload.data[n].eq(words.word_select(n, _ROW_BITS).as_signed()) for n in range(lanes)),
            gearbox.o.ready.eq(write.ready),
            magnitude.i.valid.eq(moves),
            magnitude.i.last.eq(last),
            magnitude.i.mask.eq(write.payload.mask),
            magnitude.i.data.eq(words),
            put.valid.eq(magnitude.o.valid),
            put.payload.row.eq(output.row),
            put.payload.magnitude.eq(magnitude.o.payload),
            put.payload.first.eq(output.first),
            magnitude.o.ready.eq(put.ready),
        ]
        with m.If(moves):
            m.d.sync += word.eq(word + 1)
            with m.If(last):
                m.d.sync += word.eq(0)
