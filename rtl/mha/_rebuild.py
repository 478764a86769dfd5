"""Part of the attention core: selects what is kept of a tile, asks for it, and orders the tokens of INT8 blocks."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from rtl.config import AcceleratorConfig
from rtl.hcap.estimator import base_layout, item_layout, scores_layout
from rtl.hcap.selector import DISTANCE_BITS, RunSelector, is_kept
from rtl.mha._commit import context_layout
from rtl.mha._decide import TokenKind, ring_layout, token_layout
from rtl.mha._requests import RING_ITEMS, Piece, RecordOffsets, ask_layout, base_bits, block_words, times
from rtl.mha._scan import entry_layout, tile_layout

__all__ = ["QUEUE_GROUPS", "RebuildEngine"]

#: groups whose tokens the queue of the value sum holds
QUEUE_GROUPS = 8


class RebuildEngine(wiring.Component):
    """Works on one tile after the other.

    A tile of groups is gone through twice: all distances are counted by bin, then group by group the bases are marked
    and what is marked is asked for, lower nibbles first. In a tile of INT8 blocks, block by block, the tokens near the
    largest score are marked, queued, and their V is asked for. What a group may need of the queue is reserved before it
    is asked for, so that words never wait.

    Members
    -------
    i : tiles; ``release`` strobes: the tile at hand may be filled anew
    table_tile, table_item, table_base, base : an entry of Estimator, in the next cycle
    next_item, item, entry : scales and group of that item of the same tile, in the next cycle
    sound_items, top : of the estimator, by tile
    token_index, token_scores : scores of an INT8 token, in the next cycle
    o_ask : requests
    o_token : INT8 tokens in order, and the end of a query
    context_en, context_ring, context_base, context_data, top_clear, top_en, top_data : to ScoreCommit
    ring, ring_data : what is kept of a group, at once
    done, used : a group has been decided on; so many of its tokens are queued
    token_done, block_done : a token, a block has left the queue
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        item = range(max(c.mha.tile_groups, 2))
        super().__init__(
            {
                "i": In(stream.Signature(tile_layout(c))),
                "release": Out(1),
                "table_tile": Out(1),
                "table_item": Out(item),
                "next_item": Out(item),
                "table_base": Out(base_bits(c)),
                "base": In(base_layout(c)),
                "item": In(item_layout()),
                "entry": In(entry_layout()),
                "sound_items": In(data.ArrayLayout(bits_for(c.mha.tile_groups), 2)),
                "top": In(data.ArrayLayout(scores_layout(c), 2)),
                "token_index": Out(range(2 * c.dsq.group_tokens)),
                "token_scores": In(scores_layout(c)),
                "o_ask": Out(stream.Signature(ask_layout(c))),
                "o_token": Out(stream.Signature(token_layout(c))),
                "context_en": Out(1),
                "context_ring": Out(range(RING_ITEMS)),
                "context_base": Out(base_bits(c)),
                "context_data": Out(context_layout(c)),
                "top_clear": Out(1),
                "top_en": Out(1),
                "top_data": Out(scores_layout(c)),
                "ring": In(range(RING_ITEMS)),
                "ring_data": Out(ring_layout()),
                "done": In(1),
                "used": In(bits_for(c.dsq.group_tokens)),
                "token_done": In(1),
                "block_done": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        self._tile = tile = Signal(tile_layout(c))
        job = tile.job
        m.submodules.selector = selector = RunSelector(c)
        bases = 1 << base_bits(c)
        item, base = Signal.like(self.table_item), Signal(range(bases))
        advance, restart, settled = Signal(), Signal(), Signal()
        self._item, self._entry = Signal.like(self.item), Signal.like(self.entry)
        m.d.comb += self.next_item.eq(Mux(restart, 0, Mux(advance, item + 1, item)))
        # What is known of an item comes late in the cycle after its number, so it is used another cycle later.
        m.d.sync += [item.eq(self.next_item), settled.eq(~(advance | restart))]
        m.d.sync += [self._item.eq(self.item), self._entry.eq(self.entry)]
        last_item = item == tile.items - 1
        last_base = base == self._entry.last
        room, pending = self._reserve(m)

        # Two passes over the entries: address, entry, differences, distance.
        walk, counting = Signal(), Signal()
        step = walk  # the selector stays ready until the last base has come
        stages = self._distance(m, step, base, last_base)
        distance, fresh, at, at_end, entry = stages
        sound_left = Signal.like(self.sound_items[0])
        m.d.comb += [
            self.table_tile.eq(tile.tile),
            self.table_item.eq(item),
            self.table_base.eq(base),
            selector.i.valid.eq(counting & fresh),
            selector.i.payload.distance.eq(distance),
            selector.i.payload.tokens.eq(entry.tokens),
            selector.i.payload.last.eq(at_end & (sound_left == 1)),
            selector.keep_count.eq((self.sound_items[tile.tile] * job.keep << ceil_log2(c.dsq.group_tokens)) >> 8),
        ]
        with m.If(selector.i.valid & selector.i.ready & at_end):
            m.d.sync += sound_left.eq(sound_left - 1)
        bins_kept = Signal.like(selector.o.payload)
        lower, runs = Signal(bases), Signal(bases)
        kept = is_kept(distance, bins_kept, job.run_margin)
        near = distance <= job.estimate_margin
        ring = Signal(range(RING_ITEMS))
        with m.If(fresh & ~counting):
            m.d.sync += [
                lower.bit_select(at, 1).eq(near | ~job.prune),
                runs.bit_select(at, 1).eq((kept | ~job.prune) & (entry.tokens != 0)),
            ]
        marking = Signal()
        m.d.comb += [
            self.context_en.eq(marking & fresh),
            self.context_ring.eq(ring),
            self.context_base.eq(at),
            self.context_data.estimate.eq(entry.estimate),
            self.context_data.v_scale.eq(entry.v_scale),
        ]
        runs_read = self._run_table(m, fresh & marking, at, entry)
        self._keep_ring(m, ring, tile, marking & fresh)
        self._row_word = Signal.like(self.o_ask.payload.request.word)
        released = Signal()
        self._tokens(m, item[0])
        asks = self._ask(m, lower, runs, runs_read, ring)

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.i.ready.eq(1), self.top_clear.eq(self.i.valid & self.i.payload.first)]
                m.d.comb += restart.eq(1)
                m.d.sync += [released.eq(0), base.eq(0), tile.eq(self.i.payload)]
                with m.If(self.i.valid):
                    m.next = "TOP"
            with m.State("TOP"):
                m.d.comb += [self.top_en.eq(tile.dense), restart.eq(1)]  # the item is one of another tile now
                m.d.sync += sound_left.eq(self.sound_items[tile.tile])
                with m.If(tile.items == 0):
                    m.next = "DRAIN"
                with m.Elif(tile.dense):
                    m.next = "BLOCK"
                with m.Elif(self.sound_items[tile.tile] == 0):
                    m.next = "DRAIN"
                with m.Elif(~job.prune):
                    m.next = "GROUP"
                with m.Elif(selector.i.ready):
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += [counting.eq(1), walk.eq(settled & self._item.sound)]
                with m.If(settled & ~self._item.sound):
                    m.d.comb += advance.eq(1)
                    with m.If(last_item):
                        m.next = "LIMIT"
                with m.Elif(settled):
                    m.d.sync += base.eq(Mux(last_base, 0, base + 1))
                    with m.If(last_base):
                        m.d.comb += advance.eq(1)
                        with m.If(last_item):
                            m.next = "LIMIT"
            with m.State("LIMIT"):
                m.d.comb += [counting.eq(1), selector.o.ready.eq(1), restart.eq(1)]
                m.d.sync += bins_kept.eq(selector.o.payload)
                with m.If(selector.o.valid):
                    m.next = "GROUP"
            with m.State("GROUP"):
                m.d.sync += [lower.eq(0), runs.eq(0)]
                with m.If(settled & ~self._item.sound):
                    m.d.comb += advance.eq(1)
                    with m.If(last_item):
                        m.next = "DRAIN"
                with m.Elif(settled & room & (pending != RING_ITEMS)):
                    m.next = "MARK"
            with m.State("MARK"):
                m.d.comb += [walk.eq(1), marking.eq(1)]
                m.d.sync += base.eq(Mux(last_base, 0, base + 1))
                with m.If(last_base):
                    m.next = "MARKED"
            with m.State("MARKED"):
                m.d.comb += marking.eq(1)
                with m.If(fresh & at_end):
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += asks.eq(1)
                with m.If(~(lower.any() | runs.any() | self._picked)):
                    m.d.comb += advance.eq(1)
                    m.next = "GROUP"
                    with m.If(last_item):
                        m.next = "DRAIN"
            with m.State("BLOCK"):
                m.d.comb += self._block_begin.eq(1)
                with m.If(settled & room & (self._blocks != 2)):
                    m.next = "TOKENS"
            with m.State("TOKENS"):
                m.d.comb += self._reading.eq(1)
                with m.If(self._all_read):
                    m.next = "NEAR"
            with m.State("NEAR"):
                with m.If(self._wanted_count != 0):
                    m.d.comb += self._block_taken.eq(1)
                    m.next = "SCALES"
                with m.Else():
                    m.d.comb += advance.eq(1)
                    m.next = "BLOCK"
                    with m.If(last_item):
                        m.next = "DRAIN"
            with m.State("SCALES"):
                m.d.comb += self.o_ask.valid.eq(1)
                with m.If(self.o_ask.ready):
                    m.next = "TOKEN"
            with m.State("TOKEN"):  # its scores are read
                m.next = "ROW"
            with m.State("ROW"):
                m.d.comb += [self.o_ask.valid.eq(1), self._row.eq(1)]
                with m.If(self.o_ask.ready):
                    m.next = "TOKEN"
                    with m.If(self._last_wanted):
                        m.d.comb += advance.eq(1)
                        m.next = "BLOCK"
                        with m.If(last_item):
                            m.next = "DRAIN"
            with m.State("DRAIN"):
                # The tile's entries are no longer needed: its next scan may begin.
                m.d.comb += self.release.eq(~released)
                m.d.sync += released.eq(1)
                with m.If((pending == 0) & ~self.o_token.valid):
                    m.next = "IDLE"
                    with m.If(tile.last):
                        m.next = "END"
                # All that groups under way need is kept with them: the query's next records may follow at once.
                with m.Elif(~tile.last & ~tile.dense & self.i.valid & ~self.i.payload.dense):
                    m.next = "IDLE"
            with m.State("END"):
                m.d.comb += self._ending.eq(1)
                with m.If(self.o_token.ready):
                    m.next = "IDLE"
        return m

    def _reserve(self, m: Module) -> tuple[Value, Value]:
        """Whether the queue has room for another group; groups that are under way."""
        c = self.config
        tokens = c.dsq.group_tokens
        reserved = Signal(range((QUEUE_GROUPS + 1) * tokens + 1))
        pending = Signal(range(RING_ITEMS + 1))
        self._taken, self._block_taken = Signal(), Signal()
        self._blocks = Signal(range(3))
        self._wanted_count = Signal(range(tokens + 1))
        m.d.sync += [
            reserved.eq(
                reserved
                + Mux(self._taken, tokens, Mux(self._block_taken, self._wanted_count, 0))
                - Mux(self.done, tokens - self.used, 0)
                - self.token_done
            ),
            pending.eq(pending + self._taken - self.done),
            self._blocks.eq(self._blocks + self._block_taken - self.block_done),
        ]
        # Two places more are for the ends of queries.
        return reserved <= (QUEUE_GROUPS - 1) * tokens - 2, pending

    def _distance(
        self, m: Module, step: Value, base: Value, last_base: Value
    ) -> tuple[Signal, Signal, Signal, Signal, Signal]:
        """The distance of the base that was addressed three steps before, with its index and entry."""
        c, tile = self.config, self._tile
        names = ("entry", "difference")
        valid, index, end = Signal(3), [Signal.like(base, name=f"{n}_index") for n in (*names, "distance")], Signal(3)
        differences = [Signal(DISTANCE_BITS, name=f"difference_{h}") for h in range(c.mha.q_heads)]
        entries = [Signal(base_layout(c), name=f"{n}_entry") for n in ("difference", "distance")]
        distance = Signal(DISTANCE_BITS)
        least: Value = differences[0]
        for other in differences[1:]:
            least = Mux(other < least, other, least)
        m.d.sync += [
            valid.eq(Cat(step, valid[:2])),
            end.eq(Cat(last_base, end[:2])),
            index[0].eq(base),
            index[1].eq(index[0]),
            index[2].eq(index[1]),
            entries[0].eq(self.base),
            entries[1].eq(entries[0]),
            distance.eq(least),
            *(d.eq(tile.peak[h] - self.base.estimate[h]) for h, d in enumerate(differences)),
        ]
        return distance, valid[2], index[2], end[2], entries[1]

    def _run_table(self, m: Module, enable: Value, at: Value, entry: data.View) -> data.View:
        """First row, length and scale of the marked runs, read by `_run_base`."""
        c = self.config
        layout = data.StructLayout({"start": 8, "tokens": 8, "k_scale": 8})
        m.submodules.run_table = table = Memory(shape=layout, depth=1 << base_bits(c), init=[])
        write, read = table.write_port(), table.read_port(domain="comb")
        start = Signal(8)
        self._run_base = Signal(base_bits(c))
        m.d.comb += [
            write.en.eq(enable),
            write.addr.eq(at),
            write.data.start.eq(Mux(at == 0, 0, start)),
            write.data.tokens.eq(entry.tokens),
            write.data.k_scale.eq(entry.k_scale),
            read.addr.eq(self._run_base),
        ]
        with m.If(enable):
            m.d.sync += start.eq(write.data.start + entry.tokens)
        return read.data

    def _keep_ring(self, m: Module, ring: Signal, tile: data.View, enable: Value) -> None:
        m.submodules.ring_store = store = Memory(shape=ring_layout(), depth=RING_ITEMS, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(enable),
            write.addr.eq(ring),
            write.data.group.eq(self._entry.group),
            write.data.salient.eq(self._entry.count),
            write.data.k_group.eq(self._item.k_group),
            write.data.v_group.eq(self._item.v_group),
            write.data.slot.eq(tile.slot),
            write.data.margin.eq(tile.job.value_margin),
            write.data.prune.eq(tile.job.prune),
            read.addr.eq(self.ring),
            self.ring_data.eq(read.data),
        ]

    def _ask(self, m: Module, lower: Signal, runs: Signal, run: data.View, ring: Signal) -> Signal:
        """Requests of the marked rows, lower nibbles first, or of an INT8 block; returns what enables the former."""
        c, tile, entry = self.config, self._tile, self._entry
        request, piece = self.o_ask.payload.request, self.o_ask.payload.piece
        asks, is_run = Signal(), Signal()  # is_run: of what is picked next
        picked = Signal(data.StructLayout({"is_run": 1, "base": self._run_base.shape(), "end": 1}))
        self._picked = waits = Signal()  # what is picked has not been asked for
        offsets = RecordOffsets(c, entry.count[: bits_for(c.dsq.max_salient)])
        flags = Mux(is_run, runs, lower)
        one = flags & (~flags + 1)[: len(flags)]
        others = flags ^ one
        m.d.comb += [
            is_run.eq(~lower.any()),
            request.group.eq(entry.group),
            piece.slot.eq(tile.slot),
            piece.tile.eq(tile.tile),
            piece.place.eq(ring),
            piece.base.eq(picked.base),
            piece.end.eq(picked.end),
            self._run_base.eq(picked.base),
        ]
        granted = asks & self.o_ask.valid & self.o_ask.ready
        m.d.comb += self._taken.eq(granted & piece.end)
        with m.If(granted):
            m.d.sync += waits.eq(0)
            with m.If(piece.end):
                m.d.sync += ring.eq(ring + 1)
        with m.If(asks & flags.any() & (~waits | granted)):
            m.d.sync += [
                waits.eq(1),
                picked.is_run.eq(is_run),
                picked.end.eq(~others.any() & (is_run | ~runs.any())),
            ]
            with m.If(is_run):
                m.d.sync += runs.eq(others)
            with m.Else():
                m.d.sync += lower.eq(others)
            for index in range(len(flags)):
                with m.If(one[index]):
                    m.d.sync += picked.base.eq(index)
        pieces = block_words(c)
        scale_words = (entry.count + c.dsq.bus_bits // 8 - 1) >> ceil_log2(c.dsq.bus_bits // 8)
        with m.If(asks):
            m.d.comb += self.o_ask.valid.eq(waits)
            with m.If(picked.is_run):
                m.d.comb += [
                    piece.kind.eq(Piece.COARSE),
                    piece.rows.eq(run.tokens),
                    piece.index.eq(run.start),
                    piece.scale.eq(self._item.k_group),
                    request.word.eq(offsets.row(offsets.coarse, run.start, c.dsq.row_words(2))),
                    request.count.eq(times(run.tokens, c.dsq.row_words(2))),
                ]
            with m.Else():
                m.d.comb += [
                    piece.kind.eq(Piece.LOWER),
                    piece.rows.eq(1),
                    piece.index.eq(self._run_base),
                    piece.scale.eq(run.k_scale),
                    request.word.eq(offsets.row(offsets.lower, self._run_base, c.dsq.row_words(4))),
                    request.count.eq(c.dsq.row_words(4)),
                ]
        with m.Else():
            m.d.comb += [
                request.dense.eq(1),
                piece.kind.eq(Mux(self._row, Piece.V_ROWS, Piece.V_SCALES)),
                piece.rows.eq(Mux(self._row, 1, scale_words)),
                request.word.eq(Mux(self._row, self._row_word, pieces[Piece.V_SCALES][0])),
                request.count.eq(Mux(self._row, c.dsq.row_words(8), scale_words)),
            ]
        return asks

    def _tokens(self, m: Module, block: Value) -> None:
        """Mark the INT8 tokens of a block whose V is read, then queue them one by one; and the end of a query."""
        c, tile, token = self.config, self._tile, self.o_token.payload
        tokens = c.dsq.group_tokens
        self._reading, self._ending, self._block_begin, self._row = (Signal() for _ in range(4))
        self._all_read, self._last_wanted = Signal(), Signal()
        count, read_at, marked, place = (
            Signal(range(tokens), name=name) for name in ("count", "read_at", "marked", "place")
        )
        reads, judges = Signal(), Signal()
        m.submodules.wanted = store = Memory(shape=range(tokens), depth=tokens, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        wanted = read.data  # the token at ``place`` of those that are marked
        tops = self.top[tile.tile]
        distances = [Signal(DISTANCE_BITS, name=f"token_distance_{head}") for head in range(c.mha.q_heads)]
        near = ~tile.job.prune | Cat(distance <= tile.job.value_margin for distance in distances).any()
        m.d.comb += [
            write.en.eq(judges & near),
            write.addr.eq(self._wanted_count),
            write.data.eq(marked),
            read.addr.eq(place),
            self.token_index.eq(Cat(Mux(self._reading, count, wanted), block)),
            self._all_read.eq(judges & (marked == self._entry.last)),
            self._last_wanted.eq(place == self._wanted_count - 1),
            self._row_word.eq(block_words(c)[Piece.V_ROWS][0] + times(wanted, c.dsq.row_words(8))),
        ]
        m.d.sync += [
            reads.eq(self._reading & ~self._all_read),
            judges.eq(reads & ~self._all_read),
            read_at.eq(count),
            marked.eq(read_at),
            *(d.eq(top - score) for d, top, score in zip(distances, tops, self.token_scores, strict=True)),
        ]
        with m.If(self._reading):
            m.d.sync += count.eq(count + 1)
        with m.If(judges & near):
            m.d.sync += self._wanted_count.eq(self._wanted_count + 1)
        with m.If(self._row & self.o_ask.valid & self.o_ask.ready):
            m.d.sync += place.eq(place + 1)
        with m.If(self._block_begin):
            m.d.sync += [count.eq(0), reads.eq(0), judges.eq(0), place.eq(0), self._wanted_count.eq(0)]
        m.d.comb += [
            self.top_data.eq(tops),
            self.o_token.valid.eq((self._row & self.o_ask.ready) | self._ending),
            token.kind.eq(Mux(self._ending, TokenKind.END, TokenKind.INT8)),
            token.index.eq(self.token_index),
            token.group.eq(self._entry.group),
            token.by_token.eq(tile.first),
            token.end.eq(self._last_wanted),
            token.block_end.eq(self._last_wanted),
            token.slot.eq(tile.slot),
            *(total.eq(score) for total, score in zip(token.scores, self.token_scores, strict=True)),
        ]
