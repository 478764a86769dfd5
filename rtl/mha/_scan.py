"""Part of the attention core: takes queries and what they scan, asks for scans and K of INT8 tokens, tile by tile."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.mha.scores import SCORE_BITS
from rtl.config import AcceleratorConfig
from rtl.mha._requests import GROUP_BITS, Fault, Piece, RecordOffsets, ask_layout, block_words, times

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
    """Group and count of an item of a tile."""
    return data.StructLayout({"group": GROUP_BITS, "count": 8})


def fault_layout() -> data.StructLayout:
    """A fault and its group."""
    return data.StructLayout({"fault": Fault, "group": GROUP_BITS})


def tile_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A tile whose scan is complete: ``first`` and ``last`` of its query, in ``slot``; its items are INT8 blocks if
    ``dense``. ``peak`` is the query's peak so far, ``prune`` and margins are the query's."""
    return data.StructLayout(
        {
            "tile": 1,
            "slot": 1,
            "dense": 1,
            "items": bits_for(max(config.mha.tile_groups, 2)),
            "first": 1,
            "last": 1,
            "peak": data.ArrayLayout(signed(SCORE_BITS), config.mha.q_heads),
            "job": job_layout(),
        }
    )


class ScanEngine(wiring.Component):
    """Works on one query at a time, up to two tiles ahead of what is rebuilt.

    Members
    -------
    i_job, i_scan : queries and what each scans
    free : a query may be taken into slot ``slot``
    load, slot : the query of this slot is to be loaded (its settings are ``jobs[slot]``); ``loaded`` strobes when it is
    jobs : settings of both slots
    o_ask : requests
    o_tile : tiles whose scan is complete; ``tile_free``: tiles that may be filled
    begin, begin_tile, clear, done, peak : of Estimator; ``done``: an item's last row has come
    entry_tile, entry_item, o_entry : group and count of an item, at once
    fault_tile, fault_item, fault_group : group of an item, at once
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
                "slot": Out(1),
                "loaded": In(1),
                "jobs": Out(data.ArrayLayout(job_layout(), 2)),
                "o_ask": Out(stream.Signature(ask_layout(config))),
                "o_tile": Out(stream.Signature(tile_layout(config))),
                "tile_free": In(2),
                "begin": Out(1),
                "begin_tile": Out(1),
                "clear": Out(1),
                "done": In(1),
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
        items, left = Signal.like(self.o_tile.payload.items), Signal.like(self.o_tile.payload.items)
        groups = Signal(range(c.mha.max_groups + 1))
        good, empty, fault = Signal(), Signal(), Signal(Fault)
        counted = ~(scan.dense & first & ((items == 0) | dense))  # the first tile's INT8 blocks give a mass per token
        full = items == Mux(dense, 2, c.mha.tile_groups)
        limit = Mux(scan.dense, c.dsq.group_tokens, c.dsq.max_salient)
        in_range = (scan.count != 0) & (scan.count <= limit)
        m.d.comb += empty.eq(scan.dense & (scan.count == 0))
        with m.If(empty):
            pass
        with m.Elif(~in_range):
            m.d.comb += fault.eq(Fault.SALIENT_COUNT)
        with m.Elif(counted & (groups == c.mha.max_groups)):
            m.d.comb += fault.eq(Fault.TOO_MANY_GROUPS)
        with m.Else():
            m.d.comb += good.eq(1)
        taken = self._entries(m, tile, items)
        with m.If(taken):
            m.d.sync += [items.eq(items + 1), dense.eq(scan.dense), groups.eq(groups + counted)]
        m.d.sync += left.eq(left + taken - self.done)
        m.d.comb += [
            self.begin_tile.eq(tile),
            self.o_fault.fault.eq(fault),
            self.o_fault.group.eq(scan.group),
        ]
        second = self._ask(m, tile, items)
        tile_out = self.o_tile.payload
        m.d.comb += [
            tile_out.tile.eq(tile),
            tile_out.slot.eq(self.slot),
            tile_out.dense.eq(dense),
            tile_out.items.eq(items),
            tile_out.first.eq(first),
            tile_out.last.eq(last),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.i_job.ready.eq(self.free), self.clear.eq(1)]
                m.d.sync += [first.eq(1), groups.eq(0), tile_out.job.eq(self.i_job.payload)]
                with m.If(self.i_job.valid & self.free):
                    m.d.sync += self.jobs[self.slot].eq(self.i_job.payload)
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += self.load.eq(1)
                with m.If(self.loaded):
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
                        m.next = "WAIT"
                    with m.Elif(good):
                        m.d.comb += self.o_ask.valid.eq(1)
                        with m.If(self.o_ask.ready & (second | ~scan.dense)):
                            m.d.comb += [taken.eq(1), self.i_scan.ready.eq(1)]
                    with m.Else():
                        m.d.comb += [self.i_scan.ready.eq(1), self.fault_stb.eq(~empty)]
                with m.If(self.i_scan.valid & self.i_scan.ready):
                    m.d.sync += last.eq(scan.last)
                    with m.If(scan.last):
                        m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += tile_out.peak.eq(self.peak)
                with m.If(left == 0):
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o_tile.valid.eq(1)
                with m.If(self.o_tile.ready):
                    m.d.sync += [tile.eq(~tile), first.eq(0)]
                    m.next = "TILE"
                    with m.If(last):
                        m.d.sync += self.slot.eq(~self.slot)
                        m.next = "IDLE"
        return m

    def _entries(self, m: Module, tile: Value, items: Value) -> Signal:
        """Memory of group and count of each item; returns the strobe that writes the item at hand."""
        taken = Signal()
        m.submodules.entries = entries = Memory(shape=entry_layout(), depth=2 << self.item_bits, init=[])
        write, read = entries.write_port(), entries.read_port(domain="comb")
        faulty = entries.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(taken),
            write.addr.eq(Cat(items[: self.item_bits], tile)),
            write.data.group.eq(self.i_scan.payload.group),
            write.data.count.eq(self.i_scan.payload.count),
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


