"""Coroutines of the ScoreArray tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import cocotb
import numpy as np
from amaranth.lib import data
from numpy.typing import NDArray

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.record import COARSE_BITS
from golden.dsq.scale import SCALE_BIAS
from golden.hcap.estimator import lower_nibble, upper_nibble
from golden.mha.core import delta_planes
from golden.mha.scores import scores
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.mha.scores import RowKind, ScoreArray

LOWEST, HIGHEST = -128, 127


@dataclass(frozen=True)
class Query:
    """Codes [G, head_dim] and scales [G] of both forms, plain and shaped, and the score shift."""

    codes: tuple[NDArray[np.int8], NDArray[np.int8]]
    scales: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    shift: int


@dataclass(frozen=True)
class Row:
    """INT8 codes, of a delta row its codes; only what ``kind`` shows of them is sent."""

    kind: RowKind
    slot: int
    codes: NDArray[np.int64]
    scale: int


def score(query: Query, row: Row, delta_bits: int) -> NDArray[np.int32]:
    """What golden gives for a row, by head."""
    is_delta = row.kind in (RowKind.COARSE, RowKind.FINE)
    if is_delta:
        levels = (2 * row.codes - (1 << delta_bits) + 1).astype(np.int8)
        plane = delta_planes(levels, delta_bits)[row.kind is RowKind.FINE]
    else:
        codes = row.codes.astype(np.int8)
        plane = {RowKind.UPPER: upper_nibble, RowKind.LOWER: lower_nibble, RowKind.INT8: lambda x: x}[row.kind](codes)
    return scores(
        query.codes[is_delta],
        query.scales[is_delta],
        plane[None],
        np.array([row.scale], np.uint8),
        shift=query.shift + is_delta,
    )[:, 0]


def pack(layout: data.StructLayout, **fields: int) -> int:
    """A payload as an integer; fields may be negative."""
    return sum((value & (1 << layout[name].width) - 1) << layout[name].offset for name, value in fields.items())


class Bench:
    """The design's streams, and rows sent through them against golden."""

    def __init__(self, dut, query_stall: str = "none", i_stall: str = "none", o_stall: str = "none") -> None:
        tables = params()["config"]
        self.config = AcceleratorConfig(dsq=DsqConfig(**tables["dsq"]), mha=MhaConfig(**tables["mha"]))
        self.heads, self.dim = self.config.mha.q_heads, self.config.dsq.head_dim
        self.delta_bits = self.config.dsq.delta_bits
        shapes = ScoreArray(self.config, params()["tag_bits"])
        self.query_shape, self.i_shape = shapes.i_query_shape, shapes.i_shape
        self.dut = dut
        self.draw = rng("bench", query_stall, i_stall, o_stall)
        self.queries: dict[int, Query] = {}
        self.query = StreamSource(dut, "i_query", stall=stalls.named(query_stall, "query"))
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", shape=shapes.o_shape, stall=stalls.named(o_stall, "o"))
        dut.shift.value = 0

    def set_query(self, slot: int, query: Query) -> None:
        """Queue a query's codes, both forms of a head after each other, and set the slot's shift at once."""
        self.queries[slot] = query
        self.dut.shift.value = sum((q.shift & 127) << 7 * s for s, q in self.queries.items())
        order = list(product(range(self.heads), (0, 1), range(self.dim)))
        self.query.send_nowait(
            pack(
                self.query_shape,
                slot=slot,
                head=head,
                shaped=form,
                channel=channel,
                code=int(query.codes[form][head, channel]),
                scale=int(query.scales[form][head]),
                last=int(n == len(order) - 1),
            )
            for n, (head, form, channel) in enumerate(order)
        )

    async def load(self, slot: int, query: Query) -> None:
        """Send a query and wait until rows may use it."""
        self.set_query(slot, query)
        await self.query.send([])
        await cycles(self.dut, 1)

    def send(self, row: Row, tag: int) -> None:
        """Queue a row's words; what does not count in them is random, also the codes behind the last channel."""
        word_bits, fine_bits = self.config.dsq.bus_bits, self.delta_bits - COARSE_BITS
        bits, codes = {
            RowKind.UPPER: (4, row.codes >> 4),
            RowKind.LOWER: (4, row.codes),
            RowKind.INT8: (8, row.codes),
            RowKind.COARSE: (2, row.codes >> fine_bits),
            RowKind.FINE: (2, row.codes),
        }[row.kind]
        words = self.config.dsq.row_words(bits)
        text = self.draw.getrandbits(words * word_bits) >> self.dim * bits << self.dim * bits
        for channel, code in enumerate(codes.tolist()):
            text |= (code & (1 << bits) - 1) << channel * bits
        for n in range(words):
            last = n == words - 1
            self.source.send_nowait(
                [
                    pack(
                        self.i_shape,
                        word=text >> n * word_bits,
                        kind=row.kind.value,
                        slot=row.slot,
                        scale=row.scale if last else self.draw.getrandbits(8),
                        first=int(n == 0),
                        last=int(last),
                        tag=tag if last else self.draw.getrandbits(16),
                    )
                ]
            )

    async def check(self, rows: list[Row]) -> None:
        """Send rows back to back and compare all that comes out."""
        tags = [self.draw.getrandbits(16) for _ in rows]
        for row, tag in zip(rows, tags, strict=True):
            self.send(row, tag)
        for row, tag, got in zip(rows, tags, await self.sink.recv(len(rows)), strict=True):
            expected = score(self.queries[row.slot], row, self.delta_bits).tolist()
            given = [got.scores[head] for head in range(self.heads)]
            where = f"{row.kind} scale {row.scale} {row.codes.tolist()} against {self.queries[row.slot]}"
            assert given == expected, f"{where}: {given}, not {expected}"
            assert (got.kind, got.tag) == (row.kind, tag), f"{where}: kind {got.kind}, tag {got.tag}, not {tag}"

    @property
    def kinds(self) -> list[RowKind]:
        """The kinds of rows that this geometry has."""
        return [kind for kind in RowKind if kind is not RowKind.FINE or self.delta_bits > COARSE_BITS]

    def random_query(self) -> Query:
        """Codes of all sizes; shifts as in use, and beyond."""
        generator = np.random.default_rng(self.draw.getrandbits(64))
        codes = [generator.integers(-127, 128, (self.heads, self.dim)).astype(np.int8) for _ in range(2)]
        scales = [generator.integers(*self.draw.choice([(0, 130), (40, 60), (0, 256)]), self.heads) for _ in range(2)]
        return Query(tuple(codes), tuple(s.astype(np.uint8) for s in scales), self.draw.randint(-64, 63))

    def random_rows(self, count: int, slots: tuple[int, ...] = (0, 1)) -> list[Row]:
        """Rows of all kinds with scales that leave something of the score, now and then all or nothing of it."""
        generator = np.random.default_rng(self.draw.getrandbits(64))
        rows = []
        for _ in range(count):
            kind, slot = self.draw.choice(self.kinds), self.draw.choice(slots)
            query = self.queries[slot]
            is_delta = kind in (RowKind.COARSE, RowKind.FINE)
            exponent = query.shift + 2 * SCALE_BIAS - int(self.draw.choice(query.scales[is_delta])) // 8
            scale = min(max(8 * (exponent - self.draw.randint(-6, 34)) + self.draw.randrange(8), 0), 255)
            spread = self.draw.choice([1, 12, 128])
            low, high = (0, 1 << self.delta_bits) if is_delta else (-spread, spread)
            rows.append(Row(kind, slot, generator.integers(low, high, self.dim), scale))
        return rows


