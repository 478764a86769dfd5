"""Part of the cache: asks for the scans of the groups on a scan list before the attention core does (L2)."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.cache._translator import words_layout
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOT_BITS, SLOTS
from rtl.mha._requests import RecordOffsets
from rtl.mha._scan import scan_layout
from rtl.mha._scan_judge import ScanJudge

__all__ = ["PREFETCHES", "Prefetcher", "owner_layout"]

#: items of scan lists on their way to the core, and scans that it has not asked for, at most
PREFETCHES = 32


def owner_layout(config: AcceleratorConfig) -> data.StructLayout:
    """The cache that a query reads: a stream, that is a (layer, kv_head), of a sequence."""
    words = words_layout(config)
    return data.StructLayout({name: words[name].shape for name in ("sequence", "stream")})


class Prefetcher(wiring.Component):
    """Passes scan lists on and keeps their records in mind; asks for their scans one by one when memory has time.

    The attention core asks for the same scans in the same order, for it skips what this skips (`ScanJudge`): each scan
    that it asks for is the oldest one here. If it has been asked for by then, its words are in L2 or on the way there,
    else it is forgotten and read like everything else.

    Members
    -------
    enable : read ahead
    begin, owner : strobe, the core takes a query on that cache
    owners : caches of the queries in the core's slots
    i, o : scan lists
    free : attention asks for nothing; ``busy``: a scan is on its way to memory
    o_request : stream of scans to ask for
    asked : the oldest scan has been asked for; ``taken`` strobes when the core asks for it
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__(
            {
                "enable": In(1),
                "begin": In(1),
                "owner": In(owner_layout(config)),
                "owners": Out(data.ArrayLayout(owner_layout(config), SLOTS)),
                "i": In(stream.Signature(scan_layout())),
                "o": Out(stream.Signature(scan_layout())),
                "free": In(1),
                "busy": In(1),
                "o_request": Out(stream.Signature(words_layout(config))),
                "asked": Out(1),
                "taken": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, scan, request = self.config, self.i.payload, self.o_request.payload
        judge = ScanJudge(m, config, scan)
        next_slot, slot, queries = Signal(SLOT_BITS), Signal(SLOT_BITS), Signal(range(2 * SLOTS))
        ends = self.i.valid & self.i.ready & scan.last
        m.d.sync += queries.eq(queries + self.begin - ends)
        with m.If(self.begin):
            m.d.sync += [self.owners[next_slot].eq(self.owner), next_slot.eq(next_slot + 1)]
        with m.If(ends):
            m.d.sync += slot.eq(slot + 1)

        # A ring of scans: the core takes them at one place, memory is asked for them from another one on.
        count = bits_for(config.dsq.max_salient)
        kept = data.StructLayout({"slot": SLOT_BITS, "group": scan.group.shape(), "count": count})
        m.submodules.ring = ring = Memory(shape=kept, depth=PREFETCHES, init=[])
        write, read = ring.write_port(), ring.read_port(domain="comb")
        put, take, ask = (Signal(range(2 * PREFETCHES), name=name) for name in ("put", "take", "ask"))
        m.submodules.list = passed = SyncFIFOBuffered(width=scan.shape().size, depth=PREFETCHES)
        room = (put - take)[: len(put)] != PREFETCHES
        moves = self.i.valid & self.i.ready
        judge.take(m, moves)
        m.d.comb += [
            self.i.ready.eq(passed.w_rdy & room & (queries != 0)),
            passed.w_en.eq(moves),
            passed.w_data.eq(scan),
            self.o.valid.eq(passed.r_rdy),
            self.o.payload.eq(passed.r_data),
            passed.r_en.eq(self.o.ready),
            write.en.eq(moves & judge.good & ~scan.dense),
            write.addr.eq(put),
            write.data.slot.eq(slot),
            write.data.group.eq(scan.group),
            write.data.count.eq(scan.count),
            read.addr.eq(ask),
            self.asked.eq(take != ask),
        ]
        with m.If(write.en):
            m.d.sync += put.eq(put + 1)
        # Whatever the core takes makes memory not free, so a scan is never asked for and forgotten at once.
        asks = self.enable & self.free & ~self.busy & ~self.o_request.valid & (ask != put)
        with m.If(self.taken):
            m.d.sync += take.eq(take + 1)
        with m.If(asks | (self.taken & ~self.asked)):
            m.d.sync += ask.eq(ask + 1)

        owner = self.owners[read.data.slot]
        with m.If(self.o_request.ready):
            m.d.sync += self.o_request.valid.eq(0)
        with m.If(asks):
            m.d.sync += [
                self.o_request.valid.eq(1),
                request.sequence.eq(owner.sequence),
                request.stream.eq(owner.stream),
                request.group.eq(read.data.group),
                request.count.eq(RecordOffsets(config, read.data.count).scan),
            ]
        return m
