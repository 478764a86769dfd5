"""Coroutines of the History tests."""

import random
from collections.abc import Iterator

import cocotb
import numpy as np

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.hcap.history import HISTORY_BITS, history_code, select_groups, update_history

CLOSE, LIST, CLEAR = 0, 1, 2
TOP = (1 << HISTORY_BITS) - 1
MOST_MASS = (1 << 20) - 1
GROUP_BITS = 20


def wanted_histories(draw: random.Random) -> Iterator[int]:
    """Histories of every length, both sides of where codes change, small ones."""
    while True:
        length = draw.randint(0, 24)
        yield draw.choice([draw.randint(0, 20), (1 << length) - 1, 1 << length, draw.getrandbits(length)])


class Bench:
    """The design's streams, and a model of golden functions beside it."""

    def __init__(self, dut, command_stall: str = "none", mass_stall: str = "none", o_stall: str = "none") -> None:
        self.groups = params()["max_groups"]
        self.draw = rng("bench", command_stall, mass_stall, o_stall)
        self.command = StreamSource(dut, "i_command", stall=stalls.named(command_stall, "command"))
        self.mass = StreamSource(dut, "i_mass", stall=stalls.named(mass_stall, "mass"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))
        self.history = np.zeros(self.groups, np.int64)
        self.recent = np.zeros(self.groups, np.int64)

    async def send(self, op: int, groups: int = 0, drop_count: int = 0) -> None:
        """Give a command and wait until it is taken."""
        await self.command.send([op | groups << 2 | drop_count << 23])

    async def clear(self) -> None:
        """Start a sequence; what CLEAR does not need is any."""
        await self.send(CLEAR, self.draw.getrandbits(21), self.draw.getrandbits(20))
        self.history[:] = self.recent[:] = 0

    def queue_row(self, masses: list[tuple[int, int]]) -> None:
        """Queue a row of masses by group."""
        for n, (index, mass) in enumerate(masses):
            self.mass.send_nowait([index | mass << 20 | int(n == len(masses) - 1) << 40])
            if index < self.groups:
                self.recent[index] += mass

    async def row(self, masses: list[tuple[int, int]]) -> None:
        """Send a row of masses and wait until it is taken."""
        self.queue_row(masses)
        await self.mass.send([])

    async def close(self, groups: int) -> None:
        await self.send(CLOSE, groups, self.draw.getrandbits(20))
        part = slice(min(groups, self.groups))
        self.history[part] = update_history(self.history[part], self.recent[part])
        self.recent[part] = 0

    def expected(self, groups: int, drop_count: int) -> list[int]:
        """The words of a list."""
        history = self.history[: min(groups, self.groups)]
        if not len(history):
            return []
        scanned = np.flatnonzero(select_groups(history, drop_count=drop_count)).tolist()
        return [group | int(group == scanned[-1]) << GROUP_BITS for group in scanned]

    async def list(self, groups: int, drop_count: int) -> None:
        """Give a LIST and compare it."""
        expected = self.expected(groups, drop_count)
        await self.send(LIST, groups, drop_count)
        got = await self.sink.recv(len(expected), timeout=20_000)
        where = f"groups {groups}, drop_count {drop_count}, histories {self.history[:groups].tolist()}"
        assert got == expected, f"{got}, expected {expected}; {where}"

    async def compare(self) -> None:
        """Lists that show the order of all groups' codes: thresholds at every step of the histogram."""
        codes = np.sort(history_code(self.history))
        steps = np.searchsorted(codes, np.unique(codes)).tolist()
        chosen = sorted(self.draw.sample(steps, min(len(steps), 2)))
        for below in {0, self.groups, *chosen, *(max(below - 1, 0) for below in chosen)}:
            await self.list(self.groups, below)

    async def random_step(self) -> None:
        """A row of masses, a close or a list."""
        draw = self.draw
        some = draw.choice([self.groups, draw.randint(0, self.groups), draw.randint(0, (1 << 21) - 1)])
        match draw.choice(["row", "row", "close", "list"]):
            case "row":
                groups = [draw.randrange(self.groups) for _ in range(draw.choice([1, 3, self.groups]))]
                bits = draw.randint(0, 20)
                await self.row([(group, draw.getrandbits(bits)) for group in groups for _ in range(draw.randint(1, 3))])
            case "close":
                await self.close(some)
            case "list":
                await self.list(some, draw.choice([0, draw.randint(0, self.groups), draw.getrandbits(20)]))

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(2 * self.groups + 50)
        assert self.command.idle and self.mass.idle


@cocotb.test()
async def matches_golden_on_corner_histories(dut):
    """Equal, rising, falling, single ones, around each change of the code."""
    bench = Bench(dut)
    await start(dut)
    n = bench.groups
    values = wanted_histories(bench.draw)
    rows = [
        [0] * n,
        [5] * n,
        list(range(n)),
        list(range(n))[::-1],
        [0] * (n - 1) + [1],
        [MOST_MASS] + [0] * (n - 1),
        [(7, 8, 9, 15, 16, 17, 18, 31)[k % 8] for k in range(n)],
        [1 << k % 20 for k in range(n)],
        [min((1 << k % 21) - 1, MOST_MASS) for k in range(n)],
        [min(next(values), MOST_MASS) for _ in range(n)],
    ]
    for row in rows:
        await bench.clear()
        await bench.row(list(enumerate(row)))
        await bench.close(n)
        await bench.compare()
    await bench.end()


