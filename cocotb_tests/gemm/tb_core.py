"""Coroutines of the GemmCore tests."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.gemm.jobs import Job, limits, random_job, real_jobs
from cocotb_tests.golden.draws import generator
from cocotb_tests.lib import params, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.gemm.core import ROTARY_TILES, ROW_TILES, Fault
from golden.gemm.epilogue import Function
from golden.gemm.prologue import Norm
from rtl.config import AcceleratorConfig, DsqConfig, GemmConfig
from rtl.gemm.core import GemmCore

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["dsq"]), gemm=GemmConfig(**params()["gemm"]))
GEMM = CONFIG.gemm


WORDS: dict[str, Callable[[Job], list[int]]] = {
    "i_row": Job.row_words,
    "i_weight": Job.weight_words,
    "i_column": Job.column_words,
    "i_rotary": Job.rotary_words,
}


class Bench:
    """The core's streams, a memory of residuals, commands against golden."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        members = GemmCore(CONFIG).signature.members
        shapes = {name: member.signature.members["payload"].shape for name, member in members.items()}
        self.sources = {
            name: StreamSource(
                dut,
                name,
                shape=shapes[name] if name == "i_command" else None,
                stall=stalls.named(i_stall, name),
            )
            for name in ("i_command", "i_row", "i_weight", "i_column", "i_rotary", "i_residual")
        }
        self.sinks = {
            name: StreamSink(dut, name, shape=shapes[name], stall=stalls.named(o_stall, name))
            for name in ("o_result", "o_row", "o_done", "o_residual")
        }
        self._residuals: deque[tuple[tuple[int, int], int]] = deque()
        self._beats = self._rows = self._ended = 0
        cocotb.start_soon(self._answer())

    async def _answer(self) -> None:
        """Residuals, each when it is asked for."""
        while True:
            for asked in await self.sinks["o_residual"].recv(1, timeout=1 << 40):
                place, word = self._residuals.popleft()
                assert (int(asked["row"]), int(asked["column"])) == place
                self.sources["i_residual"].send_nowait([word])

    def forget(self) -> None:
        """A reset has dropped everything."""
        self._residuals.clear()
        self._beats = self._rows = self._ended = 0

    def send(self, jobs: Sequence[Job], *, without: str = "") -> None:
        """All that the commands need, or all but the words of one stream."""
        for job in jobs:
            self.sources["i_command"].send_nowait([job.fields])
            if job.fault is Fault.NONE:
                for name, words in WORDS.items():
                    if name != without:
                        self.sources[name].send_nowait(words(job))
                places = [(int(row), int(column)) for row, column, _, _ in job.places]
                if words := job.residual_words():
                    self._residuals.extend(zip(places, words, strict=True))

    async def check(self, jobs: Sequence[Job]) -> None:
        """Send commands and compare all that comes out."""
        self.send(jobs)
        for number, job in enumerate(jobs):
            await self.compare(job, f"command {number} {job.name}: {job.fields}")

    async def compare(self, job: Job, where: str) -> None:
        """One command's results, magnitudes and end."""
        if job.fault is Fault.NONE:
            results = await self.sinks["o_result"].recv(len(job.places))
            got = [[int(result[name]) for name in ("row", "column", "second", "count")] for result in results]
            np.testing.assert_array_equal(got, job.places, err_msg=where)
            rows, magnitudes = job.golden
            elements, counts = job.elements(rows)
            got = np.array([list(result["elements"]) for result in results])
            np.testing.assert_array_equal(np.where(counts, got, 0), elements, err_msg=where)
            totals = await self.sinks["o_row"].recv(job.rows)
            got = [(int(total["row"]), int(total["magnitude"])) for total in totals]
            assert got == list(enumerate(magnitudes.tolist())), where
        (done,) = await self.sinks["o_done"].recv(1)
        assert done["fault"].value == job.fault, f"{where}: {done['fault']}"
        done_at = self.sinks["o_done"].transfers[self._ended]
        self._ended += 1
        if job.fault is Fault.NONE:
            self._beats += len(job.places)
            self._rows += job.rows
            assert done_at > self.sinks["o_result"].transfers[self._beats - 1], where
            assert done_at > self.sinks["o_row"].transfers[self._rows - 1], where

    async def end(self) -> None:
        """Nothing more comes, all data have been taken, once."""
        for sink in self.sinks.values():
            await sink.expect_nothing(30)
        assert [name for name, source in self.sources.items() if not source.idle] == []
        assert not self._residuals


def sizes(of_tile: int, most: int) -> list[int]:
    """Around the size of a tile."""
    around = {1, 2, of_tile - 1, of_tile, of_tile + 1, 2 * of_tile + 1}
    return sorted(size for size in around if 1 <= size <= most)


