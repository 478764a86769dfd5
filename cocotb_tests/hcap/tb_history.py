"""Coroutines of the History tests."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.hcap.history import HISTORY_BITS, history_code, select_groups

TOP = (1 << HISTORY_BITS) - 1
GROUP_BITS = 20


def wanted_histories(draw: random.Random) -> Iterator[int]:
    """Histories of every length, both sides of where codes change, small ones."""
    while True:
        length = draw.randint(0, HISTORY_BITS)
        edge = min(draw.randrange(8, 16) << length >> 3, TOP)
        choices = [draw.randint(0, 20), (1 << length) - 1, edge, max(edge - 1, 0), draw.getrandbits(length)]
        yield draw.choice(choices)


class Bench:
    """The design's streams; lists against golden."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        self.groups = params()["max_groups"]
        self.draw = rng("bench", i_stall, o_stall)
        self.histories = wanted_histories(self.draw)
        self.command = StreamSource(dut, "i_command", stall=stalls.named(i_stall, "command"))
        self.history = StreamSource(dut, "i_history", stall=stalls.named(i_stall, "history"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, history: list[int], drop_count: int, *, groups: int | None = None) -> list[int]:
        """Queue a list of these histories; the words that it gives."""
        self.command.send_nowait([(len(history) if groups is None else groups) | drop_count << GROUP_BITS + 1])
        self.history.send_nowait(history)
        if not history:
            return []
        scanned = np.flatnonzero(select_groups(np.array(history, np.int64), drop_count=drop_count)).tolist()
        return [group | int(group == scanned[-1]) << GROUP_BITS for group in scanned]

    async def check(self, lists: Iterable[tuple[list[int], int]]) -> None:
        """Queue lists and compare them."""
        for history, drop_count, expected in [(*asked, self.send(*asked)) for asked in lists]:
            got = await self.sink.recv(len(expected), timeout=20_000)
            assert got == expected, f"{got}, expected {expected}; drop_count {drop_count}, histories {history}"

    def random_list(self) -> tuple[list[int], int]:
        """Histories and what may be dropped of them."""
        draw = self.draw
        groups = draw.choice([self.groups, draw.randint(0, self.groups), draw.randint(0, min(self.groups, 5))])
        some = draw.choice([islice(self.histories, groups), (draw.randint(0, 9) for _ in range(groups))])
        return list(some), draw.choice([0, draw.randint(0, self.groups), draw.getrandbits(20)])

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(2 * self.groups + 300)
        assert self.command.idle and self.history.idle


def thresholds(history: list[int], draw: random.Random) -> list[int]:
    """Counts around which a group more is dropped, or one less."""
    codes = np.sort(history_code(np.array(history, np.int64)))
    steps = np.searchsorted(codes, np.unique(codes)).tolist()
    chosen = draw.sample(steps, min(len(steps), 2))
    return sorted({0, len(history), *chosen, *(max(below - 1, 0) for below in chosen)})


@cocotb.test()
async def matches_golden_on_corner_histories(dut):
    """Equal, rising, falling, single ones, around each change of the code, the highest ones."""
    bench = Bench(dut)
    await start(dut)
    n = bench.groups
    rows = [
        [0] * n,
        [5] * n,
        list(range(n)),
        list(range(n))[::-1],
        [0] * (n - 1) + [1],
        [TOP] + [0] * (n - 1),
        [0] + [TOP] * (n - 1),
        [(7, 8, 9, 15, 16, 17, 18, 31)[k % 8] for k in range(n)],
        [1 << k % HISTORY_BITS for k in range(n)],
        [(1 << k % (HISTORY_BITS + 1)) - 1 for k in range(n)],
        [TOP - k for k in range(n)],
        list(islice(bench.histories, n)),
    ]
    for row in rows:
        await bench.check((row, below) for below in thresholds(row, bench.draw))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("heavy", "none"), ("none", "bursty"), ("random", "every2"), ("random", "heavy")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(bench.random_list() for _ in range(params()["steps"]))
    await bench.end()


@cocotb.test()
async def counts_no_more_groups_than_it_has(dut):
    """Lists of none and of too many, between others."""
    bench = Bench(dut)
    await start(dut)
    for groups in (bench.groups + 1, (1 << 21) - 1, 0):
        history = list(islice(bench.histories, min(groups, bench.groups)))
        expected = bench.send(history, bench.groups // 2, groups=groups)
        assert await bench.sink.recv(len(expected)) == expected
        await bench.check([bench.random_list()])
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    n = bench.groups
    row = list(islice(bench.histories, n))
    await bench.check([([], 0), (row, 0), (row, 0)])
    _, first, second = bench.command.transfers
    got, words = bench.sink.transfers, bench.history.transfers
    assert words[n - 1] - words[0] == n - 1, "a history a cycle"
    assert got[n - 1] - first == params()["latency"], f"latency {got[n - 1] - first}, not {params()['latency']}"
    assert got[n - 1] - got[0] <= n + 3
    assert second == got[n - 1] + 1
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    n = bench.groups
    for wait in (2, n // 2 + 1, n + 3, n + 250, 2 * n + 262):
        for _ in range(3):
            bench.send(list(islice(bench.histories, n)), 0)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(bench.random_list() for _ in range(3))
        await bench.end()
