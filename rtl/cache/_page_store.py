"""Part of PageTable: the pages of all groups, handed out, shared and given up."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.cache._page_pool import PagePool
from rtl.common.memory import NO_COLLISIONS

__all__ = ["PageStore"]


class PageStore(wiring.Component):
    """Table memory and both pools.

    A walk passes over blocks ``walk_blocks - 1`` down to ``blocks_begin`` of ``source``, then over records
    ``walk_records - 1`` down to 0, and gives up their pages. With ``share`` it copies them to ``sequence`` instead, but
    for the first block, for which ``assign`` has got a page. Each group takes a cycle: an address, one cycle later its
    page, another one later the count of references of that page. All numbers must exist and hold until ``done``.

    Latency: a walk is ``done`` two cycles and one per group after ``start``, the counts of free pages are right two
    cycles later. ``start`` may come with ``assign``; else nothing is asked for until three cycles after ``done``.

    Parameters
    ----------
    max_sequences, max_groups, record_pages, block_pages : see `rtl.cache.page_table.PageConfig`.

    Members
    -------
    r_en, r_sequence, r_dense, r_group, r_data : reads the page of a group.
    sequence, source : a command's.
    assign, dense, group : hands ``page`` of the kind ``dense`` out to ``group`` of ``sequence``.
    start, share, walk_blocks, walk_records, blocks_begin, done : a walk.
    first : page of the first block of the walk that is ``done``.
    records_free, blocks_free : pages that are not handed out.
    """

    def __init__(self, *, max_sequences: int, max_groups: int, record_pages: int, block_pages: int) -> None:
        self.pages = (record_pages, block_pages)
        self.max_sequences = max_sequences
        sequence, group, page = (unsigned(bits_for(n - 1)) for n in (max_sequences, max_groups, max(self.pages)))
        groups = unsigned(bits_for(max_groups))
        super().__init__(
            {
                "r_en": In(1),
                "r_sequence": In(sequence),
                "r_dense": In(1),
                "r_group": In(group),
                "r_data": Out(page),
                "sequence": In(sequence),
                "source": In(sequence),
                "assign": In(1),
                "dense": In(1),
                "group": In(group),
                "page": Out(page),
                "start": In(1),
                "share": In(1),
                "walk_blocks": In(groups),
                "walk_records": In(groups),
                "blocks_begin": In(groups),
                "done": Out(1),
                "first": Out(page),
                "records_free": Out(range(record_pages + 1)),
                "blocks_free": Out(range(block_pages + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = 1 << len(self.r_sequence) + 1 + len(self.r_group)
        # While a page is written, its group is not there yet: what a lookup reads of it does not count. A walk that
        # writes reads another sequence.
        m.submodules.table = table = Memory(shape=self.page.shape(), depth=depth, init=[], attrs=NO_COLLISIONS)
        looked_up, walked, write = table.read_port(), table.read_port(), table.write_port()
        m.submodules.records = records = PagePool(pages=self.pages[0], most=self.max_sequences)
        m.submodules.blocks = blocks = PagePool(pages=self.pages[1], most=self.max_sequences)
        m.d.comb += [self.records_free.eq(records.free), self.blocks_free.eq(blocks.free)]

        def address(sequence: Value, dense: Value, group: Value) -> Value:
            return Cat(group[: len(self.r_group)], dense, sequence)

        m.d.comb += [
            looked_up.en.eq(self.r_en),
            looked_up.addr.eq(address(self.r_sequence, self.r_dense, self.r_group)),
            self.r_data.eq(looked_up.data),
            self.page.eq(Mux(self.dense, blocks.page, records.page)),
            records.take.eq(self.assign & ~self.dense),
            blocks.take.eq(self.assign & self.dense),
        ]

        place, step, dense = Signal.like(self.walk_blocks), Signal(), Signal()
        group = (place - 1)[: len(place)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += place.eq(self.walk_blocks)
                with m.If(self.start):
                    m.next = "BLOCKS"
            with m.State("BLOCKS"):
                m.d.comb += dense.eq(1)
                m.d.sync += place.eq(group)
                with m.If(place == self.blocks_begin):
                    m.d.sync += place.eq(self.walk_records)
                    m.next = "RECORDS"
                with m.Else():
                    m.d.comb += step.eq(1)
            with m.State("RECORDS"):
                m.d.sync += place.eq(group)
                with m.If(place == 0):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += step.eq(1)

        # The page is there one cycle after the step.
        found, found_dense, found_first = Signal(), Signal(), Signal()
        found_group = Signal.like(self.r_group)
        copy = found & self.share & ~found_first
        m.d.comb += [
            walked.addr.eq(address(self.source, dense, group)),
            write.en.eq(self.assign | copy),
            write.addr.eq(
                Mux(
                    self.assign,
                    address(self.sequence, self.dense, self.group),
                    address(self.sequence, found_dense, found_group),
                )
            ),
            write.data.eq(Mux(self.assign, self.page, walked.data)),
        ]
        m.d.sync += [
            found.eq(step),
            found_dense.eq(dense),
            found_first.eq(dense & (place == self.walk_blocks)),
            found_group.eq(group),
        ]
        with m.If(found & found_first):
            m.d.sync += self.first.eq(walked.data)
        for pool, kind in ((records, ~found_dense), (blocks, found_dense & ~(self.share & found_first))):
            m.d.comb += [pool.change.eq(found & kind), pool.share.eq(self.share), pool.target.eq(walked.data)]
        return m