@cocotb.test()
async def matches_golden_on_long_histories(dut):
    """Masses beyond 24 bits, up to those where histories and the mass since the last close saturate."""
    bench = Bench(dut)
    await start(dut)
    await bench.clear()
    n = bench.groups
    most = [(min(1, n - 1), MOST_MASS)] * 1100
    await bench.row([(k % n, MOST_MASS >> k % 20) for k in range(4 * n)] + most)
    for _ in range(5):
        await bench.close(n)
        await bench.compare()
        await bench.row(most[:700])
    # The mass since the last close exceeds 32 bits, then its sum with half of the history does: both stay at the top,
    # above group 2, which does not reach it.
    big, other = min(1, n - 1), min(2, n - 1)
    for masses, others in ((4099, 2000), (2100, 0)):
        await bench.row([(big, MOST_MASS)] * masses + [(other, MOST_MASS)] * others)
        await bench.close(n)
        assert bench.history[big] == TOP
        await bench.list(n, n - 1)
        await bench.compare()
    for _ in range(3):
        await bench.close(n)
        await bench.compare()
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("command_stall", "mass_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("heavy", "none", "heavy"),
            ("none", "random", "bursty"),
            ("random", "heavy", "every2"),
        ],
    )
)
async def matches_golden_under_stalls(dut, command_stall, mass_stall, o_stall):
    bench = Bench(dut, command_stall, mass_stall, o_stall)
    await start(dut)
    await bench.clear()
    for _ in range(params()["steps"]):
        await bench.random_step()
    await bench.compare()
    await bench.end()


@cocotb.test()
async def adds_masses_one_after_the_other(dut):
    """The same group after one, two, three and more cycles; groups that do not exist change nothing."""
    bench = Bench(dut)
    await start(dut)
    await bench.clear()
    n = bench.groups
    pattern = [0, 0, 0, 1, 0, 1, 1, 2, 0, 3, 1, 2, 0, 0]
    await bench.row([(k % n, 3 * at + 1) for at, k in enumerate(pattern)])
    wrapping = (1 << max(1, (n - 1).bit_length())) + (n > 1)  # would be group 1 if the upper bits were cut
    await bench.row([(n, 1000), ((1 << 20) - 1, 1000), (wrapping, 1000), (0, 1), (n, 1000)])
    await bench.close(n)
    await bench.list(n, n - 1)
    await bench.compare()
    await bench.end()


@cocotb.test()
async def closes_between_rows_and_lists_beside_them(dut):
    """A close waits for the row that has begun and for nothing else; a list goes on while masses come."""
    bench = Bench(dut, mass_stall="random")
    await start(dut)
    await bench.clear()
    n = bench.groups
    await bench.row([(k, k + 1) for k in range(n)])
    await bench.close(n)
    long = [(k % n, 2 * k) for k in range(params()["latency"] + 200)]
    expected = bench.expected(n, n // 2)
    bench.queue_row(long)
    await bench.send(LIST, n, n // 2)
    assert await bench.sink.recv(len(expected)) == expected
    assert not bench.mass.idle and len(bench.mass.transfers) > n + 1
    await bench.close(n)  # counts all of the row, although it is still under way
    await bench.compare()
    assert bench.mass.idle
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    n = bench.groups
    await bench.clear()
    await bench.send(LIST)  # of nothing: taken as soon as CLEAR is done, and over at once
    await bench.row([(k, MOST_MASS) for k in range(n)])
    taken = bench.mass.transfers[-1] - bench.mass.transfers[-n]
    assert taken == n - 1, f"{n} masses took {taken + 1} cycles"
    await bench.close(n)
    await bench.list(n, 0)
    clear, nothing, close, listed = bench.command.transfers
    for op, between in (("CLEAR", nothing - clear), ("CLOSE", listed - close)):
        expected = params()["close_cycles"]
        assert between == expected, f"the command after {op} was taken after {between} cycles, not {expected}"
    latency = bench.sink.transfers[-1] - listed
    assert latency == params()["latency"], f"latency {latency} cycles, not {params()['latency']}"
    assert bench.sink.transfers[-1] - bench.sink.transfers[0] <= n + 3
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random", "random")
    await start(dut)
    n = bench.groups
    await bench.clear()
    for wait in (2, n // 2, n + 3, n + 250, 2 * n + 262):
        bench.queue_row([(k % n, 77) for k in range(3 * n)])
        commands = [(CLOSE, n, 0), (LIST, n, 0), (LIST, n, n // 3)]
        bench.command.send_nowait(op | groups << 2 | drop << 23 for op, groups, drop in commands)
        await cycles(dut, wait)
        await reset(dut)
        await bench.clear()
        for _ in range(3):
            await bench.row([(bench.draw.randrange(n), bench.draw.getrandbits(12)) for _ in range(n)])
            await bench.close(n)
        await bench.compare()
        # A list changes nothing, so a reset in the middle of it leaves the histories as they were.
        await bench.send(LIST, n, 0)
        await cycles(dut, wait)
        await reset(dut)
        await bench.compare()
        await bench.end()
