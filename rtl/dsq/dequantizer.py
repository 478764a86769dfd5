"""Record words to INT16 elements: hardware of golden ``dequantize``."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.record import COARSE_BITS, HEADER_BYTES
from rtl.config import DsqConfig
from rtl.dsq._base_rows import BaseRows
from rtl.dsq._compressor_steps import calibration_layout
from rtl.dsq._element_lanes import ElementLanes
from rtl.dsq._record_header import scan_cycles
from rtl.dsq._record_parser import RecordParser
from rtl.dsq._row_format import Section, beat_layout, row_formats
from rtl.dsq._step_store import StepStore, step_cycles
from rtl.dsq.record import word_layout

__all__ = ["Dequantizer", "Section"]


class Dequantizer(wiring.Component):
    """Decodes the records of one (layer, kv_head), one after the other, a bus word per cycle.

    A word that holds elements gives one beat with all of them; words of the header and of first planes (upper nibbles,
    and the coarse plane of 4-bit K deltas) give none. The beats of a record come in the order of its sections; in a
    section, elements follow each other row by row.

    Latency: ``latency`` cycles from a word's transfer to its beat at ``o``. Throughput: a word per cycle, and the next
    record follows in the next cycle, apart from these waits (`record_cycles` counts them):

    - the first lower-nibble word is examined at least ``ceil(salient / 4) + 2`` cycles after the record's first word (3
      instead of 2 on a 32-bit bus), the first word with K deltas at least ``step_cycles`` cycles after it, the first V
      delta word at least ``step_cycles + 1`` cycles after the last K delta word. The words between usually take as
      long: in all presets nothing waits when at least an eighth of the group is salient;
    - a record with ``load_calibration`` waits until the last beat before it stands at ``o``, then ``head_dim`` cycles.

    Stalls: when ``o`` is not ready, everything before it stops in the same cycle. Combinational paths: from ``o.ready``
    to ``i.ready``.

    A record is faulty when its salient count is neither 1 to ``max_salient`` nor ``group_tokens``, its delta width is
    not ``delta_bits``, its run lengths do not add up, the scale of a row has an exponent above ``MAX_EXPONENT``, or
    ``first`` or ``last`` comes with the wrong word. It gives the beats before the word where this shows, then one beat
    with ``error`` and ``last``; its words after that, up to ``last``, are dropped.

    Reset keeps the calibration; at power-on it is all zeros.

    Parameters
    ----------
    config : DsqConfig

    Members
    -------
    i_record : stream of struct{load_calibration}
        One for each record, with or before its first word.
    i_calibration : stream of struct{k_shape, v_shape, v_mean}
        ``head_dim`` transfers for each record with ``load_calibration``, channel 0 first.
    i : stream of struct{data, first, last}
        Record words.
    o : stream of struct{section, row, channel, count, last, error, elements}
        ``elements[0]`` is that of ``row`` and ``channel`` in ``section``, the next ``count - 1`` are those after it, at
        the end of a row those of the next row. Elements from ``count`` on have no meaning. ``row`` counts from 0 in
        each section. ``last`` marks a record's last beat. With ``error`` the count is 0.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        elements = data.ArrayLayout(signed(16), config.bus_bits // 2)
        super().__init__(
            {
                "i_record": In(stream.Signature(data.StructLayout({"load_calibration": 1}))),
                "i_calibration": In(stream.Signature(calibration_layout)),
                "i": In(stream.Signature(word_layout(config))),
                "o": Out(stream.Signature(data.StructLayout({**beat_layout(config).members, "elements": elements}))),
            }
        )

    latency = 6
    """Cycles from the transfer of a word at ``i`` to its beat at ``o``, if neither waits."""

    @staticmethod
    def section_words(config: DsqConfig, salient_tokens: int) -> dict[str, int]:
        """Bus words of each part of a record."""
        rest = config.group_tokens - salient_tokens
        base, k_delta, v_salient, v_delta = row_formats(config).values()
        return {
            "header": -(-(HEADER_BYTES + 3 * salient_tokens) * 8 // config.bus_bits),
            "upper": base.section_words(salient_tokens),
            "lower": base.section_words(salient_tokens),
            "coarse": k_delta.section_words(rest) if config.delta_bits > COARSE_BITS else 0,
            "k_delta": k_delta.section_words(rest),
            "v_salient": v_salient.section_words(salient_tokens),
            "v_delta": v_delta.section_words(rest),
        }

    @staticmethod
    def record_cycles(config: DsqConfig, salient_tokens: int) -> int:
        """Cycles from the first word of a record to that of the next, when ``i`` and ``o`` never pause."""
        words = Dequantizer.section_words(config, salient_tokens)
        steps = Dequantizer.step_cycles(config)
        time = max(words["header"] + words["upper"], scan_cycles(config, salient_tokens)) + words["lower"]
        if words["k_delta"] == 0:
            return time + words["v_salient"]
        time = max(time + words["coarse"], steps) + words["k_delta"]
        return time + max(words["v_salient"], steps) + words["v_delta"]

    @staticmethod
    def step_lanes(config: DsqConfig) -> int:
        """Steps computed in a cycle: the fewest that keep up with a record with an eighth salient, at most 16."""
        words = Dequantizer.section_words(config, config.group_tokens // 8)
        before = min(words["header"] + words["upper"] + words["lower"] + words["coarse"], words["v_salient"])
        fitting = (lanes for lanes in (1, 2, 4, 8) if step_cycles(config, lanes) <= before)
        return next(fitting, 16)

    @staticmethod
    def step_cycles(config: DsqConfig) -> int:
        """Cycles that the quantization steps of K or V take."""
        return step_cycles(config, Dequantizer.step_lanes(config))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.parser = parser = RecordParser(self.config)
        m.submodules.steps = steps = StepStore(self.config, lanes=self.step_lanes(self.config))
        m.submodules.bases = bases = BaseRows(self.config)
        m.submodules.lanes = lanes = ElementLanes(
            self.config, step_shape=steps.steps.shape(), mean_shape=steps.means.shape()
        )
        enable = Signal()
        wiring.connect(m, wiring.flipped(self.i), parser.i)
        m.d.comb += [
            enable.eq(~self.o.valid | self.o.ready),
            parser.enable.eq(enable),
            parser.steps_ready.eq(steps.ready),
            steps.start_k.eq(parser.begin),
            steps.start_v.eq(parser.k_passed),
            steps.k_scale.eq(parser.k_scale),
            steps.v_scale.eq(parser.v_scale),
            steps.step_addr.eq(parser.beat.channel // steps.width),
            lanes.enable.eq(enable),
            lanes.section.eq(parser.beat.section),
            lanes.word.eq(parser.word),
            lanes.upper.eq(parser.upper),
            lanes.scales.eq(parser.scales),
            lanes.steps.eq(steps.steps),
        ]

        # What goes beside the lanes' registers: operands, products, offsets.
        stages = [(parser.valid, parser.beat, parser.bases)]
        for name in ("operand", "product", "offset"):
            stage = (
                Signal(name=f"{name}_valid"),
                Signal(beat_layout(self.config), name=f"{name}_beat"),
                Signal(parser.bases.shape(), name=f"{name}_bases"),
            )
            with m.If(enable):
                m.d.sync += [after.eq(before) for before, after in zip(stages[-1], stage, strict=True)]
            stages.append(stage)
        self._load(m, parser, steps, drained=~Cat(valid for valid, _, _ in stages).any())

        valid, beat, rows = stages[-1]
        m.d.comb += [
            bases.r_rows.eq(rows),
            bases.r_channel.eq(beat.channel),
            bases.w_en.eq(valid & (beat.section == Section.K_BASE) & ~beat.error),
            bases.w_row.eq(beat.row),
            bases.w_channel.eq(beat.channel),
            bases.w_data.eq(lanes.result.as_value()[: bases.w_data.shape().size]),
            steps.mean_addr.eq(beat.channel // steps.width),
            lanes.result_section.eq(beat.section),
            lanes.bases.eq(bases.r_data),
            lanes.means.eq(steps.means),
        ]
        with m.If(enable):
            m.d.sync += self.o.valid.eq(valid)
            m.d.sync += [self.o.payload[field].eq(beat[field]) for field, _ in beat_layout(self.config)]
            m.d.sync += self.o.payload.elements.eq(lanes.result)
        return m

    def _load(self, m: Module, parser: RecordParser, steps: StepStore, *, drained: Value) -> None:
        """Take the command of the next record and, between two records, its calibration."""
        pending, load, channel = Signal(), Signal(), Signal(range(self.config.head_dim))
        m.d.comb += [
            self.i_record.ready.eq(~pending),
            self.i_calibration.ready.eq(pending & load & parser.idle & drained),
            parser.begin_ready.eq(pending & ~load),
            steps.w_en.eq(self.i_calibration.valid & self.i_calibration.ready),
            steps.w_channel.eq(channel),
            steps.w_data.eq(self.i_calibration.payload),
        ]
        with m.If(self.i_record.ready):
            m.d.sync += [pending.eq(self.i_record.valid), load.eq(self.i_record.payload.load_calibration)]
        with m.If(parser.begin):
            m.d.sync += pending.eq(0)
        with m.If(steps.w_en):
            m.d.sync += channel.eq(channel + 1)
            with m.If(channel == self.config.head_dim - 1):
                m.d.sync += [channel.eq(0), load.eq(0)]
