"""Part of the attention core: what becomes of a row's scores, by its kind."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.hcap.estimator import scores_layout
from rtl.mha._requests import RING_ITEMS, SUM_BITS, base_bits
from rtl.mha._word_feed import row_tag
from rtl.mha.scores import RowKind

__all__ = ["ScoreCommit", "context_layout", "decision_layout", "kept_layout", "sums_layout"]


def sums_layout(config: AcceleratorConfig) -> data.ArrayLayout:
    """A sum of scores for each query head."""
    return data.ArrayLayout(signed(SUM_BITS), config.mha.q_heads)


def context_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What is known of a base before its lower nibbles come."""
    return data.StructLayout({"estimate": scores_layout(config), "v_scale": 8})


def kept_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A token whose K was read: its scores, whether it is a delta, its row in its section, the scale of a base's V."""
    return data.StructLayout(
        {"scores": sums_layout(config), "delta": 1, "index": ceil_log2(config.dsq.group_tokens), "scale": 8}
    )


def decision_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A group whose kept K rows are all there: place in the ring, number of rows, the query's largest scores so far."""
    return data.StructLayout(
        {"ring": range(RING_ITEMS), "count": bits_for(config.dsq.group_tokens), "top": sums_layout(config)}
    )


class ScoreCommit(wiring.Component):
    """Takes rows of scores in the order of their words.

    Bases of scans and INT8 tokens go to the estimator. Lower nibbles complete their base's estimate, coarse planes add
    to the score of their base; both are kept until their group is complete, which ``o_decision`` says. Fine planes go
    on to ``o_fine``.

    Members
    -------
    i : score rows
    scan_valid, scan_token, scan_row, scan_scores : a row for the estimator
    context_en, context_ring, context_base, context_data : what the rebuild knows of a base
    top_clear, top_en, top_data : a new query starts; scores that count for the top
    kept_ring, kept_index, kept_en, o_kept : a kept token, in the next cycle if enabled
    o_decision, o_fine : as said
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        scores, tag = scores_layout(c), row_tag(c)
        ring = range(RING_ITEMS)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"scores": scores, "kind": RowKind, "tag": tag}))),
                "scan_valid": Out(1),
                "scan_token": Out(1),
                "scan_row": Out(tag),
                "scan_scores": Out(scores),
                "context_en": In(1),
                "context_ring": In(ring),
                "context_base": In(base_bits(c)),
                "context_data": In(context_layout(c)),
                "top_clear": In(1),
                "top_en": In(1),
                "top_data": In(scores),
                "kept_ring": In(ring),
                "kept_index": In(range(c.dsq.group_tokens)),
                "kept_en": In(1),
                "o_kept": Out(kept_layout(c)),
                "o_decision": Out(stream.Signature(decision_layout(c))),
                "o_fine": Out(stream.Signature(scores)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        came, has_come = Signal(self.i.payload.shape()), Signal()  # its base's context is read
        row, valid = Signal(self.i.payload.shape()), Signal()
        tag, lower, coarse = row.tag, row.kind == RowKind.LOWER, row.kind == RowKind.COARSE
        in_base = Mux(self.i.payload.kind == RowKind.LOWER, self.i.payload.tag.index, self.i.payload.tag.base)
        base = Mux(lower, tag.index, tag.base)[: base_bits(c)]
        m.submodules.contexts = contexts = Memory(
            shape=context_layout(c), depth=RING_ITEMS << base_bits(c), init=[], attrs=NO_COLLISIONS
        )
        write, read = contexts.write_port(), contexts.read_port()
        ring_bits = ceil_log2(RING_ITEMS)
        m.d.comb += [
            write.en.eq(self.context_en),
            write.addr.eq(Cat(self.context_base, self.context_ring)),
            write.data.eq(self.context_data),
            read.addr.eq(Cat(in_base[: base_bits(c)], self.i.payload.tag.place[:ring_bits])),
            read.en.eq(self.i.ready),
            self.i.ready.eq(~has_come | (came.kind != RowKind.FINE) | self.o_fine.ready),
        ]
        with m.If(self.i.ready):
            m.d.sync += [has_come.eq(self.i.valid), came.eq(self.i.payload)]
        context = Signal(read.data.shape())
        m.d.sync += [
            valid.eq(has_come & ((came.kind == RowKind.LOWER) | (came.kind == RowKind.COARSE))),
            row.eq(came),
            context.eq(read.data),
        ]
        m.d.comb += [
            self.scan_valid.eq(has_come & ((came.kind == RowKind.UPPER) | (came.kind == RowKind.INT8))),
            self.scan_token.eq(came.kind == RowKind.INT8),
            self.scan_row.eq(came.tag),
            self.scan_scores.eq(came.scores),
            self.o_fine.valid.eq(has_come & (came.kind == RowKind.FINE)),
            self.o_fine.payload.eq(came.scores),
        ]

        # The exact scores of this group's bases whose lower nibbles were read.
        exact = Signal(1 << base_bits(c))
        m.submodules.known = known = Memory(shape=sums_layout(c), depth=1 << base_bits(c), init=[])
        known_write, known_read = known.write_port(), known.read_port(domain="comb")
        keep, sums = Signal(), Signal(sums_layout(c))
        count = Signal(range(c.dsq.group_tokens))
        m.d.comb += [
            keep.eq(valid),
            known_write.en.eq(valid & lower),
            known_write.addr.eq(base),
            known_write.data.eq(sums),
            known_read.addr.eq(base),
        ]
        with m.If(valid & lower):
            m.d.sync += exact.bit_select(base, 1).eq(1)
        with m.If(keep):
            m.d.sync += count.eq(count + 1)
        with m.If(keep & tag.end):
            m.d.sync += [count.eq(0), exact.eq(0)]
        is_exact = coarse & exact.bit_select(base, 1)
        top, highest, total_before = (Signal(sums_layout(c), name=name) for name in ("top", "highest", "total_before"))
        kept_before, decides, decision = Signal(), Signal(), self.o_decision.payload
        m.d.sync += [
            total_before.eq(sums),
            kept_before.eq(keep),
            decides.eq(keep & tag.end),
            decision.ring.eq(tag.place),
            decision.count.eq(count + 1),
        ]
        for head, total in enumerate(sums):
            m.d.comb += [
                total.eq(row.scores[head] + Mux(is_exact, known_read.data[head], context.estimate[head])),
                highest[head].eq(Mux(total_before[head] > top[head], total_before[head], top[head])),
            ]
            with m.If(self.top_clear):
                m.d.sync += top[head].eq(-(1 << (SUM_BITS - 1)))
            with m.Elif(self.top_en):
                m.d.sync += top[head].eq(Mux(self.top_data[head] > top[head], self.top_data[head], top[head]))
            with m.Elif(kept_before):
                m.d.sync += top[head].eq(highest[head])
        m.submodules.kept = kept = Memory(
            shape=kept_layout(c), depth=RING_ITEMS * c.dsq.group_tokens, init=[], attrs=NO_COLLISIONS
        )
        write, kept_read = kept.write_port(), kept.read_port()
        m.d.comb += [
            write.en.eq(keep),
            write.addr.eq(Cat(count, tag.place[:ring_bits])),
            write.data.scores.eq(sums),
            write.data.delta.eq(coarse),
            write.data.index.eq(tag.index),
            write.data.scale.eq(context.v_scale),
            kept_read.addr.eq(Cat(self.kept_index, self.kept_ring)),
            kept_read.en.eq(self.kept_en),
            self.o_kept.eq(kept_read.data),
            self.o_decision.valid.eq(decides),
            decision.top.eq(highest),
        ]
        return m
