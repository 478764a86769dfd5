"""Keeps the estimates of scanned groups until runs are selected: hardware around golden ``upper_nibble``."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.mha.scores import SCORE_BITS
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig

__all__ = ["Estimator", "base_layout", "item_layout"]


def scores_layout(config: AcceleratorConfig) -> data.ArrayLayout:
    """A score for each query head."""
    return data.ArrayLayout(signed(SCORE_BITS), config.mha.q_heads)


def base_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What is kept of a base: its estimates, the tokens of its run, its scales."""
    return data.StructLayout({"estimate": scores_layout(config), "tokens": 8, "k_scale": 8, "v_scale": 8})


def item_layout() -> data.StructLayout:
    """What is kept of a group: its scales, and whether its record is sound."""
    return data.StructLayout({"k_group": 8, "v_group": 8, "sound": 1})


class Estimator(wiring.Component):
    """The estimates of the bases of two tiles of groups, and the scores of two tiles of INT8 tokens.

    A row is written in the cycle in which it is ``valid``. The peak grows with INT8 tokens at once, with the bases of a
    group when its last one has come and the record is sound: a faulty record leaves no trace in it.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    valid, token, tile, item, index, scores : a score row: of an INT8 token (``token``) or a base; ``index`` counts in
        the tile for tokens, in the group ``item`` for bases
    base : the rest of a base's entry; its ``estimate`` is not used
    end, sound, k_group, v_group : last row of the item; whether it counts; the group scales
    begin, begin_tile : the tile is filled anew: its ``sound_items`` and ``top`` start again
    clear : the query is a new one: the peak starts again
    peak : the largest score of the query so far
    top : the largest score of the INT8 tokens of each tile
    sound_items : groups of each tile whose record is sound
    base_tile, base_item, base_index, o_base : an entry, in the next cycle
    item_tile, item_item, o_item : of a group, in the next cycle
    token_tile, token_index, o_token : scores of an INT8 token, in the next cycle
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        tile, tokens = config.mha.tile_groups, 2 * config.dsq.group_tokens
        item, base = range(max(tile, 2)), range(max(config.dsq.max_salient, 2))
        scores = scores_layout(config)
        super().__init__(
            {
                "valid": In(1),
                "token": In(1),
                "tile": In(1),
                "item": In(item),
                "index": In(range(tokens)),
                "scores": In(scores),
                "base": In(base_layout(config)),
                "end": In(1),
                "sound": In(1),
                "k_group": In(8),
                "v_group": In(8),
                "begin": In(1),
                "begin_tile": In(1),
                "clear": In(1),
                "peak": Out(scores),
                "top": Out(data.ArrayLayout(scores, 2)),
                "sound_items": Out(data.ArrayLayout(bits_for(tile), 2)),
                "base_tile": In(1),
                "base_item": In(item),
                "base_index": In(base),
                "o_base": Out(base_layout(config)),
                "item_tile": In(1),
                "item_item": In(item),
                "o_item": Out(item_layout()),
                "token_tile": In(1),
                "token_index": In(range(tokens)),
                "o_token": Out(scores),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._memories(m)
        lowest = -(1 << (SCORE_BITS - 1))
        for head, score in enumerate(self.scores):
            group = Signal(signed(SCORE_BITS), init=lowest, name=f"group_{head}")  # largest of the item so far
            highest = Signal(signed(SCORE_BITS), name=f"highest_{head}")
            m.d.comb += highest.eq(Mux(score > group, score, group))
            with m.If(self.valid & ~self.token):
                m.d.sync += group.eq(Mux(self.end, lowest, highest))
            candidate = Mux(self.token, score, highest)
            counts = self.valid & (self.token | (self.end & self.sound))
            with m.If(self.clear):
                m.d.sync += self.peak[head].eq(lowest)
            # The candidate is above, in one step.
            with m.Elif(counts & ((score > self.peak[head]) | (~self.token & (group > self.peak[head])))):
                m.d.sync += self.peak[head].eq(candidate)
            for tile in range(2):
                with m.If(self.begin & (self.begin_tile == tile)):
                    m.d.sync += self.top[tile][head].eq(lowest)
                with m.Elif(self.valid & self.token & (self.tile == tile) & (score > self.top[tile][head])):
                    m.d.sync += self.top[tile][head].eq(score)
        for tile, count in enumerate(self.sound_items):
            with m.If(self.begin & (self.begin_tile == tile)):
                m.d.sync += count.eq(0)
            with m.Elif(self.valid & self.end & ~self.token & self.sound & (self.tile == tile)):
                m.d.sync += count.eq(count + 1)
        return m

    def _memories(self, m: Module) -> None:
        c = self.config
        base_bits, item_bits = ceil_log2(max(c.dsq.max_salient, 2)), len(self.item)

        def address(tile: Value, item: Value, index: Value) -> Value:
            return Cat(index[:base_bits], item, tile)

        m.submodules.bases = bases = Memory(
            shape=base_layout(c), depth=1 << (base_bits + item_bits + 1), init=[], attrs=NO_COLLISIONS
        )
        write, read = bases.write_port(), bases.read_port()
        m.d.comb += [
            write.en.eq(self.valid & ~self.token),
            write.addr.eq(address(self.tile, self.item, self.index)),
            write.data.eq(self.base),
            write.data.estimate.eq(self.scores),
            read.addr.eq(address(self.base_tile, self.base_item, self.base_index)),
            self.o_base.eq(read.data),
        ]
        m.submodules.items = items = Memory(
            shape=item_layout(), depth=1 << (item_bits + 1), init=[], attrs=NO_COLLISIONS
        )
        write, read = items.write_port(), items.read_port()
        m.d.comb += [
            write.en.eq(self.valid & self.end),
            write.addr.eq(Cat(self.item, self.tile)),
            write.data.k_group.eq(self.k_group),
            write.data.v_group.eq(self.v_group),
            write.data.sound.eq(self.sound),
            read.addr.eq(Cat(self.item_item, self.item_tile)),
            self.o_item.eq(read.data),
        ]
        m.submodules.tokens = tokens = Memory(
            shape=self.scores.shape(), depth=4 * c.dsq.group_tokens, init=[], attrs=NO_COLLISIONS
        )
        write, read = tokens.write_port(), tokens.read_port()
        m.d.comb += [
            write.en.eq(self.valid & self.token),
            write.addr.eq(Cat(self.index, self.tile)),
            write.data.eq(self.scores),
            read.addr.eq(Cat(self.token_index, self.token_tile)),
            self.o_token.eq(read.data),
        ]
