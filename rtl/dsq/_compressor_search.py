"""Sequence of the Compressor's nearest-base search."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.config import DsqConfig
from rtl.dsq._compressor_lanes import Lanes, operation_layout
from rtl.dsq._compressor_order import times

__all__ = ["PairWalker"]


class PairWalker(wiring.Component):
    """Issues every row that is not salient, last token first, and its pairs with all bases.

    A beat takes one slot for reading the row and one for each base. As reading has a latency, the row beat goes
    ahead: each round issues a row beat and then the pairs of the round before. With few bases a round is longer than
    its slots, so that a row beat never comes later than ``Lanes.PAIR_DISTANCE`` before its first pair. One more cycle
    goes to every token.

    Members
    -------
    start, busy : begins; ``busy`` from the next cycle until the last pair has been issued
    salient_tokens, buffer : of the group: its bases, at most ``max_salient``; the half of the row memory
    index, salient_token : reads of TokenOrder
    op : to Lanes, which takes one a cycle in this pass
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        token = range(config.group_tokens)
        super().__init__(
            {
                "start": In(1),
                "busy": Out(1),
                "salient_tokens": In(bits_for(config.group_tokens)),
                "buffer": In(1),
                "index": Out(token),
                "salient_token": In(token),
                "op": Out(operation_layout(config)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        # The row beat and its first pair are len(a round) + 1 cycles apart.
        shortest = Lanes.PAIR_DISTANCE - 2
        bases = self.salient_tokens[: bits_for(c.max_salient)]
        rounds_pairs = Mux(bases < shortest, shortest, bases)
        token, beat = Signal(range(c.group_tokens)), Signal(range(c.row_beats))
        before_token, before_beat, before_valid = Signal.like(token), Signal.like(beat), Signal()
        skips = Signal()  # salient tokens are left below
        rows_end = Signal()  # no row is left
        reads = Signal()  # this slot is the row beat's
        pair = Signal(range(max(c.max_salient, shortest) + 1))
        last_beat = beat == c.row_beats - 1
        m.d.comb += [
            self.op.row_address.eq(times(Cat(0, token, self.buffer), c.row_beats) + beat),
            self.op.base_address.eq(times(pair, c.row_beats) + before_beat),
            self.op.base.eq(pair),
            self.op.last_base.eq(pair == bases - 1),
            self.op.last.eq(before_beat == c.row_beats - 1),
            self.op.beat.eq(before_beat),
            self.op.token.eq(before_token),
        ]
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [
                    token.eq(c.group_tokens - 1),
                    self.index.eq(bases - 1),
                    skips.eq(1),
                    rows_end.eq(0),
                    before_valid.eq(0),
                    reads.eq(1),
                ]
                with m.If(self.start):
                    m.next = "TOKEN"
            with m.State("TOKEN"):
                with m.If(skips & (token == self.salient_token) & ~rows_end):
                    m.d.sync += [
                        token.eq(token - 1),
                        rows_end.eq(token == 0),
                        self.index.eq(self.index - 1),
                        skips.eq(self.index != 0),
                    ]
                with m.Else():
                    m.next = "ROUND"
            with m.State("ROUND"):
                with m.If(reads):
                    m.d.comb += self.op.row.eq(~rows_end)
                    m.d.sync += [reads.eq(0), pair.eq(0)]
                with m.Else():
                    m.d.comb += self.op.pair.eq(before_valid & (pair < bases))
                    m.d.sync += pair.eq(pair + 1)
                    with m.If(pair == rounds_pairs - 1):
                        m.d.sync += [
                            reads.eq(1),
                            before_token.eq(token),
                            before_beat.eq(beat),
                            before_valid.eq(1),
                            beat.eq(Mux(last_beat, 0, beat + 1)),
                        ]
                        with m.If(rows_end):
                            m.d.sync += beat.eq(0)
                            m.next = "IDLE"
                        with m.Elif(last_beat):
                            m.d.sync += [token.eq(token - 1), rows_end.eq(token == 0)]
                            m.next = "TOKEN"
        return m
