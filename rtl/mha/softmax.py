"""Weights of scores against the running maximum of their row (golden `softmax_streaming`)."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.mha.scores import SCORE_BITS, SCORE_FRACTION_BITS
from golden.mha.softmax import EXP2, PROBABILITY_BITS
from rtl.config import AcceleratorConfig

__all__ = ["StreamingSoftmax"]

#: a token's score is the sum of up to three saturated ones
_SUM_BITS = SCORE_BITS + 2
#: whole base-2 units, and the next one above each of them
_MAXIMUM_BITS = _SUM_BITS - SCORE_FRACTION_BITS + 1
_RISE_BITS = 6


class _Head(wiring.Component):
    """Maximum and weight of one query head, in step with the pipeline of StreamingSoftmax.

    Members
    -------
    advance : all stages move on.
    score : of the transfer that comes.
    given, end, first : the transfer in the first stage; ``first``: its row has had no token yet.
    weight, rise, maximum : of the transfer in the last stage.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "advance": In(1),
                "score": In(signed(_SUM_BITS)),
                "given": In(1),
                "end": In(1),
                "first": In(1),
                "weight": Out(PROBABILITY_BITS),
                "rise": Out(_RISE_BITS),
                "maximum": Out(signed(_MAXIMUM_BITS)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.exp2 = exp2 = Memory(shape=unsigned(PROBABILITY_BITS), depth=len(EXP2), init=EXP2.tolist())
        entry = exp2.read_port()
        fraction = Signal(SCORE_FRACTION_BITS)
        m.d.comb += [entry.en.eq(self.advance), entry.addr.eq(fraction)]

        # The weight lies between one half and one against the token's own maximum, so it is shifted right by as much as
        # the row's maximum is above that.
        own, running, settled = (Signal(signed(_MAXIMUM_BITS), name=n) for n in ("own", "running", "settled"))
        above = Signal(signed(_MAXIMUM_BITS + 1))
        power = Signal(PROBABILITY_BITS)
        shift = Signal(range(PROBABILITY_BITS + 1))
        rise = Signal(_RISE_BITS)
        ended = Signal()
        with m.If(self.advance):
            m.d.sync += [
                fraction.eq(self.score[:SCORE_FRACTION_BITS]),
                own.eq((self.score >> SCORE_FRACTION_BITS) + 1),
            ]

            m.d.sync += [above.eq(Mux(self.end | self.first, 0, running - own)), ended.eq(self.end)]
            with m.If(self.given & self.first):
                m.d.sync += running.eq(Mux(self.end, -1 << (_MAXIMUM_BITS - 1), own))
            with m.Elif(self.given & ~self.end & (own > running)):
                m.d.sync += running.eq(own)

            # `running` is now the maximum with the token that `above` belongs to: later ones come after this edge.
            m.d.sync += [power.eq(entry.data), shift.eq(0), rise.eq(0), settled.eq(running)]
            with m.If(above < 0):
                m.d.sync += rise.eq(Mux(above <= -(1 << _RISE_BITS), (1 << _RISE_BITS) - 1, -above))
            with m.Else():
                m.d.sync += shift.eq(Mux(ended | (above >= PROBABILITY_BITS), PROBABILITY_BITS, above))

            m.d.sync += [self.weight.eq(power >> shift), self.rise.eq(rise), self.maximum.eq(settled)]
        return m


class StreamingSoftmax(wiring.Component):
    """Gives each token's weight ``2**(score - maximum)``, the maximum being that of its row's tokens so far.

    The maximum is in whole units, so a weight is an entry of EXP2 at the score's fraction, shifted right by the whole
    units between. Whoever sums weights shifts the sum right by ``rises`` before the token is added.

    Latency: ``latency(config)`` cycles from a transfer at ``i`` to its transfer at ``o``, if the output is not stalled.
    Throughput: one token or ``end`` a cycle, for all heads at once; rows follow each other without a gap.
    Stalls: the pipeline stops as a whole while ``o`` waits, else it moves on, with new input or without.
    Combinational paths: ``o.ready`` to ``i.ready``.

    Parameters
    ----------
    config: of which only ``mha.q_heads`` matters.
    tag_shape: shape of what passes along with each transfer.

    Members
    -------
    i : stream: ``scores`` of a token by head, 8 fraction bits; or ``end`` without a token: the row is complete (its
        scores do not count); and ``tag``.
    o : stream, one transfer for each at ``i``: ``weights`` in units of 2**-16; ``rises``, by how much the maximum rose
        with this token, saturated, 0 at a row's first token; ``maxima`` up to this token, whole units; ``end``;
        ``tag``. With ``end`` weights and rises are 0 and the maxima are the row's, -2**18 if it had no token.
    """

    def __init__(self, config: AcceleratorConfig, tag_shape: Any) -> None:
        self.heads = heads = config.mha.q_heads
        self.tag_shape = tag_shape
        self.i_shape = data.StructLayout(
            {"scores": data.ArrayLayout(signed(_SUM_BITS), heads), "end": 1, "tag": tag_shape}
        )
        self.o_shape = data.StructLayout(
            {
                "weights": data.ArrayLayout(PROBABILITY_BITS, heads),
                "rises": data.ArrayLayout(_RISE_BITS, heads),
                "maxima": data.ArrayLayout(signed(_MAXIMUM_BITS), heads),
                "end": 1,
                "tag": tag_shape,
            }
        )
        super().__init__({"i": In(stream.Signature(self.i_shape)), "o": Out(stream.Signature(self.o_shape))})

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from a transfer at ``i`` to its transfer at ``o``."""
        return 4

    def elaborate(self, platform):
        m = Module()
        advance = ~self.o.valid | self.o.ready
        # The stages before the output: score split, compared with the maximum, table read.
        valid, ends = Signal(3), Signal(3)
        tags = [Signal(self.tag_shape, name=f"tag_{n}") for n in range(3)]
        first = Signal(init=1)
        payload, output = self.i.payload, self.o.payload
        m.d.comb += self.i.ready.eq(advance)
        with m.If(advance):
            m.d.sync += [
                Cat(valid, self.o.valid).eq(Cat(self.i.valid, valid)),
                Cat(ends, output.end).eq(Cat(payload.end, ends)),
                *(after.eq(before) for before, after in pairwise([payload.tag, *tags, output.tag])),
            ]
            with m.If(valid[0]):
                m.d.sync += first.eq(ends[0])
        for n in range(self.heads):
            m.submodules[f"head_{n}"] = head = _Head()
            m.d.comb += [
                head.advance.eq(advance),
                head.given.eq(valid[0]),
                head.score.eq(payload.scores[n]),
                head.end.eq(ends[0]),
                head.first.eq(first),
                output.weights[n].eq(head.weight),
                output.rises[n].eq(head.rise),
                output.maxima[n].eq(head.maximum),
            ]
        return m
