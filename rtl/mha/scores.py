"""Scores of K rows against the queries of all heads, one bus word a cycle (golden `scores`)."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import EnableInserter, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.record import COARSE_BITS
from golden.mha.scores import SCORE_BITS
from rtl.config import AcceleratorConfig
from rtl.mha._dot_product import DotProduct, tree_registers
from rtl.mha._query_store import SLOT_BITS, SLOTS, QueryStore, query_layout, row_start, store_depth
from rtl.mha._row_operands import RowKind, RowOperands, is_delta
from rtl.mha._score_scale import BASE_BITS, BASE_OFFSET, ScoreScale

__all__ = ["RowKind", "ScoreArray"]

#: bits of the score shift of a query (signed)
SHIFT_BITS = 7
#: registers before the trees: the word, its operands, their products
OPERAND_REGISTERS = 3
#: registers behind the trees, to the dot product: the word's sum, the row's
SUM_REGISTERS = 2


class ScoreArray(wiring.Component):
    """Takes the words of K rows, of any kinds in any order, and gives one score a head for each row.

    The queries of four slots are kept; rows name the one they are for, so that one is loaded while the other is used.
    INT8 codes and nibbles take ``bus_bits / 4`` multipliers a head, two of them an INT8 code; the codes of deltas, two
    bits each, are added. Scales and shift come last, once a row.

    Latency: ``latency(config)`` cycles from a row's last word to its scores, if nothing stalls, for all kinds.
    Throughput: one word a cycle. A plain query code takes two cycles, a shaped one one. Rows may use a query from the
    second cycle after its last code was taken on; it may be replaced when the scores of all its rows have come out.
    Stalls: the pipeline stops as a whole while scores wait at ``o``; it moves on without new words. Queries are taken
    all the same.
    Combinational paths: ``o.ready`` to ``i.ready``. ``i_query.ready`` depends on registers alone.

    Parameters
    ----------
    config: geometry.
    tag_shape: of what comes out with the scores unchanged.

    Members
    -------
    i_query : stream, ``2 * head_dim`` codes a head, of each form side by side, channel 0 first. ``last`` is ignored.
        Codes are -127..127.
    shift : score shift of each slot's query, of the plain form; constant while the slot is in use.
    i : stream, the words of rows, lowest channel first; ``kind`` and ``slot`` are the same in all words of a row,
        ``scale`` and ``tag`` count in its ``last`` one. Codes behind channel ``head_dim`` are ignored.
    o : stream, one transfer a row.
    """

    def __init__(self, config: AcceleratorConfig, tag_shape: Any) -> None:
        self.config = config
        self.i_query_shape = query_layout(config)
        self.i_shape = data.StructLayout(
            {
                "word": config.dsq.bus_bits,
                "kind": RowKind,
                "slot": SLOT_BITS,
                "scale": 8,
                "first": 1,
                "last": 1,
                "tag": tag_shape,
            }
        )
        self.o_shape = data.StructLayout(
            {"scores": data.ArrayLayout(signed(SCORE_BITS), config.mha.q_heads), "kind": RowKind, "tag": tag_shape}
        )
        super().__init__(
            {
                "i_query": In(stream.Signature(self.i_query_shape)),
                "shift": In(data.ArrayLayout(signed(SHIFT_BITS), SLOTS)),
                "i": In(stream.Signature(self.i_shape)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from a row's last word to its scores."""
        return OPERAND_REGISTERS + tree_registers(config.dsq) + SUM_REGISTERS + ScoreScale.REGISTERS

    def elaborate(self, platform):
        m = Module()
        c = self.config.dsq
        i = self.i.payload
        advance = ~self.o.valid | self.o.ready
        m.d.comb += self.i.ready.eq(advance)

        # What goes with a word: beside[n] belongs to register n + 1 of the pipeline.
        beside_shape = data.StructLayout({"valid": 1, **{name: s.shape for name, s in self.i_shape if name != "word"}})
        beside = [Signal(beside_shape, name=f"beside_{n}") for n in range(self.latency(self.config))]
        word, address = Signal(c.bus_bits), Signal(range(store_depth(c)))
        start = {bits: row_start(c, bits, i.slot) for bits in (2, 4, 8)}
        nibbles = (i.kind == RowKind.UPPER) | (i.kind == RowKind.LOWER)
        with m.If(advance):
            m.d.sync += [after.eq(before) for before, after in pairwise(beside)]
            m.d.sync += [word.eq(i.word), beside[0].valid.eq(self.i.valid)]
            m.d.sync += [beside[0][name].eq(i[name]) for name, _ in self.i_shape if name != "word"]
            with m.If(self.i.valid):
                first = Mux(is_delta(i.kind), start[2], Mux(nibbles, start[4], start[8]))
                m.d.sync += address.eq(Mux(i.first, first, address + 1))

        m.submodules.store = store = QueryStore(self.config)
        m.submodules.operands = operands = EnableInserter(advance)(RowOperands(c))
        wiring.connect(m, wiring.flipped(self.i_query), store.i)
        summed = OPERAND_REGISTERS + tree_registers(c)  # registers up to a word's sum, without its own
        scaled = summed + SUM_REGISTERS - ScoreScale.SETUP
        m.d.comb += [
            operands.word.eq(word),
            operands.kind.eq(beside[0].kind),
            store.address.eq(address),
            store.advance.eq(advance),
            store.scale_slot.eq(beside[scaled - 2].slot),
            store.scale_shaped.eq(is_delta(beside[scaled - 2].kind)),
            store.offset_slot.eq(beside[summed].slot),
        ]

        # The shift of all heads: the slot's, what the kind adds to it, and constants.
        base = Signal(signed(BASE_BITS))
        added = Signal(signed(3))
        with m.Switch(beside[scaled - 2].kind):
            with m.Case(RowKind.UPPER):
                m.d.comb += added.eq(-3)  # 16 u + 8 = 8 (2 u + 1)
            with m.Case(RowKind.COARSE):
                m.d.comb += added.eq(1 - (c.delta_bits - COARSE_BITS))
            with m.Case(RowKind.FINE):
                m.d.comb += added.eq(1)
        with m.If(advance):
            m.d.sync += base.eq(self.shift[beside[scaled - 2].slot] + BASE_OFFSET + added)

        for head in range(self.config.mha.q_heads):
            m.submodules[f"dot_{head}"] = dot = EnableInserter(advance)(DotProduct(c))
            m.submodules[f"scale_{head}"] = scale = EnableInserter(advance)(ScoreScale(c))
            q_scale = Signal(8, name=f"q_scale_{head}")
            with m.If(advance):
                m.d.sync += q_scale.eq(store.scales[head])
            row_offset = Mux(is_delta(beside[summed].kind), store.offsets[head], 0)
            m.d.comb += [
                dot.operands.eq(operands.operands),
                dot.codes.eq(operands.codes),
                dot.query.eq(store.codes[head]),
                dot.weighted.eq(beside[summed - 1].kind == RowKind.INT8),
                dot.valid.eq(beside[summed].valid),
                dot.first.eq(beside[summed].first),
                dot.offset.eq(row_offset),
                scale.q_scale.eq(q_scale),
                scale.k_scale.eq(beside[scaled - 1].scale),
                scale.base.eq(base),
                scale.dot.eq(dot.dot),
                self.o.payload.scores[head].eq(scale.score),
            ]
        end = beside[-1]
        m.d.comb += [
            self.o.valid.eq(end.valid & end.last),
            self.o.payload.kind.eq(end.kind),
            self.o.payload.tag.eq(end.tag),
        ]
        return m
