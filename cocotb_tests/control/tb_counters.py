"""Coroutines of the Counters tests."""

import cocotb
from cocotb.triggers import RisingEdge

from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start


class Model:
    """Counts as they should be."""

    def __init__(self, count: int) -> None:
        self.counts = [0] * count
        self.before = list(self.counts)  # the last cycle

    def edge(self, events: int, clear: bool) -> None:
        """A cycle."""
        self.before = list(self.counts)
        self.counts = [0 if clear else n + (events >> k & 1) for k, n in enumerate(self.counts)]


async def run(dut, model: Model, count: int, likely: float, clears: float) -> None:
    """Random events; counts are asked for, one after the other, and compared."""
    draw = rng("counters", likely)
    kinds, wanted, since, quiet = len(model.counts), None, 0, 0
    for _ in range(count):
        events = sum((draw.random() < likely) << k for k in range(kinds))
        clear = draw.random() < clears
        if wanted is None and draw.random() < 0.5:
            wanted, since = draw.randrange(kinds), 0
        dut.events.value, dut.clear.value = events, int(clear)
        dut.wanted.value = 0 if wanted is None else 1 << wanted
        await RisingEdge(dut.clk)
        quiet = 0 if clear else quiet + 1
        shown = int(dut.shown.value)
        if wanted is None:
            assert not shown
        elif shown:
            if quiet > 3:  # what is under way at a clear is that from before it
                assert int(dut.value.value) == model.before[wanted], f"kind {wanted}"
            wanted = None
        else:
            since += 1
            assert since <= max(kinds, 4) + 2
        model.edge(events, clear)


@cocotb.test()
@cocotb.parametrize(("likely", [0.02, 0.5, 1.0]))
async def counts_every_event(dut, likely):
    """Rare ones, and one in each cycle; also across clears."""
    dut.events.value = dut.clear.value = dut.wanted.value = 0
    await start(dut)
    await run(dut, Model(params()["count"]), params()["cycles"], likely, 0)
    await reset(dut)
    await run(dut, Model(params()["count"]), params()["cycles"], likely, 0.01)


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    dut.events.value, dut.clear.value, dut.wanted.value = -1 & (1 << params()["count"]) - 1, 0, 0
    await start(dut)
    await cycles(dut, 50)
    dut.events.value = 0
    await reset(dut)
    await run(dut, Model(params()["count"]), 200, 0.5, 0)
