"""Coroutines of the RunSelector tests."""

import random
from collections.abc import Iterator

import cocotb
import numpy as np

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.hcap.selector import BIN_SHIFT, BINS, select_runs

FARTHEST = (1 << 25) - 1
MOST = (1 << 20) - 1
STEP = 1 << BIN_SHIFT

#: keep_count, distances, tokens of the runs
Tile = tuple[int, list[int], list[int]]


def corner_tiles() -> Iterator[Tile]:
    """Bins at their edges, limits that are met and missed by one, ties, nothing kept, everything kept."""
    edges = [d for b in (0, 1, 2, 63, 64, 127, 128, 129, 255, 256) for d in (b * STEP - 1, b * STEP) if d >= 0]
    edges += [FARTHEST - 1, FARTHEST]
    total = sum(range(1, len(edges) + 1))
    for keep in (0, 1, 2, 3, 20, total - 1, total, MOST):
        yield keep, edges, list(range(1, len(edges) + 1))
    for keep in (0, 1, 50, 51, 52, 255):
        yield keep, [70], [51]
        yield keep, [FARTHEST], [51]
    for keep in (0, 5):
        yield keep, [0, 0, 64, 8191, 8192], [0] * 5  # no tokens, no limit
    yield 254, [0, 0, 0], [255, 0, 255]
    yield 510, [0, 128, 0], [255, 1, 255]
    yield 510, [8192, 9000, 0], [1, 255, 255]
    for keep in (63, 64, 127, 128, 129):
        yield keep, [b * STEP for b in range(BINS + 1)], [1] * (BINS + 1)
    for keep in (99, 100):  # the same bin after one, two and more cycles: while its count is on its way
        yield keep, [640, 640, 700, 640, 64, 700, 640, 640], [20, 20, 3, 20, 4, 3, 20, 10]


def large_tile() -> Tile:
    """More tokens in one bin than any limit: the count saturates and does not wrap."""
    runs = (1 << 21) // 255 + 2
    return MOST, [200] * runs, [255] * runs


def random_tiles(draw: random.Random, count: int) -> Iterator[Tile]:
    """Distances of several spreads, runs of several lengths, limits around what is there."""
    for _ in range(count):
        runs = draw.choice([1, 2, 3, draw.randint(4, 60)])
        spread = draw.choice([100, 3000, 3000, 9000, FARTHEST])
        tokens = [draw.randint(0, draw.choice([3, 60, 255])) for _ in range(runs)]
        total = sum(tokens)  # as a limit it shows a single token too many
        keep = draw.choice([draw.randint(0, total), draw.randint(0, total), total, draw.getrandbits(20)])
        yield keep, [draw.randint(0, spread) for _ in range(runs)], tokens


def bins_kept(tile: Tile) -> int:
    """Golden's count: how many of further bases, one in each bin and without tokens, would be kept."""
    keep, distance, tokens = tile
    probes = STEP * np.arange(BINS + 1)
    kept = select_runs(
        np.concatenate([np.array(distance, np.int32), probes.astype(np.int32)]),
        np.concatenate([np.array(tokens), np.zeros_like(probes)]),
        run_margin=FARTHEST,
        keep_count=keep,
    )
    return int(kept[len(distance) :].sum())


class KeepCount:
    """Drives `keep_count`: right beside the last base of a tile, anything beside the others."""

    def __init__(self, dut, source: StreamSource, draw: random.Random) -> None:
        self.port, self.source, self.draw = dut.keep_count, source, draw
        self.port.value = 0
        self.limits: dict[int, int] = {}  # by number of the transfer
        self.bases = 0
        Engine.of(dut.clk).attach(self)

    def add(self, bases: int, limit: int) -> None:
        self.bases += bases
        self.limits[self.bases - 1] = limit

    def edge(self, cycle: int) -> None:
        limit = self.limits.get(len(self.source.transfers))
        self.port.value = self.draw.getrandbits(20) if limit is None else limit

    def clear(self) -> None:
        self.limits.clear()
        self.bases = 0


class Bench:
    """The design's streams, and tiles sent through them against golden."""

    def __init__(self, dut, i_stall: str = "none", o_stall: str = "none") -> None:
        self.draw = rng("bench", i_stall, o_stall)
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.keep = KeepCount(dut, self.source, self.draw)
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, tile: Tile) -> None:
        keep, distance, tokens = tile
        self.keep.add(len(distance), keep)
        last = [*[0] * (len(distance) - 1), 1]
        self.source.send_nowait(d | t << 25 | e << 33 for d, t, e in zip(distance, tokens, last, strict=True))

    async def check(self, tiles: list[Tile]) -> None:
        """Send all tiles at once and compare all that comes out."""
        for tile in tiles:
            self.send(tile)
        for n, tile in enumerate(tiles):
            (got,) = await self.sink.recv(1, timeout=20_000)
            expected = bins_kept(tile)
            assert got == expected, f"tile {n}: {got} bins, expected {expected}; keep_count, distances, tokens: {tile}"

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(2 * BINS)
        assert self.source.idle


@cocotb.test()
async def matches_golden_on_corner_tiles(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(list(corner_tiles()))
    await bench.check([large_tile(), (5, [0], [5])])
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("random", "none"), ("none", "heavy"), ("bursty", "random"), ("heavy", "every2")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(list(random_tiles(bench.draw, params()["tiles"])))
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    expected = params()["latency"]
    await reset(dut)
    before = bench.source.engine.cycle
    runs = 50
    await bench.check([(100, [100] * runs, [3] * runs)] * 3)
    ready = bench.source.transfers[0] - before
    assert ready == expected, f"first base taken in cycle {ready} after the reset, not {expected}"
    for tile in range(3):
        first, last = bench.source.transfers[tile * runs], bench.source.transfers[(tile + 1) * runs - 1]
        assert last - first == runs - 1, f"{runs} bases took {last - first + 1} cycles"
        measured = latency(bench.source, bench.sink, (tile + 1) * runs - 1, tile)
        assert measured == expected, f"latency {measured} cycles, not {expected}"
    gap = bench.source.transfers[runs] - bench.sink.transfers[0]
    assert gap == 1, f"the next tile begins {gap} cycles after the result, not 1"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (3, BINS + 20, 2 * BINS, 2 * BINS + 40, 3 * BINS):
        for tile in random_tiles(bench.draw, 8):
            bench.send(tile)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([(3, [100, 3000, FARTHEST], [1, 1, 1]), *random_tiles(bench.draw, 2)])
        await bench.end()
