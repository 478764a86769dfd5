"""Coroutines of the MassNormalizer tests."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.mha.mass import normalize
from golden.mha.softmax import inverse
from rtl.config import MhaConfig

HEADS = MhaConfig(**params()["mha"]).q_heads
ENTRIES, TOTAL_BITS, LATENCY = params()["entries"], params()["total_bits"], params()["latency"]
LOWEST = -(1 << 18)
TIMEOUT = 5000 + 10 * ENTRIES  # a heavily stalled row comes in before anything goes out


@dataclass(frozen=True, kw_only=True)
class Row:
    """Entries of a row: weights, maxima and names; final maxima and totals."""

    weights: NDArray[np.int64]  # [G, E]
    maxima: NDArray[np.int64]  # [G, E]
    names: NDArray[np.int64]  # [E] group | index << 1
    final: NDArray[np.int64]  # [G]
    total: NDArray[np.int64]  # [G]


def make_row(draw: random.Random, weights: NDArray[np.int64], maxima: NDArray[np.int64], more: int = 0) -> Row:
    """A row with random names; the totals are up to ``more`` above the sums of the weights."""
    entries = weights.shape[1]
    final = maxima[:, -1] + draw.choice([0, 1, 3]) if entries else np.full(HEADS, LOWEST)
    drop = np.minimum(final[:, None] - maxima, 63)
    numbers = np.random.default_rng(draw.getrandbits(32))
    return Row(
        weights=weights,
        maxima=maxima,
        names=numbers.integers(0, 1 << 21, entries),
        final=final,
        total=(weights >> drop).sum(axis=1) + numbers.integers(0, more + 1, HEADS),
    )


def random_row(draw: random.Random, entries: int) -> Row:
    """Weights of tokens or of groups, some of them 0; maxima that stay, rise now and then, or often."""
    numbers = np.random.default_rng(draw.getrandbits(32))
    bits = draw.choice([1, 12, 16, min(23, TOTAL_BITS - max(entries - 1, 1).bit_length())])
    some, rising = (numbers.random((HEADS, entries)) < draw.choice(shares) for shares in ([0.3, 1], [0, 0.1, 0.5]))
    weights = numbers.integers(0, 1 << bits, (HEADS, entries)) * some
    rises = numbers.integers(1, 9, (HEADS, entries)) * rising
    maxima = draw.choice([LOWEST, -40, 3]) + np.cumsum(rises, axis=1)
    return make_row(draw, weights, maxima, draw.choice([0, 40, 1 << 16]))


def corner_rows(draw: random.Random) -> Iterator[Row]:
    """No entries, no weight, one entry, equal ones, as many as fit, distances around 64, the range of maxima."""

    def full(entries: int, value: int) -> NDArray[np.int64]:
        return np.full((HEADS, entries), value, np.int64)

    most = (1 << min(23, TOTAL_BITS - 3)) - 1  # so that seven fit into a total
    yield make_row(draw, full(0, 0), full(0, 0))
    yield make_row(draw, full(5, 0), full(5, LOWEST))
    for weight in (1, 65359, most):
        yield make_row(draw, full(1, weight), full(1, -1))
        yield make_row(draw, full(7, weight), full(7, 0))
    yield make_row(draw, full(ENTRIES, 1 << min(16, TOTAL_BITS - ENTRIES.bit_length())), full(ENTRIES, 0))
    yield make_row(draw, full(0, 0), full(0, 0))
    for rise in (1, 23, 24, 63, 64, 128, 1 << 18):
        maxima = full(4, 5)
        maxima[:, :2] -= rise
        yield make_row(draw, full(4, most), maxima)
    yield make_row(draw, full(2, 40000), np.stack([np.full(HEADS, LOWEST), np.full(HEADS, -LOWEST - 4)], axis=1))
    one = full(6, 0)
    one[HEADS - 1] = 33333
    yield make_row(draw, one, full(6, 0))


def packed(values: Sequence[int], bits: int) -> int:
    """Values side by side, the first in the lowest bits."""
    return sum((int(value) & ((1 << bits) - 1)) << bits * place for place, value in enumerate(values))


class Bench:
    """The streams of a MassNormalizer, and rows sent through them against golden."""

    def __init__(self, dut, entry_stall: str = "none", row_stall: str = "none", o_stall: str = "none") -> None:
        self.draw = rng("mass", entry_stall, row_stall, o_stall)
        self.entry = StreamSource(dut, "i_entry", stall=stalls.named(entry_stall, "entry"))
        self.row = StreamSource(dut, "i_row", stall=stalls.named(row_stall, "row"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send_entries(self, row: Row) -> None:
        """Queue a row's entries and end; fields without meaning are random."""
        places = 24 * HEADS, 43 * HEADS, 43 * HEADS + 21
        for entry, name in enumerate(row.names):
            bits = packed(row.weights[:, entry], 24) | packed(row.maxima[:, entry], 19) << places[0]
            self.entry.send_nowait([bits | int(name) << places[1]])
        bits = self.draw.getrandbits(places[0]) | packed(row.final, 19) << places[0] | 1 << places[2]
        self.entry.send_nowait([bits | self.draw.getrandbits(21) << places[1]])

    def send_row(self, row: Row) -> None:
        """Queue the inverses of a row's totals."""
        factor, length = inverse(row.total)
        self.row.send_nowait([packed(factor, 19) | packed(length, 6) << 19 * HEADS])

    async def receive(self, rows: Sequence[Row]) -> None:
        """Compare what comes out with the masses of these rows."""
        for number, row in enumerate(rows):
            entries = len(row.names)
            masses = normalize(row.weights, row.maxima, row.final, row.total).sum(axis=0) if entries else []
            expected = [int(name) | int(mass) << 21 for name, mass in zip(row.names, masses, strict=True)]
            expected[-1:] = [word | 1 << 41 for word in expected[-1:]]
            made = await self.sink.recv(entries, TIMEOUT)
            assert made == expected, f"row {number} of {entries}: masses {[word >> 21 for word in made]}, not {masses}"

    async def check(self, rows: Sequence[Row]) -> None:
        """Send all rows at once, compare all that comes out, and leave nothing behind."""
        for row in rows:
            self.send_entries(row)
            self.send_row(row)
        await self.receive(rows)
        await self.sink.expect_nothing(60)
        assert self.entry.idle and self.row.idle


