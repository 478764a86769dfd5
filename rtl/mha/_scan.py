"""Part of the attention core: takes queries and what they scan, asks for scans and K of INT8 tokens, tile by tile."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.mha.scores import SCORE_BITS
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOT_BITS, SLOTS
from rtl.mha._requests import GROUP_BITS, Fault, Piece, RecordOffsets, ask_layout, block_words, times
from rtl.mha._scan_judge import ScanJudge

__all__ = ["MARGIN_BITS", "ScanEngine", "entry_layout", "fault_layout", "job_layout", "scan_layout", "tile_layout"]

MARGIN_BITS = 15


def job_layout() -> data.StructLayout:
    """The settings of a query: its score shift, the share of tokens to keep in 256ths, margins with 8 fraction bits."""
    return data.StructLayout(
        {
            "shift": signed(7),
            "keep": 9,
            "run_margin": MARGIN_BITS,
            "estimate_margin": MARGIN_BITS,
            "value_margin": MARGIN_BITS,
            "prune": 1,
            "load_calibration": 1,
        }
    )


def scan_layout() -> data.StructLayout:
    """A group to scan: its record with ``count`` salient tokens, or (``dense``) its block of ``count`` INT8 tokens."""
    return data.StructLayout({"dense": 1, "group": GROUP_BITS, "count": 8, "last": 1})


def entry_layout() -> data.StructLayout:
    """Group and count of an item of a tile; ``last``: one less."""
    return data.StructLayout({"group": GROUP_BITS, "count": 8, "last": 8})


def fault_layout() -> data.StructLayout:
    """A fault and its group."""
    return data.StructLayout({"fault": Fault, "group": GROUP_BITS})


def tile_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A tile whose scan is complete: ``first`` and ``last`` of its query, in ``slot``; its items are INT8 blocks if
    ``dense``. ``peak`` is the query's peak so far, ``prune`` and margins are the query's."""
    return data.StructLayout(
        {
            "tile": 1,
            "slot": SLOT_BITS,
            "dense": 1,
            "items": bits_for(max(config.mha.tile_groups, 2)),
            "first": 1,
            "last": 1,
            "peak": data.ArrayLayout(signed(SCORE_BITS), config.mha.q_heads),
            "job": job_layout(),
        }
    )


