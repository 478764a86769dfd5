"""PagePool, a part of PageTable: what yosys proves of it, whatever its memories hold at first."""

from typing import Any

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Array, Assert, Assume, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from rtl.cache._page_pool import PagePool
from rtl.emit import YosysError, run_yosys


class Watched(wiring.Component):
    """A pool used as PageStore uses it, and counts of references beside it."""

    def __init__(self, pool: PagePool, most: int) -> None:
        self.pool = pool
        self.most = most
        super().__init__({"take": In(1), "change": In(1), "share": In(1), "target": In(pool.target.shape())})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.pool = pool = self.pool
        take, change, target = self.take, self.change, self.target
        m.d.comb += [pool.take.eq(take), pool.change.eq(change), pool.share.eq(self.share), pool.target.eq(target)]

        references = Array(Signal(range(self.most + 1), name=f"references_{n}") for n in range(pool.pages))
        quiet = Signal(2)  # cycles since the last operation: 0, 1 and 3 for more
        changed, last = Signal(), Signal.like(target)
        m.d.sync += [changed.eq(change), last.eq(target), quiet.eq(Mux(take | change, 0, quiet | quiet + 1))]
        m.d.comb += Assume(~take | ~change)
        with m.If(take):
            m.d.comb += [Assume(quiet >= 2), Assume(pool.free != 0)]
            m.d.comb += [Assert(pool.page < pool.pages), Assert(references[pool.page] == 0)]
            m.d.sync += references[pool.page].eq(1)
        with m.If(change):
            count = references[target]
            m.d.comb += [Assume(target < pool.pages), Assume(~changed | (target != last))]
            m.d.comb += [Assume(count != 0), Assume(~self.share | (count != self.most))]
            m.d.sync += count.eq(Mux(self.share, count + 1, count - 1))
        with m.If(quiet >= 2):
            m.d.comb += Assert(pool.free == sum(count == 0 for count in references))
        return m


def prove(pool: PagePool, *, most: int, cycles: int) -> None:
    """Prove all assertions for so many cycles from a reset on; raise `YosysError` if one fails."""
    watched = Watched(pool, most)
    text = rtlil.convert(watched, name="top")
    resets = " ".join(f"-set-at {cycle} rst {int(cycle == 1)}" for cycle in range(1, cycles + 1))
    commands = [
        f"read_rtlil <<END\n{text}\nEND",
        "hierarchy -top top",
        "proc",
        "flatten",
        "memory_map",
        "async2sync",
        "chformal -lower",
        "opt -full",
        "setattr -unset init w:*",
        f"sat -seq {cycles} {resets} -prove-asserts -prove-skip 1 -set-assumes -verify top",
    ]
    run_yosys("\n".join(commands))


@pytest.mark.parametrize(("pages", "cycles"), [(1, 20), (2, 20), pytest.param(3, 26, marks=pytest.mark.nightly)])
def test_hands_out_no_page_that_is_referenced(pages, cycles):
    """Two references a page; the number of free pages is right, too."""
    prove(PagePool(pages=pages, most=2), most=2, cycles=cycles)


def test_too_narrow_counts_are_found_out():
    """Three references counted in one bit: a page comes back too early."""
    with pytest.raises(YosysError, match="proof did fail"):
        prove(PagePool(pages=2, most=1), most=3, cycles=20)