@cocotb.test()
async def matches_golden_on_corner_rows(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(list(corner_rows(bench.draw)))


@cocotb.test()
@cocotb.parametrize(
    (
        ("entry_stall", "row_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("none", "none", "heavy"),
            ("heavy", "none", "none"),
            ("none", "bursty", "random"),
            ("random", "random", "every2"),
        ],
    )
)
async def matches_golden_under_stalls(dut, entry_stall, row_stall, o_stall):
    bench = Bench(dut, entry_stall, row_stall, o_stall)
    await start(dut)
    lengths = [bench.draw.choice([0, 1, 2, 9, ENTRIES // 3, ENTRIES]) for _ in range(params()["rows"])]
    await bench.check([random_row(bench.draw, length) for length in lengths])


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """An entry per cycle on both sides, the stated cycles before a row, entries of the next row meanwhile."""
    bench = Bench(dut)
    await start(dut)
    for entries in (1, 12, ENTRIES):
        await reset(dut)
        rows = [random_row(bench.draw, entries) for _ in range(2)]
        for row in rows:
            bench.send_entries(row)
        await cycles(dut, 2 * entries + 10)
        given = bench.entry.transfers
        spent = given[-1] - given[0]
        assert spent == 2 * entries + 1, f"{2 * entries + 2} transfers in {spent + 1} cycles"
        for row in rows:
            bench.send_row(row)
        await bench.receive(rows)
        taken, masses = bench.row.transfers, bench.sink.transfers
        assert masses[0] - taken[0] == LATENCY, f"latency {masses[0] - taken[0]} cycles, not {LATENCY}"
        assert masses[entries - 1] - masses[0] == entries - 1, "masses do not follow each other"
        gap = masses[entries] - masses[entries - 1]
        assert gap == LATENCY + 1, f"rows {gap} cycles apart, not {LATENCY + 1}"


@cocotb.test()
async def keeps_two_rows(dut):
    """The third one waits until the first has been given out."""
    bench = Bench(dut)
    await start(dut)
    rows = [random_row(bench.draw, 9) for _ in range(3)]
    for row in rows:
        bench.send_entries(row)
    await cycles(dut, 60)
    assert len(bench.entry.transfers) == 20, f"{len(bench.entry.transfers)} transfers, not those of two rows"
    for row in rows:
        bench.send_row(row)
    await bench.receive(rows)
    assert bench.entry.transfers[20] >= bench.sink.transfers[8] - 1
    await bench.sink.expect_nothing()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random", "random")
    await start(dut)
    for wait in (2, 9, 30, ENTRIES, 2 * ENTRIES + 5):
        for _ in range(4):
            row = random_row(bench.draw, bench.draw.choice([1, 7, ENTRIES]))
            bench.send_entries(row)
            bench.send_row(row)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([random_row(bench.draw, bench.draw.randint(0, 20)) for _ in range(3)])
