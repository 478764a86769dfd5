"""Coroutines of the PeArray tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.gemm.array import multiply
from rtl.config import GemmConfig

TOP_WEIGHT = 127
#: beats that wait inside while nobody takes them
QUEUE = 16


class Beat(NamedTuple):
    """An output beat."""

    sums: tuple[int, ...]
    row: int
    beat: int
    last: int


@dataclass
class Tile:
    """Codes ``[rows, K]`` and weights ``[columns, K]`` of all lanes, and which sums are wanted."""

    codes: NDArray[np.int64]
    weights: NDArray[np.int64]
    row_last: int
    beat_last: int

    @property
    def beats(self) -> int:
        return (self.row_last + 1) * (self.beat_last + 1)


class Fields:
    """Packs and unpacks payloads."""

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        self.row_bits = max(1, (config.rows - 1).bit_length())
        self.beat_bits = max(1, (config.beats - 1).bit_length())

    def steps(self, tile: Tile) -> list[int]:
        """The words of ``i``; where a field does not count it is something."""
        draw = rng("fields")
        words = []
        k = tile.codes.shape[1]
        for at in range(k):
            last = at == k - 1
            ends = (tile.row_last, tile.beat_last) if last else (draw.getrandbits(6), draw.getrandbits(6))
            fields = [(int(code), self.config.act_bits) for code in tile.codes[:, at]]
            fields += [(int(weight), 8) for weight in tile.weights[:, at]]
            fields += [(int(last), 1), (ends[0], self.row_bits), (ends[1], self.beat_bits)]
            word = position = 0
            for value, bits in fields:
                word |= (value & ((1 << bits) - 1)) << position
                position += bits
            words.append(word)
        return words

    def beat(self, word: int) -> Beat:
        """A word of ``o``."""
        width, lanes = self.config.acc_bits, 2 * self.config.pairs
        top = 1 << width
        sums = [(word >> n * width) % top for n in range(lanes)]
        word >>= lanes * width
        row, word = word % (1 << self.row_bits), word >> self.row_bits
        return Beat(
            tuple(total - top if total >= top // 2 else total for total in sums),
            row,
            word % (1 << self.beat_bits),
            word >> self.beat_bits,
        )

    def expected(self, tile: Tile) -> list[Beat]:
        """What golden makes of a tile."""
        sums = multiply(tile.codes, tile.weights)
        lanes = 2 * self.config.pairs
        return [
            Beat(
                tuple(sums[row, lanes * beat : lanes * (beat + 1)].tolist()),
                row,
                beat,
                int((row, beat) == (tile.row_last, tile.beat_last)),
            )
            for row in range(tile.row_last + 1)
            for beat in range(tile.beat_last + 1)
        ]


class Bench:
    """The design's streams, tiles, and what they should give."""

    def __init__(self, dut, i_stall: str = "none", o_stall: str = "none") -> None:
        self.config = GemmConfig(**params()["config"])
        self.fields = Fields(self.config)
        self.draw = rng("bench", i_stall, o_stall)
        self.numpy = np.random.default_rng(self.draw.getrandbits(32))
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def tile(
        self,
        k: int,
        row_last: int | None = None,
        beat_last: int | None = None,
        *,
        codes: Sequence[int] | None = None,
        weights: Sequence[int] | None = None,
    ) -> Tile:
        """A tile of random numbers, or of some of the given ones; all rows and beats are wanted by default."""
        c = self.config
        top = 1 << (c.act_bits - 1)

        def numbers(given: Sequence[int] | None, least: int, most: int, lanes: int) -> NDArray[np.int64]:
            if given is None:
                return self.numpy.integers(least, most + 1, (lanes, k))
            return self.numpy.choice(np.array(given), (lanes, k))

        return Tile(
            numbers(codes, -top, top - 1, c.rows),
            numbers(weights, -TOP_WEIGHT, TOP_WEIGHT, c.columns),
            c.rows - 1 if row_last is None else row_last,
            c.beats - 1 if beat_last is None else beat_last,
        )

    def random_tile(self, longest: int) -> Tile:
        """Of any length and size, short ones and whole ones often."""
        draw, c = self.draw, self.config
        k = draw.choice([1, 2, draw.randint(1, 8), draw.randint(1, longest)])
        rows = draw.choice([c.rows - 1, draw.randrange(c.rows)])
        return self.tile(k, rows, draw.choice([c.beats - 1, draw.randrange(c.beats)]))

    def queue(self, tiles: Sequence[Tile]) -> None:
        """Queue the steps of tiles."""
        for tile in tiles:
            self.source.send_nowait(self.fields.steps(tile))

    async def compare(self, tiles: Sequence[Tile]) -> None:
        """Take the beats of tiles and compare them."""
        for number, tile in enumerate(tiles):
            expected = self.fields.expected(tile)
            got = [self.fields.beat(word) for word in await self.sink.recv(len(expected), timeout=20_000)]
            where = f"tile {number} of {len(tiles)}, K {tile.codes.shape[1]}"
            for a, b in zip(got, expected, strict=True):
                assert a == b, f"{a}, expected {b}; {where}"

    async def run(self, tiles: Sequence[Tile]) -> None:
        self.queue(tiles)
        await self.compare(tiles)

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(50)
        assert self.source.idle


