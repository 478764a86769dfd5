"""Driver of `sim.gemm`: commands played by HDL, every result against golden, cycles and transfers counted.

The folder that the parameters name holds the runs, `runs.pkl`. The rows go to `results.json` there, the first
difference as a sentence to `difference`.
"""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, SimTimeoutError, with_timeout

from cocotb_tests.gemm.jobs import Job
from cocotb_tests.gemm.players import INPUTS, OUTPUTS
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import PERIOD_NS
from cocotb_tests.lib.shapes import codec
from rtl.config import AcceleratorConfig, DsqConfig, GemmConfig
from rtl.gemm.core import GemmCore

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["config"]["dsq"]), gemm=GemmConfig(**params()["config"]["gemm"]))
FOLDER = Path(params()["folder"])
MOST_CYCLES = 40_000_000


@dataclass(frozen=True, kw_only=True)
class Run:
    """Commands one behind the other."""

    labels: dict[str, Any]
    jobs: list[Job]
    weight_rate: int


class DifferenceError(AssertionError):
    """Hardware and golden differ; the message says where."""


def words_of(jobs: Sequence[Job]) -> dict[str, list[int]]:
    """What the inputs play."""
    encode, _ = codec(SHAPES["i_command"], SHAPES["i_command"].size)
    made: dict[str, list[int]] = {name: [] for name in INPUTS}
    for job in jobs:
        made["i_command"].append(encode(job.fields))
        made["i_row"] += job.row_words()
        made["i_weight"] += job.weight_words()
        made["i_column"] += job.column_words()
        made["i_rotary"] += job.rotary_words()
        made["i_residual"] += job.residual_words()
    return made


SHAPES: dict[str, data.Layout] = {
    name: member.signature.members["payload"].shape for name, member in GemmCore(CONFIG).signature.members.items()
}


def dumped(name: str) -> list[int]:
    """The words of an output."""
    lines = Path(f"{name}.dump").read_text().splitlines()
    return [int(line, 16) for line in lines if not line.startswith(("//", "@"))]


def field(name: str, words: Sequence[int], *path: Any) -> list[int]:
    """A field of the words of an output."""
    shape, offset = SHAPES[name], 0
    for key in path:
        offset += shape[key].offset
        shape = shape[key].shape
    leaf = Shape.cast(shape)
    mask, sign = (1 << leaf.width) - 1, (1 << leaf.width - 1) if leaf.signed else 0
    return [((word >> offset & mask) ^ sign) - sign for word in words]


def compare(what: str, got: Any, expected: Any) -> None:
    """`DifferenceError` at the first place that differs."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        raise DifferenceError(f"{what}: {got.shape} instead of {expected.shape}")
    places = np.argwhere(got != expected)
    if len(places):
        at = tuple(int(place) for place in places[0])
        raise DifferenceError(f"{what}, {at} is {got[at]}, golden {expected[at]}")


def check(run: Run) -> None:
    """All outputs of a run."""
    results, rows = dumped("o_result"), dumped("o_row")
    places = [field("o_result", results, name) for name in ("row", "column", "second", "count")]
    lanes = [field("o_result", results, "elements", n) for n in range(2 * CONFIG.gemm.pairs)]
    places, lanes = np.array(places).T, np.array(lanes).T
    magnitudes = np.array([field("o_row", rows, name) for name in ("row", "magnitude")]).T
    beat = row = 0
    for number, job in enumerate(run.jobs):
        what = f"{run.labels}, command {number}"
        expected, counts = job.elements(job.golden[0])
        span = slice(beat, beat + len(job.places))
        compare(f"{what}: places", places[span], job.places)
        compare(f"{what}: results", np.where(counts, lanes[span], 0), expected)
        compare(f"{what}: magnitudes", magnitudes[row : row + job.rows], list(enumerate(job.golden[1].tolist())))
        beat, row = span.stop, row + job.rows
    compare(f"{run.labels}: faults", dumped("o_done"), [0] * len(run.jobs))


async def play(dut: Any, run: Run) -> dict[str, int]:
    """Load, run, dump; what was counted."""
    played = words_of(run.jobs)
    for name, words in played.items():
        if len(words) > INPUTS[name]:
            raise ValueError(f"{name} has room for {INPUTS[name]} words, not {len(words)}")
        Path(f"{name}.load").write_text("@0\n" + "".join(f"{word:x}\n" for word in words))
        getattr(dut, f"words_{name}").value = len(words)
    taken = {
        "o_result": sum(len(job.places) for job in run.jobs),
        "o_row": sum(job.rows for job in run.jobs),
        "o_done": len(run.jobs),
    }
    for name, count in taken.items():
        getattr(dut, f"words_{name}").value = count
    dut.weight_rate.value = run.weight_rate
    dut.rst.value, dut.load.value = 1, 1
    await ClockCycles(dut.clk, 2)
    dut.rst.value, dut.load.value = 0, 0
    await ClockCycles(dut.clk, 2)
    dut.go.value = 1
    try:
        await with_timeout(RisingEdge(dut.finished), MOST_CYCLES * PERIOD_NS, "ns")
    except SimTimeoutError:
        raise AssertionError(f"{run.labels}: not done after {MOST_CYCLES} cycles") from None
    await ClockCycles(dut.clk, 40)
    counted = {name: int(getattr(dut, f"count_{name}").value) for name in (*INPUTS, *OUTPUTS)}
    for name, count in {**{name: len(words) for name, words in played.items()}, **taken}.items():
        compare(f"{run.labels}: words of {name}", counted[name], count)
    counted |= {name: int(getattr(dut, name).value) for name in ("cycles", "elements")}
    dut.go.value, dut.dump.value = 0, 1
    await ClockCycles(dut.clk, 1)
    dut.dump.value = 0
    await ClockCycles(dut.clk, 2)
    return counted


@cocotb.test()
async def multiplies(dut):
    for name in ("load", "dump", "go", "weight_rate", "rst"):
        getattr(dut, name).value = 0
    Clock(dut.clk, PERIOD_NS, unit="ns").start()
    await ClockCycles(dut.clk, 2)
    rows = []
    try:
        for run in pickle.loads((FOLDER / "runs.pkl").read_bytes()):
            counted = await play(dut, Run(**run))
            check(Run(**run))
            rows.append({**run["labels"], "commands": len(run["jobs"]), **counted})
            (FOLDER / "results.json").write_text(json.dumps(rows))
            (FOLDER / "progress").write_text(str(len(rows)))
    except DifferenceError as error:
        (FOLDER / "difference").write_text(str(error).strip().splitlines()[0])
        raise
