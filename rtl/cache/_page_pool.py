"""Part of PageTable: pages of one kind with reference counts (golden `_PagePool`)."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

__all__ = ["PagePool"]


class PagePool(wiring.Component):
    """Hands out pages: first those that were never used, ascending, then the one that came back last.

    A page is handed out with one reference. Changes of references take two cycles, one may begin in each, of another
    page than the one before; ``take`` comes three cycles after the last ``change`` or ``take`` or later. A reset frees
    all pages and touches no memory.

    Parameters
    ----------
    pages : of the pool.
    most : references that a page may have.

    Members
    -------
    take : hands out ``page``; not without ``free`` pages.
    page : the next page.
    free : pages that are not handed out.
    change : ``target`` gets one more reference if ``share``, else one less: the last one frees the page.
    """

    def __init__(self, *, pages: int, most: int) -> None:
        self.pages = pages
        self.count_bits = bits_for(most)
        page_shape = unsigned(bits_for(pages - 1))
        super().__init__(
            {
                "take": In(1),
                "page": Out(page_shape),
                "free": Out(range(pages + 1), init=pages),
                "change": In(1),
                "share": In(1),
                "target": In(page_shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = 1 << len(self.page)
        m.submodules.counts = counts = Memory(shape=unsigned(self.count_bits), depth=depth, init=[])
        m.submodules.stack = stack = Memory(shape=self.page.shape(), depth=depth, init=[])
        count, top = counts.read_port(), stack.read_port()
        set_count, push = counts.write_port(), stack.write_port()

        fresh, freed = Signal(range(self.pages + 1)), Signal(range(self.pages + 1))  # pages ever used; on the stack
        unused = fresh != self.pages
        m.d.comb += [top.addr.eq(freed - 1), self.page.eq(Mux(unused, fresh, top.data))]

        changing, share, target = Signal(), Signal(), Signal.like(self.target)
        m.d.comb += [count.addr.eq(self.target), push.en.eq(changing & ~share & (count.data == 1))]
        m.d.comb += [push.addr.eq(freed), push.data.eq(target)]
        m.d.sync += [changing.eq(self.change), share.eq(self.share), target.eq(self.target)]
        m.d.comb += [
            set_count.en.eq(changing | self.take),
            set_count.addr.eq(Mux(changing, target, self.page)),
            set_count.data.eq(Mux(changing, Mux(share, count.data + 1, count.data - 1), 1)),
        ]
        with m.If(self.take):
            m.d.sync += self.free.eq(self.free - 1)
            with m.If(unused):
                m.d.sync += fresh.eq(fresh + 1)
            with m.Else():
                m.d.sync += freed.eq(freed - 1)
        with m.If(push.en):
            m.d.sync += [self.free.eq(self.free + 1), freed.eq(freed + 1)]
        return m