class ScanEngine(wiring.Component):
    """Takes queries, loads them, and scans for one after the other, ahead of what is rebuilt.

    Loading and scanning go on beside each other. A tile is asked for as soon as the one before has been; it is given on
    when all its rows have come.

    Members
    -------
    i_job, i_scan : queries and what each scans
    free : a query may be taken into slot ``load_slot``
    load, load_slot : the query of this slot is to be loaded; ``loaded`` strobes when it is
    slot, jobs : the query that is scanned for; the settings of all slots
    o_ask : requests
    o_tile : tiles whose scan is complete; ``tile_free``: tiles that may be filled
    begin, begin_tile, clear, peak : of Estimator
    done, done_tile : the last row of an item of that tile has come
    entry_tile, entry_item, o_entry : group and count of an item, in the next cycle
    fault_tile, fault_item, fault_group : group of an item, in the next cycle
    fault_stb, o_fault : a bad item of the query in ``slot``
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.item_bits = max(1, ceil_log2(config.mha.tile_groups))
        super().__init__(
            {
                "i_job": In(stream.Signature(job_layout())),
                "i_scan": In(stream.Signature(scan_layout())),
                "free": In(1),
                "load": Out(1),
                "load_slot": Out(SLOT_BITS),
                "loaded": In(1),
                "slot": Out(SLOT_BITS),
                "jobs": Out(data.ArrayLayout(job_layout(), SLOTS)),
                "o_ask": Out(stream.Signature(ask_layout(config))),
                "o_tile": Out(stream.Signature(tile_layout(config))),
                "tile_free": In(2),
                "begin": Out(1),
                "begin_tile": Out(1),
                "clear": Out(1),
                "done": In(1),
                "done_tile": In(1),
                "peak": In(data.ArrayLayout(signed(SCORE_BITS), config.mha.q_heads)),
                "entry_tile": In(1),
                "entry_item": In(self.item_bits),
                "o_entry": Out(entry_layout()),
                "fault_tile": In(1),
                "fault_item": In(self.item_bits),
                "fault_group": Out(GROUP_BITS),
                "fault_stb": Out(1),
                "o_fault": Out(fault_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        scan = self.i_scan.payload
        tile, dense, first, last = Signal(), Signal(), Signal(), Signal()
        items = Signal.like(self.o_tile.payload.items)
        ready_jobs = self._load(m)
        judge = ScanJudge(m, c, scan)
        judge.take(m, self.i_scan.valid & self.i_scan.ready)
        good = judge.good
        taken = self._entries(m, tile, items)
        with m.If(taken):
            m.d.sync += [items.eq(items + 1), dense.eq(scan.dense)]
        close, incomplete = self._tiles(m, tile, taken)
        second = self._ask(m, tile, items)
        m.d.comb += [self.begin_tile.eq(tile), self.o_fault.fault.eq(judge.fault), self.o_fault.group.eq(scan.group)]
        full = items == Mux(dense, 2, c.mha.tile_groups)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += first.eq(1)
                # The peak of the query before is in use until all its rows have come.
                with m.If(ready_jobs & ~incomplete):
                    m.d.comb += self.clear.eq(1)
                    m.next = "TILE"
            with m.State("TILE"):
                m.d.sync += [items.eq(0), last.eq(0), dense.eq(0)]
                with m.If(self.tile_free.bit_select(tile, 1)):
                    m.d.comb += self.begin.eq(1)
                    m.next = "ITEM"
            with m.State("ITEM"):
                closes = (items != 0) & ((scan.dense != dense) | full)
                with m.If(self.i_scan.valid):
                    with m.If(good & closes):
                        m.next = "CLOSE"
                    with m.Elif(good):
                        m.d.comb += self.o_ask.valid.eq(1)
                        with m.If(self.o_ask.ready & (second | ~scan.dense)):
                            m.d.comb += [taken.eq(1), self.i_scan.ready.eq(1)]
                    with m.Else():
                        m.d.comb += [self.i_scan.ready.eq(1), self.fault_stb.eq(~judge.empty)]
                with m.If(self.i_scan.valid & self.i_scan.ready):
                    m.d.sync += last.eq(scan.last)
                    with m.If(scan.last):
                        m.next = "CLOSE"
            with m.State("CLOSE"):
                m.d.comb += close.eq(1)
                m.d.sync += [tile.eq(~tile), first.eq(0)]
                m.next = "TILE"
                with m.If(last):
                    m.d.sync += self.slot.eq(self.slot + 1)
                    m.next = "IDLE"
        for kept in self._closing:
            m.d.comb += [
                kept.slot.eq(self.slot),
                kept.dense.eq(dense),
                kept.items.eq(items),
                kept.first.eq(first),
                kept.last.eq(last),
                kept.job.eq(self.jobs[self.slot]),
            ]
        return m

    def _load(self, m: Module) -> Value:
        """Take queries and have them loaded, one after the other; returns whether the one to scan for is."""
        count = Signal(range(SLOTS + 1))
        with m.If(self.loaded & self.load):
            m.d.sync += [self.load.eq(0), self.load_slot.eq(self.load_slot + 1)]
        m.d.comb += self.i_job.ready.eq(self.free & ~self.load)
        with m.If(self.i_job.valid & self.i_job.ready):
            m.d.sync += [self.load.eq(1), self.jobs[self.load_slot].eq(self.i_job.payload)]
        m.d.sync += count.eq(count + (self.loaded & self.load) - self.clear)
        return count != 0

    def _tiles(self, m: Module, tile: Value, taken: Value) -> tuple[Signal, Value]:
        """Give closed tiles on when all their rows have come; returns what closes one, and whether one waits."""
        out, close, give = self.o_tile, Signal(), Signal()
        closed, complete = Signal(2), Signal(2)
        self._closing = [Signal(out.payload.shape(), name=f"closing_{n}") for n in range(2)]
        kept = [Signal(out.payload.shape(), name=f"kept_{n}") for n in range(2)]
        peaks = [Signal(self.peak.shape(), name=f"peak_{n}") for n in range(2)]
        done, done_tile = Signal(), Signal()
        m.d.sync += [done.eq(self.done), done_tile.eq(self.done_tile)]
        for n in range(2):
            left = Signal.like(out.payload.items, name=f"left_{n}")
            m.d.sync += left.eq(left + (taken & (tile == n)) - (self.done & (self.done_tile == n)))
            m.d.sync += complete[n].eq(closed[n] & (left == 0))
            # The row of the cycle before is now in the peak, later ones are not yet.
            with m.If((done & (done_tile == n)) | (close & (tile == n) & (left == 0))):
                m.d.sync += peaks[n].eq(self.peak)
            with m.If(close & (tile == n)):
                m.d.sync += [closed[n].eq(1), kept[n].eq(self._closing[n])]
        with m.If(out.valid & out.ready):
            m.d.sync += [give.eq(~give), closed.bit_select(give, 1).eq(0), complete.bit_select(give, 1).eq(0)]
        m.d.comb += [
            out.valid.eq((closed & complete).bit_select(give, 1)),
            out.payload.eq(Mux(give, kept[1], kept[0])),
            out.payload.tile.eq(give),
            out.payload.peak.eq(Mux(give, peaks[1], peaks[0])),
        ]
        return close, (closed & ~complete).any()

    def _entries(self, m: Module, tile: Value, items: Value) -> Signal:
        """Memory of group and count of each item; returns the strobe that writes the item at hand."""
        taken = Signal()
        m.submodules.entries = entries = Memory(
            shape=entry_layout(), depth=2 << self.item_bits, init=[], attrs=NO_COLLISIONS
        )
        write, read, faulty = entries.write_port(), entries.read_port(), entries.read_port()
        m.d.comb += [
            write.en.eq(taken),
            write.addr.eq(Cat(items[: self.item_bits], tile)),
            write.data.group.eq(self.i_scan.payload.group),
            write.data.count.eq(self.i_scan.payload.count),
            write.data.last.eq(self.i_scan.payload.count - 1),
            read.addr.eq(Cat(self.entry_item, self.entry_tile)),
            self.o_entry.eq(read.data),
            faulty.addr.eq(Cat(self.fault_item, self.fault_tile)),
            self.fault_group.eq(faulty.data.group),
        ]
        return taken

    def _ask(self, m: Module, tile: Value, items: Value) -> Signal:
        """The request of the item at hand; returns whether it is the second one of a block."""
        c, scan = self.config.dsq, self.i_scan.payload
        request, piece = self.o_ask.payload.request, self.o_ask.payload.piece
        second = Signal()
        with m.If(self.o_ask.valid & self.o_ask.ready):
            m.d.sync += second.eq(scan.dense & ~second)
        pieces = block_words(self.config)
        offsets = RecordOffsets(self.config, scan.count[: bits_for(c.max_salient)])
        scale_words = (scan.count + c.bus_bits // 8 - 1) >> ceil_log2(c.bus_bits // 8)
        m.d.comb += [
            request.dense.eq(scan.dense),
            request.group.eq(scan.group),
            piece.slot.eq(self.slot),
            piece.tile.eq(tile),
            piece.place.eq(items),
            piece.rows.eq(scan.count),
            piece.end.eq(1),
        ]
        with m.If(~scan.dense):
            m.d.comb += [
                request.word.eq(0),
                request.count.eq(offsets.scan),
                piece.kind.eq(Piece.SCAN),
                piece.words.eq(offsets.header),
            ]
        with m.Elif(~second):
            m.d.comb += [
                request.word.eq(pieces[Piece.K_SCALES][0]),
                request.count.eq(scale_words),
                piece.kind.eq(Piece.K_SCALES),
                piece.rows.eq(scale_words),
            ]
        with m.Else():
            m.d.comb += [
                request.word.eq(pieces[Piece.K_ROWS][0]),
                request.count.eq(times(scan.count, c.row_words(8))),
                piece.kind.eq(Piece.K_ROWS),
                piece.index.eq(Mux(items == 0, 0, c.group_tokens)),
            ]
        return second