def corner_queries(heads: int, dim: int) -> Iterator[Query]:
    """Zero, extreme and alternating codes with the extreme scales and shifts, and shifts between them."""
    signs = np.where(np.arange(dim) % 2, 1, -1)
    patterns = [np.full(dim, n) for n in (0, 1, -1, 127, -127)]
    patterns += [127 * signs, np.where(np.arange(dim) == dim - 1, 127, 0)]
    for n, pattern in enumerate(patterns):
        codes = np.stack([np.roll(pattern, head) for head in range(heads)]).astype(np.int8)
        for scale, shift in ((0, -64), (0, 63), (255, -64), (255, 63), (129, 8 + n), (88, -23), (88, 0), (7, -22)):
            scales = np.full(heads, scale, np.uint8)
            yield Query((codes, np.roll(codes, 1, axis=1)), (scales, scales), shift)


def corner_rows(kinds: list[RowKind], dim: int, delta_bits: int, slot: int) -> Iterator[Row]:
    """The ends of the codes' range in all places, and codes at the borders of nibbles."""
    channel = np.arange(dim)
    for kind in kinds:
        if kind in (RowKind.COARSE, RowKind.FINE):
            top = (1 << delta_bits) - 1
            patterns = [np.full(dim, 0), np.full(dim, top), np.where(channel % 2, top, 0), channel % (top + 1)]
        else:
            patterns = [np.full(dim, n) for n in (LOWEST, HIGHEST, 0, -1, -8, 8, 15, 16)]
            patterns += [np.where(channel % 2, HIGHEST, LOWEST), np.where(channel == dim - 1, LOWEST, 0)]
        for n, pattern in enumerate(patterns):
            yield Row(kind, slot, pattern, (0, 60, 129, 255)[n % 4])


