"""Weighted sum of V rows and its division by the sum of weights: golden `accumulate` and `finish_output`."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.mha.softmax import INVERSE_BITS
from rtl.config import AcceleratorConfig
from rtl.mha._inverse import LENGTH_BITS, Inverse
from rtl.mha._query_store import SLOT_BITS
from rtl.mha._value_finish import ValueFinish
from rtl.mha._value_format import ValueFormat, value_calibration_layout
from rtl.mha._value_issue import ValueIssue
from rtl.mha._value_lanes import ValueLanes
from rtl.mha._value_weights import WeightScaler

__all__ = ["ValueSum"]

#: beats of the output that may be under way
BEATS = 2


class ValueSum(wiring.Component):
    """Adds up weight x V over the tokens of a row, for all query heads at once, and gives the rows of the output.

    A row is finished while the next one accumulates: its heads' totals are inverted, then its channels are read, each
    in a cycle in which no word is added, or in the fourth one after the channel before it, which costs a word's place.

    Latency: ``inverse_latency`` cycles from the transfer of a row's ``end`` to its transfer at ``o_row``,
    ``row_latency`` to its last beat at ``o``, if nothing is stalled, no words are added meanwhile, and the row before
    has left.
    Throughput: a word per cycle, a word of deltas in ``delta_cycles`` or, the last one of a row, in as many as it has
    channels for; a token whose maximum rises by d first takes ``d * row_words(8)`` cycles more. Of the cycles in which
    words are added while a row is finished, at most one in four is lost. The ``end`` of a row waits until the row
    before has left.
    Stalls: words and tokens wait for each other. Back-pressure at ``o`` or ``o_row`` stops the finishing of a row; the
    next row's words go on until its ``end``.
    Combinational paths: none between streams; ``ready`` of both inputs depends on registers alone.

    The scale of an INT8 row has an exponent of at most MAX_EXPONENT; records with a larger one are faulty.
    Reset keeps the calibration.

    Parameters
    ----------
    config : AcceleratorConfig
        Of which the channels, ``lanes``, ``bus_bits``, ``q_heads``, ``delta_cycles``, and the most tokens of a row
        matter, which are those of ``max_groups + 2`` groups.

    Members
    -------
    i_token : stream of struct{weights, rises, scale, delta, end, slot}
        Tokens of a row in order. ``weights`` of each head are against the maximum so far, ``rises`` tells by how much
        (saturated at 63) this token made it rise, ``scale`` is the scale code of its V row or group, ``delta`` that it
        has 2-bit codes instead of INT8. With ``end`` it is no token: the row is complete, to be finished with
        calibration ``slot``.
    i_word : stream of words
        The V codes of each token: ``row_words(8)`` words of INT8 codes, or ``row_words(2)`` of 2-bit codes. Codes
        behind ``head_dim`` do not matter.
    c_en, c_slot, c_channel, c_data : struct{v_shape, v_mean}
        Writes one channel of a calibration. The row's slot must not change until the row has left.
    o : stream of struct{head, data, last}
        ``row_beats`` beats of ``lanes`` channels for each head, head 0 first; ``last`` ends the row.
    o_row : stream of struct{inverse, length}
        One for each row: golden ``inverse`` of each head's total.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.sizes = sizes = ValueFormat(config)
        heads = sizes.heads
        self.o_row_layout = data.StructLayout(
            {"inverse": data.ArrayLayout(INVERSE_BITS + 1, heads), "length": data.ArrayLayout(LENGTH_BITS, heads)}
        )
        super().__init__(
            {
                "i_token": In(stream.Signature(sizes.token_layout)),
                "i_word": In(stream.Signature(sizes.word_bits)),
                "c_en": In(1),
                "c_slot": In(SLOT_BITS),
                "c_channel": In(range(sizes.channels)),
                "c_data": In(value_calibration_layout),
                "o": Out(stream.Signature(sizes.beat_layout)),
                "o_row": Out(stream.Signature(self.o_row_layout)),
            }
        )

    @staticmethod
    def inverse_latency(config: AcceleratorConfig) -> int:
        """Cycles from the transfer of a row's ``end`` at ``i_token`` to its transfer at ``o_row``."""
        return WeightScaler.latency + 3 + Inverse.cycles(ValueFormat(config).total_bits)

    @staticmethod
    def row_latency(config: AcceleratorConfig) -> int:
        """Cycles from the transfer of a row's ``end`` at ``i_token`` to the last beat at ``o``."""
        lanes, beats = config.dsq.lanes, config.mha.q_heads * config.dsq.row_beats
        alone = lanes + ValueFinish.latency  # a beat, until the next but one may begin
        pairs, single = divmod(beats - 1, BEATS)
        return ValueSum.inverse_latency(config) + pairs * max(alone + 1, BEATS * lanes) + single * lanes + alone

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sizes = self.sizes
        m.submodules.scaler = scaler = WeightScaler(sizes)
        m.submodules.issue = issue = ValueIssue(sizes)
        m.submodules.finish = finish = ValueFinish(self.config)
        wiring.connect(m, wiring.flipped(self.i_token), scaler.i)
        wiring.connect(m, scaler.o, issue.i)
        wiring.connect(m, wiring.flipped(self.i_word), issue.i_word)
        wiring.connect(m, finish.o, wiring.flipped(self.o))
        lanes = [ValueLanes(sizes) for _ in range(sizes.heads)]
        inverses = [Inverse(sizes.total_bits) for _ in lanes]
        for head in range(sizes.heads):
            m.submodules[f"lanes_{head}"] = lanes[head]
            m.submodules[f"inverse_{head}"] = inverses[head]

        step = issue.step
        self._finish(m, issue, finish, started=step.end, inverted=inverses[0].done)
        for head in range(sizes.heads):
            sums, inverse = lanes[head], inverses[head]
            m.d.comb += [
                sums.step.eq(step),
                sums.word.eq(issue.word),
                sums.scaled.eq(issue.scaled[head]),
                sums.weight.eq(issue.weights[head]),
                sums.shifts.eq(issue.shifts[head]),
                inverse.total.eq(sums.total),
                finish.exact[head].eq(sums.exact),
                finish.delta[head].eq(sums.delta),
                finish.rest[head].eq(sums.rest),
                finish.scaled_rest[head].eq(sums.scaled_rest),
                finish.inverse[head].eq(inverse.inverse),
                finish.length[head].eq(inverse.length),
                self.o_row.payload.inverse[head].eq(inverse.inverse),
                self.o_row.payload.length[head].eq(inverse.length),
            ]
            m.d.sync += inverse.start.eq(step.end)
        m.d.comb += [
            finish.read.eq(step.read),
            finish.head.eq(step.head),
            finish.channel.eq(step.channel),
            finish.slot.eq(issue.slot),
            finish.c_en.eq(self.c_en),
            finish.c_slot.eq(self.c_slot),
            finish.c_channel.eq(self.c_channel),
            finish.c_data.eq(self.c_data),
        ]
        return m

    def _finish(
        self, m: Module, issue: ValueIssue, finish: ValueFinish, *, started: Value, inverted: Value
    ) -> None:
        """After a row has ended: wait for the inverses, ask for the channels, wait until all beats have left."""
        channel, head = Signal.like(issue.read_channel), Signal.like(issue.read_head)
        first = channel % finish.lanes == 0
        last_channel = channel == self.sizes.channels - 1
        under_way = Signal(range(BEATS + 1))
        begins, leaves = issue.read_taken & first, finish.o.valid & finish.o.ready
        m.d.sync += under_way.eq(under_way + begins - leaves)
        m.d.comb += [issue.read_channel.eq(channel), issue.read_head.eq(head)]
        with m.If(self.o_row.ready):
            m.d.sync += self.o_row.valid.eq(0)
        with m.FSM():
            with m.State("ACCUMULATE"):
                m.d.comb += issue.end_ready.eq(~started)
                with m.If(started):
                    m.next = "INVERT"
            with m.State("INVERT"):
                with m.If(inverted):
                    m.d.sync += self.o_row.valid.eq(1)
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += issue.read_wanted.eq(~first | (under_way < BEATS))
                with m.If(issue.read_taken):
                    m.d.sync += channel.eq(Mux(last_channel, 0, channel + 1))
                    with m.If(last_channel):
                        m.d.sync += head.eq(head + 1)
                        with m.If(head == self.sizes.heads - 1):
                            m.d.sync += head.eq(0)
                            m.next = "LEAVE"
            with m.State("LEAVE"):
                with m.If((under_way == 0) & ~self.o_row.valid):
                    m.next = "ACCUMULATE"
