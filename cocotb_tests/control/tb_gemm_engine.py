"""Coroutines of the GemmEngine tests."""

from typing import Any

import cocotb

from cocotb_tests.control.gemm_bench import CONFIG, NOP, WORD_BYTES, Bench, PlacedJob
from cocotb_tests.gemm.jobs import Job, random_job, real_jobs
from cocotb_tests.golden.draws import generator
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import cycles, latency, reset, start
from golden.control.commands import LINE_BYTES, Error
from golden.control.memory import projection_words
from golden.gemm.core import ROTARY_TILES, ROW_TILES, Fault
from golden.gemm.epilogue import Function
from golden.gemm.prologue import Norm
from rtl.control._gemm_engine import GemmEngine

GEMM, DSQ, CONTROL = CONFIG.gemm, CONFIG.dsq, CONFIG.control


def random_jobs(label: str, count: int, **fields: Any) -> list[Job]:
    draw = generator("gemm engine", label)
    return [random_job(draw, CONFIG, **fields) for _ in range(count)]


@cocotb.test()
async def matches_golden_for_every_function(dut):
    """Functions with both layouts of pairs, norms, residuals and widths; tiles and words that are not full."""
    bench = Bench(dut)
    await start(dut)
    heads = 2 * DSQ.head_dim
    cases: list[dict[str, Any]] = [
        {"function": Function.ROTARY, "columns": heads, "rotary_columns": heads, "half_pairs": True},
        {"function": Function.ROTARY, "columns": heads + 3, "rotary_columns": heads // 2, "half_pairs": True},
        {"function": Function.ROTARY, "columns": heads + 1, "rotary_columns": heads, "half_pairs": False},
        {"function": Function.ROTARY, "columns": 5, "rotary_columns": 0},
        {"function": Function.SWIGLU, "columns": 2 * GEMM.columns + 2, "add_residual": True},
        {"function": Function.SWIGLU, "columns": 2, "narrow": True},
        {"function": Function.LINEAR, "columns": GEMM.columns + 1, "add_residual": True, "narrow": True},
        {"function": Function.LINEAR, "columns": 1, "add_residual": False},
        {"function": Function.LINEAR, "columns": 3 * GEMM.columns, "norm": Norm.LAYER},
        {"rows": 1, "k": 1},
        {"rows": GEMM.rows + 1, "k": GEMM.row_lanes + 1},
        {"rows": 2 * GEMM.rows, "k": 2 * GEMM.row_lanes},
    ]
    draw = generator("every function")
    for case in cases:
        await bench.check([random_job(draw, CONFIG, **case) for _ in range(2)])
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (("stall", "delay"), [("none", 0), ("random", 20), ("heavy", 5), ("bursty", 100)]),
)
async def matches_golden_under_stalls(dut, stall, delay):
    """Random commands back to back, NOPs among them."""
    bench = Bench(dut, stall, delay)
    await start(dut)
    for n in range(params()["batches"]):
        await bench.check(random_jobs(f"stalls {stall} {n}", 6))
    await bench.end()


@cocotb.test()
async def fetches_weights_ahead_of_the_go(dut):
    """Rows, magnitudes and residuals come into the scratchpad when the weights of this command and the next wait."""
    bench = Bench(dut)
    await start(dut)
    for n in range(3):
        bench.forget()
        placed = [bench.place(job) for job in random_jobs(f"go {n}", 3, columns=2 * GEMM.columns, k=8)]
        await bench.clear()
        bench.send(*(one.command for one in placed))
        await cycles(dut, 300)
        assert len(bench.requested) >= 3 * 2
        assert not bench.done.transfers or n
        for one in placed:
            await bench.load(one)
            bench.go.send_nowait([0])
            await bench.ended()
            await bench.compare(one)
    await bench.end()


@cocotb.test()
async def results_are_the_rows_of_the_next_command(dut):
    """With the magnitudes that the engine has written."""
    bench = Bench(dut, "random", 10)
    await start(dut)
    draw = generator("chain")
    (first,) = [random_job(draw, CONFIG, rows=GEMM.rows, columns=12, function=Function.LINEAR)]
    second = random_job(draw, CONFIG, rows=GEMM.rows, k=12, columns=GEMM.columns + 1)
    second = Job(**{**vars_of(second), "x": first.golden[0]})
    one = bench.place(first)
    two = bench.place(second, after=one)
    await bench.clear()
    await bench.load(one)
    await bench.load(two)
    bench.send(one.command, NOP, two.command)
    bench.go.send_nowait([0])
    await bench.ended()
    bench.go.send_nowait([0, 0])
    await bench.ended()
    await bench.ended()
    await bench.compare(one)
    await bench.compare(two)
    await bench.end()


