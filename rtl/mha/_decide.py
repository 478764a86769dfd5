"""Part of the attention core: which kept tokens have their V read (golden ``value_margin``), and what that asks for."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.dsq.record import COARSE_BITS
from rtl.config import AcceleratorConfig
from rtl.mha._commit import decision_layout, kept_layout, sums_layout
from rtl.mha._query_store import SLOT_BITS
from rtl.mha._requests import GROUP_BITS, RING_ITEMS, SUM_BITS, Piece, RecordOffsets, ask_layout
from rtl.mha._scan import MARGIN_BITS

__all__ = ["TokenKind", "ValueDecider", "ring_layout", "token_layout"]


class TokenKind(enum.Enum, shape=unsigned(2)):
    """A token that takes part in the value sum, or the end of a query."""

    INT8 = 0
    BASE = 1
    DELTA = 2
    END = 3


def token_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A token in the order of the value sum.

    scores: without the fine plane; scale: of its V (not of INT8 tokens); index: in the first tile of its query; group:
    its number; by_token: its mass is given alone, else with that of its group, of which it is the last if ``end``;
    block_end: last of an INT8 block; slot: of the query.
    """
    return data.StructLayout(
        {
            "kind": TokenKind,
            "scores": sums_layout(config),
            "scale": 8,
            "index": ceil_log2(2 * config.dsq.group_tokens),
            "group": GROUP_BITS,
            "by_token": 1,
            "end": 1,
            "block_end": 1,
            "slot": SLOT_BITS,
        }
    )


def ring_layout() -> data.StructLayout:
    """What is kept of a group while its rows are under way."""
    return data.StructLayout(
        {
            "group": GROUP_BITS,
            "salient": 8,
            "k_group": 8,
            "v_group": 8,
            "slot": SLOT_BITS,
            "margin": MARGIN_BITS,
            "prune": 1,
        }
    )


class ValueDecider(wiring.Component):
    """Goes through the kept tokens of one group after the other.

    One cycle a token whose V is not read, two for others (fine plane and V of a delta, V of a base).

    Members
    -------
    i : groups, complete
    kept_ring, kept_index, kept_en, kept : the tokens, read in the next cycle if enabled
    ring, ring_data : what is kept of the group, at once
    o_ask, o_token : requests, and the tokens that they are for
    done, used : the group is done, ``used`` of its tokens go on
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        super().__init__(
            {
                "i": In(stream.Signature(decision_layout(c))),
                "kept_ring": Out(range(RING_ITEMS)),
                "kept_index": Out(range(c.dsq.group_tokens)),
                "kept_en": Out(1),
                "kept": In(kept_layout(c)),
                "ring": Out(range(RING_ITEMS)),
                "ring_data": In(ring_layout()),
                "o_ask": Out(stream.Signature(ask_layout(c))),
                "o_token": Out(stream.Signature(token_layout(c))),
                "done": Out(1),
                "used": Out(bits_for(c.dsq.group_tokens)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, group = self.config, self.i.payload
        self._info = info = Signal.like(self.ring_data)  # of the group, from the second cycle on
        m.d.sync += info.eq(self.ring_data)
        index = Signal.like(group.count)  # of the token that is read
        read, valid, near, hold = Signal(), Signal(), Signal(), Signal()
        read_token, token = Signal(kept_layout(c)), Signal(kept_layout(c))
        pending, pending_valid = Signal(kept_layout(c)), Signal()
        ended, sent, fine_sent = Signal(), Signal(), Signal()
        used = Signal.like(self.used)
        distances = [Signal(SUM_BITS, name=f"distance_{head}") for head in range(c.mha.q_heads)]
        m.d.comb += [
            self.kept_ring.eq(group.ring),
            self.kept_index.eq(index),
            self.kept_en.eq(~hold),
            self.ring.eq(group.ring),
            ended.eq(self.i.valid & ~read & ~valid & ~near & (index == group.count)),
            hold.eq(near & pending_valid & ~sent),
        ]
        with m.If(self.i.valid & ~hold):
            m.d.sync += [
                read.eq(index != group.count),
                valid.eq(read),
                read_token.eq(self.kept),
                near.eq(valid & (~info.prune | Cat(d <= info.margin for d in distances).any())),
                token.eq(read_token),
                *(d.eq(top - score) for d, top, score in zip(distances, group.top, self.kept.scores, strict=True)),
            ]
            with m.If(index != group.count):
                m.d.sync += index.eq(index + 1)
        with m.If(sent):
            m.d.sync += [pending_valid.eq(0), used.eq(used + 1)]
        with m.If(near & ~hold):
            m.d.sync += [pending.eq(token), pending_valid.eq(1)]
        with m.If(ended & ~pending_valid):
            m.d.comb += [self.done.eq(1), self.i.ready.eq(1)]
            m.d.sync += [index.eq(0), used.eq(0)]
        m.d.comb += self.used.eq(used)
        self._send(m, pending, pending_valid & (near | ended), ended, sent, fine_sent)
        return m

    def _send(self, m: Module, token: data.View, valid: Value, last: Value, sent: Signal, fine_sent: Signal) -> None:
        """Ask for the fine plane of a delta, then for its V; give the token with the latter."""
        c, info, out = self.config.dsq, self._info, self.o_token.payload
        request, piece = self.o_ask.payload.request, self.o_ask.payload.piece
        offsets = RecordOffsets(self.config, info.salient[: bits_for(c.max_salient)])
        planes = c.delta_bits // COARSE_BITS
        is_fine = token.delta & ~fine_sent if planes > 1 else 0
        m.d.comb += [
            self.o_ask.valid.eq(valid & (is_fine | self.o_token.ready)),
            self.o_token.valid.eq(valid & ~is_fine & self.o_ask.ready),
            sent.eq(valid & ~is_fine & self.o_ask.ready & self.o_token.ready),
            request.dense.eq(0),
            request.group.eq(info.group),
            piece.slot.eq(info.slot),
            piece.rows.eq(1),
            piece.scale.eq(info.k_group),
        ]
        with m.If(sent):
            m.d.sync += fine_sent.eq(0)
        with m.Elif(self.o_ask.valid & self.o_ask.ready):
            m.d.sync += fine_sent.eq(1)
        with m.If(is_fine):
            m.d.comb += [
                piece.kind.eq(Piece.FINE),
                request.word.eq(offsets.row(offsets.fine, token.index, c.row_words(2))),
                request.count.eq(c.row_words(2)),
            ]
        with m.Elif(token.delta):
            m.d.comb += [
                piece.kind.eq(Piece.V_DELTA),
                request.word.eq(offsets.row(offsets.v_delta, token.index, c.row_words(2))),
                request.count.eq(c.row_words(2)),
            ]
        with m.Else():
            m.d.comb += [
                piece.kind.eq(Piece.V_ROWS),
                request.word.eq(offsets.row(offsets.v_salient, token.index, c.row_words(8))),
                request.count.eq(c.row_words(8)),
            ]
        m.d.comb += [
            out.kind.eq(Mux(token.delta, TokenKind.DELTA, TokenKind.BASE)),
            out.scores.eq(token.scores),
            out.scale.eq(Mux(token.delta, info.v_group, token.scale)),
            out.group.eq(info.group),
            out.end.eq(last),
            out.slot.eq(info.slot),
        ]
