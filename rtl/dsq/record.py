"""Header bytes and rows of codes to the bus words of a record: hardware of ``golden.dsq.record.pack``."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.config import DsqConfig

__all__ = ["CodeKind", "RecordPacker", "beat_layout", "section_cycles", "unit_bits", "word_layout"]


class CodeKind(enum.Enum, shape=2):
    """What a beat carries: one header byte, or one code of so many bits for each lane."""

    BYTE = 0
    TWO = 1
    FOUR = 2
    EIGHT = 3

    @property
    def code_bits(self) -> int:
        """Bits of one code."""
        return 1 << self.value


def beat_layout(config: DsqConfig) -> data.StructLayout:
    """A part of a record: ``data``, a byte or the codes of ``lanes`` channels, dense from bit 0.

    ``last`` marks the end of its section, ``end`` that of its record.
    """
    return data.StructLayout({"data": 8 * config.lanes, "kind": CodeKind, "last": 1, "end": 1})


def word_layout(config: DsqConfig) -> data.StructLayout:
    """A word of a record; ``first`` and ``last`` of its record."""
    return data.StructLayout({"data": config.bus_bits, "first": 1, "last": 1})


def unit_bits(config: DsqConfig) -> int:
    """Bits that are added to a word in one cycle."""
    return min(2 * config.lanes, config.bus_bits)


def _unit_count(config: DsqConfig, kind: CodeKind) -> int:
    """Units of one beat of codes."""
    return kind.code_bits * config.lanes // unit_bits(config)


def _row_mask(config: DsqConfig, kind: CodeKind) -> int:
    """What must be zero in the word's unit index behind a whole row."""
    row_bits = config.head_dim * kind.code_bits
    stride = min(1 << (row_bits - 1).bit_length(), config.bus_bits)
    return max(stride // unit_bits(config), 1) - 1


def section_cycles(config: DsqConfig, kind: CodeKind, rows: int) -> int:
    """The most cycles in which RecordPacker takes ``rows`` rows and completes their section, if nothing stalls."""
    word_units = config.bus_bits // unit_bits(config)
    row_units = config.row_beats * _unit_count(config, kind)
    row_units += -row_units & _row_mask(config, kind)
    return rows * row_units * (2 if word_units == 1 else 1) + word_units


class RecordPacker(wiring.Component):
    """Assembles one record after another from its sections: pads rows and sections as ``RecordLayout`` says.

    A beat of codes leaves in units of twice ``lanes`` bits (a whole word, if that is less), one a cycle; header bytes
    are collected to units. The padding of a row or section takes a cycle for each unit, too. A finished word waits in
    the output register.

    Latency: a beat of u units enters its words in the u cycles behind its transfer; a word is valid at ``o`` in the
    cycle after that of its last unit. Throughput: a beat every u cycles; half of that where a unit is a whole word
    (``bus_bits <= 2 * lanes``). A section takes at most ``section_cycles``. Stalls: an occupied output register stops
    the last unit of the next word, and so ``i``. Combinational paths: none between the streams; ``i.ready`` depends
    on registers alone.

    Parameters
    ----------
    config : DsqConfig

    Members
    -------
    i : stream of struct{data, kind, last, end}
        ``data``: the byte, or the codes of ``lanes`` channels, dense from bit 0; bits above them do not matter. Rows
        have ``row_beats`` beats, channel 0 first. ``last``: last beat of a section; ``end``: last beat of the record.
    o : stream of struct{data, first, last}
        Record words; ``first`` and ``last`` mark those of a record.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        super().__init__(
            {"i": In(stream.Signature(beat_layout(config))), "o": Out(stream.Signature(word_layout(config)))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width, beat = unit_bits(self.config), self.i.payload
        word_units = self.config.bus_bits // width
        rest = Signal(8 * self.config.lanes, reset_less=True)  # of the beat that is being added
        left = Signal(range(_unit_count(self.config, CodeKind.EIGHT) + 1))  # its units
        mask = Signal(range(word_units))  # zero units follow until the index has none of these bits
        index = Signal(range(word_units))  # unit of the word that comes next
        word = Signal(self.config.bus_bits - width, reset_less=True)
        end = Signal()
        first = Signal(init=1)

        active = left != 0
        next_index = (index + 1)[: len(index)]
        push = Signal()
        finishes = Signal()
        m.d.comb += [
            push.eq((active | (index & mask).any()) & ((index != word_units - 1) | ~self.o.valid)),
            finishes.eq(push & (left[1:] == 0) & ~(next_index & mask).any()),
        ]
        unit = Mux(active, rest[:width], 0)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(push):
            m.d.sync += [index.eq(next_index), word.eq(Cat(word, unit)[width:])]
            with m.If(active):
                m.d.sync += left.eq(left - 1)
            with m.If(index == word_units - 1):
                m.d.sync += [
                    self.o.valid.eq(1),
                    self.o.payload.data.eq(Cat(word, unit)),
                    self.o.payload.first.eq(first),
                    self.o.payload.last.eq(end & finishes),
                    first.eq(end & finishes),
                ]

        row_beat = Signal(range(self.config.row_beats))
        byte = Signal(range(width // 8))
        fill = Signal()  # zero bytes complete the header's last unit
        last_byte, last_beat = byte == width // 8 - 1, row_beat == self.config.row_beats - 1
        load, row_mask, units = Signal(), Signal.like(mask), Signal.like(left)
        m.d.comb += [
            self.i.ready.eq(~fill & (finishes | ~(active | (index & mask).any()))),
            load.eq(self.i.valid & self.i.ready),
        ]
        shifted = Cat(rest[width:], beat.data[-width:])
        with m.If(load | push | fill):
            m.d.sync += rest.eq(Mux(load, beat.data, shifted))
            with m.If(fill | (load & (beat.kind == CodeKind.BYTE))):
                m.d.sync += rest[:width].eq(Cat(rest[8:width], Mux(fill, 0, beat.data[:8])))
        with m.If(load):
            m.d.sync += end.eq(beat.end)
        with m.Switch(beat.kind):
            for kind in (CodeKind.TWO, CodeKind.FOUR, CodeKind.EIGHT):
                with m.Case(kind):
                    m.d.comb += [row_mask.eq(_row_mask(self.config, kind)), units.eq(_unit_count(self.config, kind))]
        with m.If(fill | (load & (beat.kind == CodeKind.BYTE))):
            m.d.sync += [
                byte.eq(Mux(last_byte, 0, byte + 1)),
                left.eq(last_byte),
                mask.eq(Mux((fill | beat.last) & last_byte, word_units - 1, 0)),
                fill.eq((fill | beat.last) & ~last_byte),
            ]
        with m.Elif(load):
            m.d.sync += [
                row_beat.eq(Mux(last_beat, 0, row_beat + 1)),
                left.eq(units),
                mask.eq(Mux(beat.last, word_units - 1, Mux(last_beat, row_mask, 0))),
            ]
        return m
