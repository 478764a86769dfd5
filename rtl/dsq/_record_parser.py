"""The words of a record, each with what it holds: hardware of golden ``record.unpack``."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.dsq.record import HEADER_BYTES
from golden.dsq.scale import MAX_EXPONENT
from rtl.common.memory import NO_COLLISIONS
from rtl.config import DsqConfig
from rtl.dsq._record_header import RecordHeader
from rtl.dsq._record_position import Part, RecordPosition
from rtl.dsq._row_format import Section, base_index_shape, beat_layout, row_formats
from rtl.dsq.record import word_layout

__all__ = ["RecordParser"]


class RecordParser(wiring.Component):
    """Takes record words; gives those that hold elements, with their position, first planes, scales and bases.

    Two registers: a word is examined in the cycle after its transfer and stands at the output in the next one, as long
    as ``enable`` is high. A word waits before the lower nibbles until the header's scan is over, and before deltas
    until ``steps_ready``. A faulty record gives one beat with ``error`` and ``last``; its words up to the input's
    ``last`` are dropped.

    Members
    -------
    i : record words
    enable : what stands at the output is taken in this cycle
    begin_ready : the next record may begin; ``begin``: its first word is taken
    k_scale, v_scale : group scales, from the cycle after ``begin`` on
    steps_ready : the delta sections may go on
    k_passed : the last K delta word is taken from the output
    idle : the next word is a record's first one
    valid, beat, word : a word that gives elements, and which ones
    upper : the word of the first plane, in K_BASE and, where it has two planes, K_DELTA
    scales, bases : scale codes of the word's rows, indices of their bases
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        formats = row_formats(config)
        super().__init__(
            {
                "i": In(stream.Signature(word_layout(config))),
                "enable": In(1),
                "begin_ready": In(1),
                "begin": Out(1),
                "k_scale": Out(8),
                "v_scale": Out(8),
                "steps_ready": In(1),
                "k_passed": Out(1),
                "idle": Out(1),
                "valid": Out(1),
                "beat": Out(beat_layout(config)),
                "word": Out(config.bus_bits),
                "upper": Out(config.bus_bits),
                "scales": Out(data.ArrayLayout(8, formats[Section.K_BASE].per_word)),
                "bases": Out(data.ArrayLayout(base_index_shape(config), formats[Section.K_DELTA].per_word)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        tokens = self.config.group_tokens
        m.submodules.position = position = RecordPosition(self.config)
        held, held_valid, move = Signal(word_layout(self.config)), Signal(), Signal()
        m.d.comb += self.i.ready.eq(~held_valid | move)
        with m.If(self.i.ready):
            m.d.sync += [held_valid.eq(self.i.valid), held.eq(self.i.payload)]

        # Faults of the held word, and of the row scales of the word at the output.
        salient, salient_now = Signal(8), Signal(8)
        output, output_present, output_ends = Signal.like(self.beat), Signal.like(position.present), Signal()
        dropping, drop, fault, scale_fault = Signal(), Signal(), Signal(), Signal()
        header_done, header_fault = self._lookups(m, position, move & ~drop, salient, held.data, output.row)
        few = (salient_now != 0) & (salient_now <= self.config.max_salient)
        bad_header = ~(few | (salient_now == tokens)) | (held.data[8:16] != self.config.delta_bits)
        bad_scales = Cat((scale[3:] > MAX_EXPONENT) & (i < output_present) for i, scale in enumerate(self.scales))
        scaled = (output.section == Section.K_BASE) | (output.section == Section.V_SALIENT)
        m.d.comb += [
            salient_now.eq(Mux(position.first, held.data[:8], salient)),
            fault.eq(
                (held.first != position.first)
                | (held.last != position.record_end)
                | (position.first & bad_header)
                | ((position.part == Part.LOWER) & header_fault)
            ),
            scale_fault.eq(self.valid & ~output.error & scaled & bad_scales.any()),
            drop.eq(dropping | (scale_fault & ~output_ends)),
        ]

        # The held word goes on.
        ready = Signal()
        with m.Switch(position.part):
            with m.Case(Part.LOWER):
                m.d.comb += ready.eq(header_done)
            with m.Case(Part.K_DELTA, Part.V_DELTA):
                m.d.comb += ready.eq(self.steps_ready)
            with m.Default():
                m.d.comb += ready.eq(~position.first | self.begin_ready)
        m.d.comb += [
            move.eq(held_valid & self.enable & (ready | drop)),
            self.begin.eq(move & position.first & ~drop),
            self.idle.eq(position.first & ~drop),
            position.salient.eq(salient_now),
            position.step.eq(move),
            position.restart.eq((self.enable & drop) | (move & fault)),
        ]
        with m.If(self.begin):
            m.d.sync += Cat(salient, self.k_scale, self.v_scale).eq(Cat(salient_now, held.data[16:32]))
        with m.If(self.enable & drop):
            m.d.sync += dropping.eq(1)
        with m.If(move & (drop | fault)):
            m.d.sync += dropping.eq(~held.last)

        # The output register.
        k_last, gives = Signal(), Signal()
        with m.Switch(position.part):
            with m.Case(Part.LOWER, Part.K_DELTA, Part.V_SALIENT, Part.V_DELTA):
                m.d.comb += gives.eq(1)
        with m.If(self.enable):
            m.d.sync += [
                self.valid.eq(move & ~drop & (gives | fault)),
                self.word.eq(held.data),
                output.eq(position.beat),
                output.last.eq(position.record_end),
                output.error.eq(fault),
                output_present.eq(position.present),
                output_ends.eq(held.last),
                k_last.eq((position.part == Part.K_DELTA) & position.part_end),
            ]
        broken = output.error | scale_fault
        m.d.comb += [
            self.beat.eq(output),
            self.beat.error.eq(broken),
            self.beat.last.eq(output.last | broken),
            self.beat.count.eq(Mux(broken, 0, output.count)),
            self.k_passed.eq(self.valid & self.enable & k_last),
        ]
        return m

    def _lookups(
        self, m: Module, position: RecordPosition, passes: Value, salient: Value, word: Value, delta_row: Value
    ) -> tuple[Value, Value]:
        """Keep headers and first planes of earlier words. Returns that the header's scan is over, and its fault."""
        m.submodules.header = header = RecordHeader(
            self.config, scales=self.scales.shape().length, bases=self.bases.shape().length
        )
        # A word that is written is at the output without `upper`.
        m.submodules.planes = planes = Memory(
            shape=unsigned(self.config.bus_bits), depth=position.depth, init=[], attrs=NO_COLLISIONS
        )
        write, read = planes.write_port(), planes.read_port()
        is_plane = (position.part == Part.UPPER) | (position.part == Part.COARSE)
        v_scales = Mux(position.part == Part.V_SALIENT, salient, 0)
        m.d.comb += [
            header.start.eq(self.begin),
            header.salient.eq(salient),
            header.written.eq(position.index),
            header.complete.eq(position.part != Part.HEADER),
            header.w_en.eq(passes & (position.part == Part.HEADER)),
            header.w_addr.eq(position.index),
            header.w_data.eq(word),
            header.pointer.eq(HEADER_BYTES + salient + v_scales + position.beat.row),
            header.row.eq(delta_row),
            self.bases.eq(header.bases),
            write.en.eq(passes & is_plane),
            write.addr.eq(position.index),
            write.data.eq(word),
            read.addr.eq(position.index),
            read.en.eq(self.enable),
            self.upper.eq(read.data),
        ]
        with m.If(self.enable):
            m.d.sync += self.scales.eq(header.scales)
        return header.done, header.fault