@cocotb.test()
async def matches_golden_on_corner_tiles(dut):
    """Longest sums of the largest products of both signs; zeros; one step; every number of rows and beats."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    low, high = -(1 << (c.act_bits - 1)), (1 << (c.act_bits - 1)) - 1
    longest = c.max_k
    tiles = [
        bench.tile(longest, codes=[low], weights=[TOP_WEIGHT]),
        bench.tile(longest, codes=[low], weights=[-TOP_WEIGHT]),
        bench.tile(longest, codes=[high], weights=[-TOP_WEIGHT]),
        bench.tile(longest, codes=[low, high], weights=[TOP_WEIGHT, -TOP_WEIGHT]),
        bench.tile(5, codes=[0]),
        bench.tile(5, weights=[0]),
        bench.tile(1, codes=[low], weights=[TOP_WEIGHT, -TOP_WEIGHT]),
        bench.tile(1, 0, 0),
        bench.tile(1, codes=[-1, 1], weights=[-1, 1]),
    ]
    tiles += [bench.tile(3, row, beat) for row in range(c.rows) for beat in range(c.beats)]
    await bench.run(tiles)
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("random", "none"), ("none", "random"), ("heavy", "bursty"), ("bursty", "heavy")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.run([bench.random_tile(60) for _ in range(params()["tiles"])])
    await bench.end()


@cocotb.test()
async def matches_golden_on_the_layers_of_a_model(dut):
    """Codes and weights of real projections: their first rows and columns, all of K."""
    bench = Bench(dut, "none", "random")
    await start(dut)
    if params()["real"] is not None:
        c = bench.config
        with np.load(params()["real"]) as file:
            tiles = [
                Tile(file[f"codes_{n}"].astype(int), file[f"weights_{n}"].astype(int), c.rows - 1, c.beats - 1)
                for n in range(len(file.files) // 2)
            ]
        await bench.run(tiles)
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """A step and a beat a cycle, whatever is longer: K of a tile, or the beats of the one before."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    drain = c.rows * c.beats
    await bench.run([bench.tile(1)])
    assert latency(bench.source, bench.sink) == params()["latency"]
    sizes = [(1, 0, 0), (drain, None, None), (drain + 3, None, None), (2, 0, c.beats - 1), (1, None, None)]
    sizes += [(max(1, drain - 1), None, None), (3 * drain, None, None)]
    for k, row_last, beat_last in sizes:
        tiles = [bench.tile(k, row_last, beat_last) for _ in range(10)]
        sent, taken = len(bench.source.transfers), len(bench.sink.transfers)
        await bench.run(tiles)
        period = max(k, tiles[0].beats)
        steps = bench.source.transfers[sent:]
        ends = steps[k - 1 :: k]
        assert [b - a for a, b in pairwise(ends)] == [period] * 9, f"K {k}: {ends}"
        beats = bench.sink.transfers[taken:]
        for n, end in enumerate(ends):
            first = beats[n * tiles[0].beats]
            assert first - end == params()["latency"], f"K {k}, tile {n}: {first - end} cycles"
            last = beats[(n + 1) * tiles[0].beats - 1]
            assert last - first == tiles[0].beats - 1, f"K {k}, tile {n}: {last - first + 1} cycles"
    await bench.end()


@cocotb.test()
async def waits_with_the_last_step_alone(dut):
    """Nobody takes beats: of the first tile that does not fit all steps but the last are taken, and nothing is lost."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    beats = c.rows * c.beats
    tiles = [bench.tile(4) for _ in range(2 + QUEUE // beats + 2)]
    blocked = True

    def stall():
        while True:
            yield blocked

    bench.sink.stall = stall()
    bench.queue(tiles)
    await cycles(dut, 20 * len(tiles) + 100)
    # The queue holds whole tiles; one more lies in the array, its beats perhaps partly in the queue.
    held = QUEUE // beats + 1
    assert len(bench.source.transfers) == 4 * held + 3, f"{len(bench.source.transfers)} steps, {held} tiles are held"
    blocked = False
    await bench.compare(tiles)
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    """Also when the reset takes one cycle: steps under way leave nothing in the sums."""
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (1, 2, 3, 4, 5, 6, 7, 8, 20, 50, 90):
        bench.queue([bench.random_tile(9) for _ in range(30)])
        await cycles(dut, wait)
        await reset(dut, 1 + wait % 2)
        await bench.run([bench.random_tile(5) for _ in range(4)])
        await bench.end()
