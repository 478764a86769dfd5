"""Coroutines of the SalientPicker tests."""

import random
from collections.abc import Iterator

import cocotb
import numpy as np

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.real import real_groups
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.salient import pick_salient
from golden.settings import default_settings

TOP = (1 << 32) - 1


def corner_groups(tokens: int) -> Iterator[tuple[int, int, bool, list[int]]]:
    """Salient count, sink count, first group, masses: ties, extremes, order, sinks at every limit, all tokens."""
    rising = list(range(tokens))
    masses = [
        [0] * tokens,
        [TOP] * tokens,
        rising,
        rising[::-1],
        [TOP] + [0] * (tokens - 1),
        [0] * (tokens - 1) + [TOP],
        [TOP, 0] * (tokens // 2),
        [n // 3 for n in rising],
    ]
    for mass in masses:
        for salient, sinks, first in (
            (1, 0, False),
            (1, 4, True),
            (3, 4, True),
            (5, 4, True),
            (5, 4, False),
            (tokens - 1, 0, True),
            (tokens, 4, True),
            (4, tokens, True),
            (4, tokens - 1, True),
        ):
            yield salient, sinks, first, mass


def random_groups(draw: random.Random, count: int, tokens: int) -> Iterator[tuple[int, int, bool, list[int]]]:
    """Masses of different widths, narrow ones full of ties."""
    for _ in range(count):
        bits = draw.choice([1, 2, 4, 16, 32])
        salient = draw.choice([draw.randint(1, tokens // 4), draw.randint(1, tokens)])
        mass = [draw.getrandbits(bits) for _ in range(tokens)]
        yield salient, draw.choice([0, 1, 4, tokens]), bool(draw.getrandbits(1)), mass


class Bench:
    """The design's streams, and groups sent through them against golden."""

    def __init__(self, dut, group_stall: str = "none", mass_stall: str = "none", o_stall: str = "none") -> None:
        self.tokens = params()["group_tokens"]
        self.count_bits = self.tokens.bit_length()
        self.draw = rng("bench", group_stall, mass_stall, o_stall)
        self.group = StreamSource(dut, "i_group", stall=stalls.named(group_stall, "group"))
        self.mass = StreamSource(dut, "i_mass", stall=stalls.named(mass_stall, "mass"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, salient: int, sinks: int, first: bool, mass: list[int]) -> None:
        self.group.send_nowait([salient | sinks << self.count_bits | int(first) << 2 * self.count_bits])
        self.mass.send_nowait(mass)

    async def check(self, groups: list[tuple[int, int, bool, list[int]]]) -> None:
        """Send all groups at once and compare all that comes out."""
        for group in groups:
            self.send(*group)
        for salient, sinks, first, mass in groups:
            count = min(max(salient, 1), self.tokens)
            expected = pick_salient(np.array(mass, np.uint32), first, salient_tokens=count, sink_tokens=sinks)
            words = await self.sink.recv(count)
            where = f"salient {salient}, sinks {sinks}, first {first}, {mass}"
            assert [word % self.tokens for word in words] == expected.tolist(), f"{where}: expected {expected}"
            assert [word // self.tokens for word in words] == [0] * (count - 1) + [1], f"{where}: {words}"


@cocotb.test()
async def matches_golden_on_corner_groups(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(list(corner_groups(bench.tokens)))
    await bench.sink.expect_nothing(2 * bench.tokens)


@cocotb.test()
@cocotb.parametrize(
    (
        ("group_stall", "mass_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("heavy", "none", "heavy"),
            ("none", "random", "bursty"),
            ("random", "heavy", "random"),
            ("bursty", "bursty", "every2"),
        ],
    )
)
async def matches_golden_under_stalls(dut, group_stall, mass_stall, o_stall):
    bench = Bench(dut, group_stall, mass_stall, o_stall)
    await start(dut)
    await bench.check(list(random_groups(bench.draw, params()["groups"], bench.tokens)))
    await bench.sink.expect_nothing(2 * bench.tokens)


if params()["real_groups"]:

    @cocotb.test()
    async def matches_golden_on_real_masses(dut):
        bench = Bench(dut)
        await start(dut)
        settings = default_settings()
        groups = real_groups(params()["real_groups"])
        await bench.check(
            [
                (settings.salient_tokens, settings.sink_tokens, group.first_group, group.mass.tolist())
                for group in groups
            ]
        )
        await bench.sink.expect_nothing(2 * bench.tokens)


@cocotb.test()
async def clamps_impossible_counts(dut):
    bench = Bench(dut)
    await start(dut)
    mass = [bench.draw.getrandbits(32) for _ in range(bench.tokens)]
    field_limit = (1 << bench.tokens.bit_length()) - 1
    counts = (0, bench.tokens + 1, field_limit, 2)
    await bench.check([(count, 4, True, mass) for count in counts])
    await bench.sink.expect_nothing(2 * bench.tokens)


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    tokens = bench.tokens
    for salient, expected in params()["latency"]:
        await reset(dut)
        groups = 3
        mass = [n + 1 for n in range(tokens)]  # the last tokens win, so that the last scan runs to its end
        await bench.check([(salient, 0, False, mass)] * groups)
        measured = bench.sink.transfers[salient - 1] - bench.mass.transfers[tokens - 1]
        assert measured == expected, f"latency {measured} cycles, not {expected} ({salient} salient)"
        period = (bench.sink.transfers[-1] - bench.sink.transfers[salient - 1]) / (groups - 1)
        assert period == expected + tokens, f"groups {period} cycles apart, not {expected + tokens} ({salient} salient)"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "none", "random")
    await start(dut)
    tokens = bench.tokens
    for wait in (3, tokens // 2, tokens + 5, 3 * tokens, 6 * tokens + 7):
        for group in random_groups(bench.draw, 3, tokens):
            bench.send(*group)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(list(random_groups(bench.draw, 2, tokens)))
        await bench.sink.expect_nothing(2 * tokens)