def vars_of(job: Job) -> dict[str, Any]:
    """The fields that a job was made of."""
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


async def stops(bench: Bench, placed: list[PlacedJob], error: Error, detail: int = 0) -> None:
    """The second of three commands ends so; nothing hangs, no more commands are taken; a reset helps."""
    dut = bench.dut
    await bench.clear()
    for one in placed:
        await bench.load(one)
    bench.send(*(one.command for one in placed))
    bench.go.send_nowait([0, 0])
    await bench.ended()
    await bench.compare(placed[0])
    await bench.ended(error, detail)
    await cycles(dut, 400)
    # What was asked of memory is taken, whatever becomes of it.
    await bench.words.send([], timeout=500)
    bench.send(NOP, NOP, NOP)
    await cycles(dut, 50)
    assert not bench.command.idle
    await reset(dut)
    bench.forget()
    await bench.check(random_jobs("after an error", 1))


def second_of_three(bench: Bench, label: str, *, changes: dict[str, int], **fields: Any) -> list[PlacedJob]:
    bench.forget()
    jobs = [*random_jobs(f"{label} first", 1), *random_jobs(label, 1, **fields), *random_jobs(f"{label} last", 1)]
    return [bench.place(job, changes if n == 1 else None) for n, job in enumerate(jobs)]


@cocotb.test()
async def stops_at_commands_that_the_core_refuses(dut):
    bench = Bench(dut)
    await start(dut)
    most = (1 << 17) - 1
    cases: list[tuple[Fault, dict[str, int]]] = [
        (Fault.ROWS, {"rows": 0}),
        (Fault.ROWS, {"rows": ROW_TILES * GEMM.rows + 1}),
        (Fault.K, {"k": 0}),
        (Fault.K, {"k": most}),
        (Fault.COLUMNS, {"columns": 0}),
        (Fault.FUNCTION, {"function": 3}),
        (Fault.ROTARY, {"function": 1, "columns": most, "rotary_columns": 2}),
        (Fault.ROTARY, {"function": 1, "rows": ROTARY_TILES * GEMM.rows + 1, "rotary_columns": 0}),
    ]
    for fault, changes in cases:
        fields = {"rows": 1, "k": 1, "columns": 2, "function": Function.LINEAR, "add_residual": False}
        placed = second_of_three(bench, f"refused {changes}", changes=changes, **fields)
        await stops(bench, placed, Error.GEMM, fault)