def random_jobs(label: str, count: int, **fields: Any) -> list[Job]:
    """Random commands."""
    draw = generator("gemm core", label)
    return [random_job(draw, CONFIG, **fields) for _ in range(count)]


@cocotb.test()
async def matches_golden_in_edge_tiles(dut):
    """Sizes around those of a tile and of a word of codes; all functions and norms."""
    bench = Bench(dut)
    await start(dut)
    draw = generator("edges")
    rows, columns = sizes(GEMM.rows, 3 * GEMM.rows), sizes(GEMM.columns, 3 * GEMM.columns)
    ks = [*sizes(GEMM.row_lanes, GEMM.max_k), min(GEMM.weight_words, GEMM.max_k)]
    cases = [(m, n, k) for m in rows for n in columns for k in ks]
    draw.shuffle(cases)
    cases = cases[: params()["cases"]]
    await bench.check([random_job(draw, CONFIG, rows=m, columns=n, k=k) for m, n, k in cases])
    await bench.end()


@cocotb.test()
async def matches_golden_for_every_function(dut):
    """Functions, norms, pairs in both layouts, both widths, residuals; heads that end within a tile."""
    bench = Bench(dut)
    await start(dut)
    draw, jobs = generator("functions"), []
    head_dim = CONFIG.dsq.head_dim
    for function in Function:
        for norm in Norm:
            for narrow in (False, True):
                for option in (False, True):
                    fields = {"half_pairs" if function is Function.ROTARY else "add_residual": option}
                    turned = {"rotary_columns": head_dim} if function is Function.ROTARY else {}
                    jobs.append(
                        random_job(
                            draw,
                            CONFIG,
                            columns=2 * head_dim + 4,
                            function=function,
                            norm=norm,
                            narrow=narrow,
                            **fields,
                            **turned,
                        )
                    )
    await bench.check(jobs)
    await bench.end()