@cocotb.test()
async def matches_golden_on_corner_rows(dut):
    bench = Bench(dut)
    await start(dut)
    for n, query in enumerate(corner_queries(bench.heads, bench.dim)):
        await bench.load(n % 2, query)
        rows = list(corner_rows(bench.kinds, bench.dim, bench.delta_bits, n % 2))
        await bench.check(rows if n % 8 == 4 else bench.draw.sample(rows, 5))
    await bench.sink.expect_nothing()


@cocotb.test()
@cocotb.parametrize(
    (
        ("query_stall", "i_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("random", "none", "heavy"),
            ("none", "random", "bursty"),
            ("bursty", "heavy", "random"),
            ("none", "bursty", "every2"),
        ],
    )
)
async def matches_golden_under_stalls(dut, query_stall, i_stall, o_stall):
    bench = Bench(dut, query_stall, i_stall, o_stall)
    await start(dut)
    for _ in range(4):
        for slot in range(2):
            await bench.load(slot, bench.random_query())
        await bench.check(bench.random_rows(params()["rows"] // 4))
    await bench.sink.expect_nothing()


@cocotb.test()
async def rounds_ties_upwards(dut):
    """Dot products that are odd multiples of half a unit, of either sign."""
    bench = Bench(dut)
    await start(dut)
    codes = np.zeros((bench.heads, bench.dim), np.int8)
    codes[:, 0] = 1
    scales = np.zeros(bench.heads, np.uint8)
    for shift in (6, 7, 8):
        await bench.load(0, Query((codes, codes), (scales, scales), shift - 2 * SCALE_BIAS))
        await bench.check([Row(RowKind.INT8, 0, np.full(bench.dim, n), 0) for n in range(-9, 10)])


@cocotb.test()
async def loads_a_query_while_the_other_is_used(dut):
    bench = Bench(dut, o_stall="random")
    await start(dut)
    await bench.load(0, bench.random_query())
    for slot in (0, 1, 0, 1):
        rows = bench.random_rows(2 * bench.dim * bench.heads // 3, (slot,))
        bench.set_query(1 - slot, bench.random_query())
        await bench.check(rows)
        await bench.query.send([])
        await cycles(dut, 1)
    await bench.sink.expect_nothing()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    for kind in bench.kinds:
        await reset(dut)
        bench.set_query(0, bench.random_query())
        await bench.query.send([])
        spent = bench.query.transfers[-1] - bench.query.transfers[0] + 1
        assert spent == 3 * bench.heads * bench.dim, f"query taken in {spent} cycles"
        await cycles(dut, 1)
        rows = [row for row in bench.random_rows(200, (0,)) if row.kind is kind]
        await bench.check(rows[:1])
        measured = bench.sink.transfers[0] - bench.source.transfers[-1]
        assert measured == params()["latency"], f"latency {measured} cycles, not {params()['latency']} ({kind})"
        words = len(bench.source.transfers)
        await bench.check(rows)
        assert all(b - a == 1 for a, b in pairwise(bench.source.transfers[words:])), "words not taken in every cycle"
        assert all(b - a == words for a, b in pairwise(bench.sink.transfers[1:])), f"not one row in {words} cycles"


@cocotb.test()
async def gives_scores_without_new_words(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.load(0, bench.random_query())
    for row in bench.random_rows(10, (0,)):
        await bench.check([row])
        await cycles(dut, bench.draw.randint(1, 30))
    await bench.sink.expect_nothing()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, o_stall="random")
    await start(dut)
    for wait in (1, 2, 5, 11, 17, 40):
        for slot in range(2):
            await bench.load(slot, bench.random_query())
        for row in bench.random_rows(20):
            bench.send(row, 0)
        bench.set_query(0, bench.random_query())
        await cycles(dut, wait)
        await reset(dut)
        for slot in range(2):
            await bench.load(slot, bench.random_query())
        await bench.check(bench.random_rows(20))
        await bench.sink.expect_nothing()
