"""Coroutines of the QueryPreparer tests."""

from collections.abc import Sequence
from dataclasses import dataclass

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.dsq.rows import corner_rows, random_rows, scale_rows
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.mha.query import prepare_query
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.mha.query import QueryPreparer

LARGEST_SHAPE = (1 << 12) - 1


@dataclass(frozen=True)
class Item:
    """A query: rows [G, head_dim], its slot, and K shapes [head_dim] if it brings new ones."""

    rows: NDArray[np.int16]
    slot: int
    k_shape: NDArray[np.int64] | None = None


class Bench:
    """The design's streams, and queries sent through them against golden."""

    def __init__(self, dut, shape_stall: str = "none", i_stall: str = "none", o_stall: str = "none") -> None:
        tables = params()["config"]
        self.config = AcceleratorConfig(dsq=DsqConfig(**tables["dsq"]), mha=MhaConfig(**tables["mha"]))
        self.heads, self.dim, self.lanes = self.config.mha.q_heads, self.config.dsq.head_dim, self.config.dsq.lanes
        self.dut = dut
        self.draw = rng("bench", shape_stall, i_stall, o_stall)
        self.k_shape: NDArray[np.int64] | None = None
        self.shape = StreamSource(dut, "i_shape", stall=stalls.named(shape_stall, "shape"))
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", shape=QueryPreparer(self.config).o_shape, stall=stalls.named(o_stall, "o"))

    def send(self, item: Item) -> None:
        """Queue a query and its shapes; flags count in the first beat and are random in the others."""
        beats = item.rows.astype("<i2").reshape(-1, self.lanes)
        flags = [int(item.k_shape is not None) | item.slot << 1, *(self.draw.getrandbits(3) for _ in beats[1:])]
        self.source.send_nowait(
            int.from_bytes(beat.tobytes(), "little") << 3 | flag for beat, flag in zip(beats, flags, strict=True)
        )
        if item.k_shape is not None:
            self.shape.send_nowait(item.k_shape.tolist())

    async def check(self, items: Sequence[Item]) -> None:
        """Send queries at once and compare all that comes out."""
        for item in items:
            self.send(item)
        for number, item in enumerate(items):
            self.k_shape = self.k_shape if item.k_shape is None else item.k_shape
            query = prepare_query(item.rows, self.k_shape)
            forms = ((query.codes, query.scale), (query.shaped_codes, query.shaped_scale))
            for head in range(self.heads):
                for form, (codes, scale) in enumerate(forms):
                    where = (
                        f"query {number} head {head} form {form} {item.rows[head].tolist()} by {self.k_shape.tolist()}"
                    )
                    got = await self.sink.recv(self.dim)
                    assert [o.code for o in got] == codes[head].tolist(), f"{where}: {got}, not {codes[head]}"
                    assert [o.scale for o in got] == [scale[head]] * self.dim, f"{where}: {got}, not {scale[head]}"
                    assert [o.channel for o in got] == list(range(self.dim)), f"{where}: {got}"
                    end = [head == self.heads - 1 and form == 1 and c == self.dim - 1 for c in range(self.dim)]
                    assert [(o.slot, o.head, o.shaped, o.last) for o in got] == [
                        (item.slot, head, form, last) for last in end
                    ], f"{where}: {got}"

    def random_shape(self) -> NDArray[np.int64]:
        """Shapes near one or of any size."""
        generator = np.random.default_rng(self.draw.getrandbits(64))
        low, high = self.draw.choice([(128, 512), (1, LARGEST_SHAPE + 1)])
        return generator.integers(low, high, self.dim)

    def random_items(self, count: int) -> list[Item]:
        """Queries of several magnitudes; the first brings shapes, of the others every third."""
        rows = random_rows(self.draw, count * self.heads, self.dim).reshape(count, self.heads, self.dim)
        shapes = [self.random_shape() if n == 0 or self.draw.random() < 1 / 3 else None for n in range(count)]
        return [Item(r, self.draw.getrandbits(2), shape) for r, shape in zip(rows, shapes, strict=True)]


@cocotb.test()
@cocotb.parametrize(kind=["corner", "scale"])
async def matches_golden_on_corner_rows(dut, kind):
    """Extremes, spikes and what saturates the rotation, against the smallest and largest shapes."""
    bench = Bench(dut)
    await start(dut)
    rows = {"corner": corner_rows, "scale": scale_rows}[kind](bench.dim)
    rows = rows[: len(rows) // bench.heads * bench.heads].reshape(-1, bench.heads, bench.dim)
    shapes = [np.full(bench.dim, n) for n in (1, 256, LARGEST_SHAPE)] + [bench.random_shape()]
    items = [Item(r, n % 2, shapes[n // 2 % 4] if n % 2 == 0 else None) for n, r in enumerate(rows)]
    await bench.check(items)
    await bench.sink.expect_nothing(300)


@cocotb.test()
@cocotb.parametrize(
    (
        ("shape_stall", "i_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("random", "none", "heavy"),
            ("none", "heavy", "bursty"),
            ("heavy", "bursty", "random"),
            ("none", "random", "every2"),
        ],
    )
)
async def matches_golden_under_stalls(dut, shape_stall, i_stall, o_stall):
    bench = Bench(dut, shape_stall, i_stall, o_stall)
    await start(dut)
    await bench.check(bench.random_items(params()["queries"]))
    await bench.sink.expect_nothing(300)


@cocotb.test()
async def new_shapes_leave_the_query_before_alone(dut):
    """Shapes offered early are taken when the query before has left, and not before they are asked for."""
    bench = Bench(dut)
    await start(dut)
    for _ in range(3):
        first, second = bench.random_items(2)
        await bench.check([first, Item(second.rows, 1, bench.random_shape())])
    bench.shape.send_nowait([0])
    await bench.check([Item(second.rows, 0)])
    assert not bench.shape.idle, "a shape was taken without being asked for"


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    items = [Item(item.rows, 0) for item in bench.random_items(6)]
    await bench.check([Item(items[0].rows, 0, bench.random_shape())])
    await cycles(dut, 20)
    first = len(bench.source.transfers), len(bench.sink.transfers)
    await bench.check(items)
    measured = bench.sink.transfers[first[1]] - bench.source.transfers[first[0] + bench.config.dsq.row_beats - 1]
    assert measured == params()["latency"], f"latency {measured} cycles, not {params()['latency']}"
    starts = np.array(bench.sink.transfers[first[1] :: 2 * bench.heads * bench.dim])
    periods = np.diff(starts)
    cocotb.log.info("queries %s cycles apart, at most %d", periods.tolist(), params()["query_cycles"])
    assert (periods <= params()["query_cycles"]).all(), f"queries {periods} cycles apart"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "none", "random")
    await start(dut)
    for wait in (3, 2 * bench.dim, 3 * bench.dim + 9, 6 * bench.dim, 9 * bench.dim + 5):
        for item in bench.random_items(3):
            bench.send(item)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(bench.random_items(2))
        await bench.sink.expect_nothing(300)