@cocotb.test()
async def matches_golden_at_its_limits(dut):
    """The longest rows, as many rows as there is room for, weights that do not stay, the most rows with angles."""
    bench = Bench(dut)
    await start(dut)
    draw, c = generator("limits"), GEMM
    words = -(-c.act_words // c.row_lanes)
    tiles = min(ROW_TILES, words)
    cases = [
        {"rows": c.rows, "k": c.max_k},
        {
            "rows": tiles * c.rows,
            "k": min(1 + (words // tiles - 1) * c.row_lanes, c.weight_words),
            "function": Function.LINEAR,
        },
        {"rows": min(ROTARY_TILES, words) * c.rows, "k": 1, "function": Function.ROTARY},
    ]
    longest = min(c.weight_words, c.max_k)
    if fitting := words // -(-longest // c.row_lanes):
        cases.append({"rows": min(fitting, ROW_TILES, ROTARY_TILES) * c.rows, "k": longest})
    # Every size twice in a row: the second one's rows are loaded beside the first one's.
    jobs = [random_job(draw, CONFIG, **case) for case in cases for _ in range(2)]
    assert all(job.fault is Fault.NONE for job in jobs)
    await bench.check(jobs)
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("random", "random"), ("heavy", "none"), ("none", "heavy"), ("bursty", "bursty")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(random_jobs(f"stalls {i_stall} {o_stall}", params()["stalled"]))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(late=list(WORDS))
async def waits_for_what_is_late(dut, late):
    """One input comes long after the others, angles also when no column is turned."""
    bench = Bench(dut)
    await start(dut)
    head_dim, columns = CONFIG.dsq.head_dim, 2 * CONFIG.dsq.head_dim
    for turned in (0, head_dim, columns):
        fields = {"function": Function.ROTARY, "columns": columns, "rotary_columns": turned}
        jobs = random_jobs(f"late {late} {turned}", 2, rows=GEMM.rows + 1, k=GEMM.row_lanes + 1, **fields)
        bench.send(jobs, without=late)
        await cycles(dut, 400)
        for job in jobs:
            bench.sources[late].send_nowait(WORDS[late](job))
        for job in jobs:
            await bench.compare(job, f"{late} is late, {turned} columns are turned")
    await bench.end()


def refused_jobs(draw: np.random.Generator) -> list[Job]:
    """Every reason to refuse, and the nearest commands that are taken."""
    c, most = GEMM, (1 << 17) - 1
    words = -(-c.act_words // c.row_lanes)
    base = random_job(draw, CONFIG, rows=1, k=1, columns=2, function=Function.LINEAR, add_residual=False)
    turns = {"function": int(Function.ROTARY)}
    head_dim = CONFIG.dsq.head_dim
    changes = [
        {"rows": 0},
        {"rows": ROW_TILES * c.rows + 1},
        {"rows": (1 << 16) - 1},
        {"k": 0},
        {"k": c.max_k + 1},
        {"k": most},
        {"columns": 0},
        {"columns": 1, "function": int(Function.SWIGLU)},
        {"function": 3},
        {"norm": 3},
        {**turns, "add_residual": 1},
        {**turns, "columns": most, "rotary_columns": head_dim + 2},
        {**turns, "columns": most, "rotary_columns": head_dim - 2},
        {**turns, "columns": head_dim - 1, "rotary_columns": head_dim},
        {**turns, "columns": 2 * head_dim, "rotary_columns": most // head_dim * head_dim},
        {**turns, "rows": ROTARY_TILES * c.rows + 1, "rotary_columns": 0},
        {"rows": 0, "k": 0, "columns": 0, "function": 3},
    ]
    # The least rows whose codes have no room, and the least elements that are too many for several row tiles.
    tiles = words // -(-c.max_k // c.row_lanes) + 1
    changes.append({"rows": (tiles - 1) * c.rows + 1, "k": c.max_k})
    if c.weight_words < c.max_k:
        changes.append({"rows": c.rows + 1, "k": c.weight_words + 1})
    return [replace(base, changes=change) for change in changes]


@cocotb.test()
async def refused_commands_take_no_data(dut):
    """Commands of every fault, one and several at a time, between others."""
    bench = Bench(dut)
    await start(dut)
    draw = generator("refused")
    refused = refused_jobs(draw)
    assert Fault.NONE not in {job.fault for job in refused}
    wanted = set(Fault) - {Fault.NONE}
    if GEMM.weight_words >= GEMM.max_k or 2 * GEMM.max_k > GEMM.act_words:
        wanted -= {Fault.WEIGHTS}
    assert wanted <= {job.fault for job in refused}, limits(CONFIG)
    jobs = []
    for job in refused:
        jobs += [job, *random_jobs(f"between {len(jobs)}", 1, rows=1, columns=int(draw.integers(1, 9)))]
    await bench.check([*jobs, *refused, *random_jobs("after refused ones", 2)])
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", "random")
    await start(dut)
    for wait in params()["reset_waits"]:
        bench.send(random_jobs(f"dropped {wait}", 4))
        await cycles(dut, wait)
        await reset(dut)
        bench.forget()
        await bench.check(random_jobs(f"after {wait}", 3))
    await bench.end()


@cocotb.test()
async def meets_latency(dut):
    """From the last beat of a row to the first result of a tile, when all else is there."""
    bench = Bench(dut)
    await start(dut)
    job = random_job(
        generator("latency"),
        CONFIG,
        rows=1,
        k=1,
        columns=2,
        norm=Norm.NONE,
        function=Function.LINEAR,
        add_residual=False,
    )
    row = bench.sources["i_row"]
    bench.send([job], without="i_row")
    await cycles(dut, 60)
    row.send_nowait(job.row_words())
    await bench.compare(job, "latency")
    assert latency(row, bench.sinks["o_result"]) == GemmCore.latency(CONFIG)
    await bench.end()


async def busy(bench: Bench, jobs: Sequence[Job]) -> float:
    """Products in shares of those that the array could make, from the first row's transfer to the last result."""
    begin = bench.sources["i_row"].engine.cycle
    await bench.check(jobs)
    spent = bench.sinks["o_result"].transfers[-1] - begin
    products = sum(job.rows * job.k * job.columns for job in jobs)
    return products / (spent * GEMM.rows * GEMM.columns)


@cocotb.test()
async def keeps_the_array_busy(dut):
    """Commands back to back: as many products as promised for their shape (rows, k, columns)."""
    bench = Bench(dut)
    await start(dut)
    for shape, count, least in params()["utilization"]:
        draw = generator("busy", *shape)
        rows, k, columns = shape
        fields = {"rows": rows, "k": k, "columns": columns, "function": Function.LINEAR, "add_residual": False}
        share = await busy(bench, [random_job(draw, CONFIG, norm=Norm.NONE, **fields) for _ in range(count)])
        cocotb.log.info("%s x %d: utilization %.2f%%", shape, count, 100 * share)
        assert share >= least, f"{shape}: {share:.4f}"
    await bench.end()


if params().get("real"):

    @cocotb.test()
    async def matches_golden_on_real_projections(dut):
        """Weights and activations of SmolLM2: all four projections of some layers, for some or all columns."""
        bench = Bench(dut)
        await start(dut)
        layers, batch, columns = params()["real"]
        for job in real_jobs(CONFIG, layers, batch):
            cocotb.log.info("%s", job.name)
            await bench.check([job.part(columns) if columns else job])
        await bench.end()
