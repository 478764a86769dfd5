"""Where in its record a word lies, counted from the sizes that golden ``RecordLayout`` gives the sections."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.dsq.record import COARSE_BITS, HEADER_BYTES
from rtl.config import DsqConfig
from rtl.dsq._row_format import Section, beat_layout, row_formats

__all__ = ["Part", "RecordPosition"]


class Part(enum.Enum, shape=unsigned(3)):
    """The parts of a record in their order.

    UPPER and COARSE are first planes; COARSE is there when K deltas have two. LOWER, K_DELTA (the last plane) and the V
    parts give elements.
    """

    HEADER = 0
    UPPER = 1
    LOWER = 2
    COARSE = 3
    K_DELTA = 4
    V_SALIENT = 5
    V_DELTA = 6


class RecordPosition(wiring.Component):
    """Follows the words of a record. Outputs are combinational in ``salient``, else registered; no word waits here.

    Members
    -------
    step : the word passes
    restart : the word after this one, or after the last one that passed, is the first of a record
    salient : salient count of the word's record
    part, index : the word's part and its number in there
    first, part_end, record_end : first word of the record, last one of the part, of the record
    present : rows that the word has, or has a piece of
    beat : which elements the word gives, apart from ``last`` and ``error``, which are 0
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        self.formats = row_formats(config)
        tokens, base = config.group_tokens, self.formats[Section.K_BASE]
        header_words = -(-8 * (HEADER_BYTES + 3 * tokens) // config.bus_bits)
        # No plane has more words than that of all tokens' nibbles.
        self.depth = 1 << ceil_log2(max(header_words, base.section_words(tokens)))
        super().__init__(
            {
                "step": In(1),
                "restart": In(1),
                "salient": In(8),
                "part": Out(Part),
                "index": Out(range(self.depth)),
                "first": Out(1),
                "part_end": Out(1),
                "record_end": Out(1),
                "present": Out(range(max(f.per_word for f in self.formats.values()) + 1)),
                "beat": Out(beat_layout(config)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        tokens, word_bytes = self.config.group_tokens, self.config.bus_bits // 8
        row, word = Signal(range(tokens)), Signal(range(max(f.words for f in self.formats.values())))
        rows, per_word, left = Signal(range(tokens + 1)), Signal.like(self.present), Signal(range(tokens + 1))
        following, row_end = Signal(Part), Signal()
        dense = self.salient == tokens
        rest = tokens - self.salient
        first_delta = Part.COARSE if self.config.delta_bits > COARSE_BITS else Part.K_DELTA
        m.d.comb += [
            self.first.eq((self.part == Part.HEADER) & (self.index == 0)),
            self.beat.row.eq(row),
            left.eq(rows - row),
            self.present.eq(Mux(left < per_word, left, per_word)),
            self.record_end.eq(self.part_end & (following == Part.HEADER)),
        ]
        with m.If(self.part == Part.HEADER):
            header_bytes = HEADER_BYTES + (self.salient << 1) + self.salient
            header_words = (header_bytes + word_bytes - 1) // word_bytes
            m.d.comb += [self.part_end.eq(self.index + 1 == header_words), following.eq(Part.UPPER)]
        for part, section, part_rows, then in (
            (Part.UPPER, Section.K_BASE, self.salient, Part.LOWER),
            (Part.LOWER, Section.K_BASE, self.salient, Mux(dense, Part.V_SALIENT, first_delta)),
            (Part.COARSE, Section.K_DELTA, rest, Part.K_DELTA),
            (Part.K_DELTA, Section.K_DELTA, rest, Part.V_SALIENT),
            (Part.V_SALIENT, Section.V_SALIENT, self.salient, Mux(dense, Part.HEADER, Part.V_DELTA)),
            (Part.V_DELTA, Section.V_DELTA, rest, Part.HEADER),
        ):
            row_format = self.formats[section]
            with m.If(self.part == part):
                m.d.comb += [
                    rows.eq(part_rows),
                    per_word.eq(row_format.per_word),
                    row_end.eq(word == row_format.words - 1),
                    self.part_end.eq(row_end & (left <= row_format.per_word)),
                    following.eq(then),
                    self.beat.section.eq(section),
                    self.beat.channel.eq(word * row_format.codes),
                    self.beat.count.eq(row_format.count(self.present, word)),
                ]
        m.d.comb += [self.beat.last.eq(0), self.beat.error.eq(0)]

        with m.If(self.restart | (self.step & self.part_end)):
            m.d.sync += [
                self.part.eq(Mux(self.restart, Part.HEADER, following)),
                self.index.eq(0),
                row.eq(0),
                word.eq(0),
            ]
        with m.Elif(self.step):
            m.d.sync += [self.index.eq(self.index + 1), word.eq(Mux(row_end, 0, word + 1))]
            with m.If(row_end):
                m.d.sync += row.eq(row + per_word)
        return m