@cocotb.test()
async def stops_at_words_that_fail(dut):
    """A word of angles, of parameters, of weights, the last one; one outside of the window or of all addresses."""
    bench = Bench(dut, "random", 10)
    await start(dut)
    fields = {"function": Function.ROTARY, "columns": 2 * DSQ.head_dim + 1, "k": 9, "rows": GEMM.rows}
    parameters, weights = projection_words(9, tile_columns=GEMM.columns, bus_bits=DSQ.bus_bits)
    tiles = -(-fields["columns"] // GEMM.columns)
    last = tiles * (parameters + weights) - 1
    for name, word in (("angles", 0), ("stream", 0), ("stream", parameters + 1), ("stream", last)):
        placed = second_of_three(bench, f"word {name} {word}", changes={}, **fields)
        bench.bad_words = {placed[1].operands[name] * LINE_BYTES // WORD_BYTES + word}
        await stops(bench, placed, Error.MEMORY)
    placed = second_of_three(bench, "window", changes={}, **fields)
    bench.window_end = placed[1].operands["stream"] * LINE_BYTES // WORD_BYTES + last
    await stops(bench, placed, Error.ADDRESS)
    if CONFIG.cache.addr_bits < 38:
        beyond = 1 << CONFIG.cache.addr_bits - 6
        for name in ("angles", "stream"):
            for line in (beyond - (name == "stream"), beyond, (1 << 32) - 1):
                placed = second_of_three(bench, f"beyond {name} {line}", changes={name: line}, **fields)
                await stops(bench, placed, Error.ADDRESS)


@cocotb.test()
async def stops_at_places_outside_of_the_scratchpad(dut):
    """First word or a later row behind the end, of rows, results, residuals, magnitudes; also beyond 20 bits."""
    bench = Bench(dut)
    await start(dut)
    fields = {"rows": 2, "function": Function.LINEAR, "add_residual": True, "columns": 5, "k": 9}
    words, rows = CONTROL.scratch_words, CONTROL.scratch_rows
    for changes in (
        {"source": words},
        {"source": words - 1},
        {"source": words - 8, "source_stride": 4095},
        {"source": (1 << 20) - 1, "source_stride": 1},
        {"target": words},
        {"target": words - 8, "target_stride": 4095},
        {"target": (1 << 20) - 1, "target_stride": 1},
        {"residual": words},
        {"residual": words - 8, "residual_stride": 4095},
        {"residual": (1 << 20) - 1, "residual_stride": 1},
        {"source_magnitude": rows - 1},
        {"source_magnitude": 65535},
        {"target_magnitude": rows - 1},
        {"target_magnitude": 65535},
    ):
        placed = second_of_three(bench, f"outside {changes}", changes=changes, **fields)
        await stops(bench, placed, Error.SCRATCHPAD)


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    for wait in params()["reset_waits"]:
        bench.forget()
        placed = [bench.place(job) for job in random_jobs(f"dropped {wait}", 4)]
        for one in placed:
            await bench.load(one)
        bench.send(*(one.command for one in placed))
        bench.go.send_nowait([0] * 4)
        await cycles(dut, wait)
        bench.forget()
        await reset(dut)
        await bench.check(random_jobs(f"after {wait}", 2))
    await bench.end()


@cocotb.test()
async def meets_latency(dut):
    """From a command to the first request of memory; NOPs from go to end."""
    bench = Bench(dut)
    await start(dut)
    fields = {"rows": 1, "columns": 2, "function": Function.LINEAR}
    placed = bench.place(*random_jobs("latency", 1, **fields))
    await bench.clear()
    await bench.load(placed)
    bench.send(placed.command)
    await cycles(dut, 30)
    assert latency(bench.command, bench.requests) == GemmEngine.LATENCY
    bench.go.send_nowait([0])
    await bench.ended()
    await bench.compare(placed)
    bench.send(NOP)
    await cycles(dut, 20)
    bench.go.send_nowait([0])
    await bench.ended()
    assert latency(bench.go, bench.done, -1, -1) == GemmEngine.NOP_LATENCY
    await bench.end()


if params().get("steady"):

    @cocotb.test()
    async def keeps_the_array_busy(dut):
        """Memory that gives a word a cycle: cycles of a command alone, and of each that follows another."""
        bench = Bench(dut)
        await start(dut)
        for rows, k, columns, most in params()["steady"]:
            fields = {"rows": rows, "k": k, "columns": columns, "function": Function.LINEAR, "add_residual": False}
            jobs = random_jobs(f"steady {rows} {k} {columns}", 4, norm=Norm.RMS, **fields)
            bench.forget()
            placed = [bench.place(job) for job in jobs]
            await bench.clear()
            for one in placed:
                await bench.load(one)
            begin = bench.done.engine.cycle
            bench.send(*(one.command for one in placed))
            bench.go.send_nowait([0] * len(placed))
            first = len(bench.done.transfers)
            for _ in placed:
                await bench.ended()
            ends = bench.done.transfers[first:]
            ideal = -(-rows // GEMM.rows) * -(-columns // GEMM.columns) * k
            each = [after - before for before, after in zip([begin, *ends], ends, strict=False)]
            cocotb.log.info("%s: steps %d, cycles %s", (rows, k, columns), ideal, each)
            assert max(each[1:]) <= most * ideal, each
            for one in placed:
                await bench.compare(one)
        await bench.end()


if params().get("real"):

    @cocotb.test()
    async def matches_golden_on_real_projections(dut):
        """Weights and activations of SmolLM2: all four projections of some layers, for some or all columns."""
        bench = Bench(dut, "random", 30)
        await start(dut)
        layers, batch, columns = params()["real"]
        jobs = [job.part(columns) if columns else job for job in real_jobs(CONFIG, layers, batch)]
        for at in range(0, len(jobs), 2):
            await bench.check(jobs[at : at + 2])
        await bench.end()
