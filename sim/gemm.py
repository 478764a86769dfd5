"""Projections on the RTL of the GEMM core: cycles, utilization and traffic of cubes, and of models."""

import argparse
import json
import pickle
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from cocotb_tests.gemm.jobs import Job, random_job, real_jobs
from cocotb_tests.gemm.players import RATE_ONE, CorePlayers
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from golden.errors import UserError, main_guard
from golden.gemm.epilogue import Function
from golden.gemm.prologue import Norm
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig, GemmConfig, preset
from sim.progress import watch
from sim.simulators import ROOT, SimulationError

__all__ = ["SHAPES", "TABLES", "DifferenceError", "Run", "core_cycles", "main", "predicted_cycles", "simulate"]

#: rows, k, columns of cubes that follow each other, and how often
OPENGEMM = [(8, 8, 8, 64), (16, 16, 16, 32), (32, 32, 32, 16), (64, 64, 64, 4), (128, 128, 128, 2), (128, 256, 256, 1)]
GEMMINI = [(64, 64, 64, 1), (128, 128, 128, 1), (256, 256, 256, 1)]
#: k, columns and what the command does beside
LLAMA = {
    "qkv": (4096, 12288, {"norm": Norm.RMS, "function": Function.ROTARY, "rotary_columns": 8192, "narrow": True}),
    "attention output": (4096, 4096, {"add_residual": True}),
    "gate and up": (4096, 22016, {"norm": Norm.RMS, "function": Function.SWIGLU}),
    "down": (11008, 4096, {"add_residual": True}),
}
LLAMA_BATCH = 5
#: column tiles that are simulated of each
LLAMA_TILES = (8, 16, 32)
#: how far a predicted number of cycles may be off
TOLERANCE = 0.02
SMOLLM2_BATCHES = (5, 8)
SMOLLM2_LAYER = 14
#: one projection on four cores, small enough to run each case: k, columns
CORES, CORE_SHAPE = 4, (576, 768)
CORE_BATCHES = (1, 5, 8, 20)
#: bytes a cycle for the weights of all cores
CORE_BANDWIDTHS = (4, 8, 16, 32)
SHAPES = ("gemmini", "opengemm", "smollm2", "llama2-7b")
TABLES = ("traffic", "cores")
PLAIN = {"norm": Norm.NONE, "function": Function.LINEAR, "narrow": False, "add_residual": False}
#: bytes of an activation between passes that are not fused: 16 bits
ACTIVATION_BYTES = 2


class DifferenceError(Exception):
    """Hardware and golden disagree; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Commands one behind the other, with names for the row that comes of them."""

    labels: dict[str, Any]
    jobs: list[Job]
    weight_rate: int = RATE_ONE


def simulate(
    config: AcceleratorConfig, runs: Sequence[Run], *, folder: Path, advance: Callable[[int], object]
) -> list[dict[str, Any]]:
    """The runs on Verilator, a row with cycles and transfers for each; every output is compared with golden.

    ``advance(1)`` is called for every finished run. Raises `DifferenceError` at the first difference.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "runs.pkl").write_bytes(pickle.dumps([{**vars(run)} for run in runs]))
    run = partial(
        launch.run,
        CorePlayers(config),
        name="gemm",
        tb="cocotb_tests.tb_gemm",
        parameters={"folder": str(folder), "config": asdict(config)},
        simulators="verilator",
        sources=DRAM_SOURCES,
    )
    try:
        watch(run, folder / "progress", advance)
    except AssertionError:
        if (folder / "difference").exists():
            raise DifferenceError((folder / "difference").read_text()) from None
        raise
    rows = json.loads((folder / "results.json").read_text())
    return [figures(row, run, config.gemm) for row, run in zip(rows, runs, strict=True)]


def figures(row: dict[str, Any], run: Run, gemm: GemmConfig) -> dict[str, Any]:
    """A row with what follows from its counts; bytes are those of elements, weights and parameters, unpadded."""
    job = run.jobs[0]
    elements = 2 if job.command.narrow else 4
    products = sum(job.rows * job.k * job.columns for job in run.jobs)
    weights = row["i_weight"] * gemm.columns
    return {
        **row,
        "utilization": products / (row["cycles"] * gemm.rows * gemm.columns),
        "weight_bytes": weights,
        "weights_once": weights == sum(-(-job.columns // gemm.columns) * gemm.columns * job.k for job in run.jobs),
        "row_bytes": row["i_row"] * gemm.row_lanes * 4,
        "column_bytes": row["i_column"] * 7,
        "angle_bytes": row["i_rotary"] * 4,
        "residual_bytes": row["i_residual"] * gemm.pairs * 8,
        "written_bytes": row["elements"] * elements,
        "predicted": sum(predicted_cycles(job.rows, job.k, job.columns, gemm) for job in run.jobs),
    }


def predicted_cycles(rows: int, k: int, columns: int, gemm: GemmConfig, *, weight_rate: float = 1.0) -> float:
    """Cycles of one command that nothing overlaps, from what bounds each tile; see docs/blocks/gemm-core.md."""
    words = -(-k // gemm.row_lanes)
    tiles = [min(gemm.rows, rows - first) for first in range(0, rows, gemm.rows)]
    widths = [min(gemm.columns, columns - first) for first in range(0, columns, gemm.columns)]
    drains = [-(-width // (2 * gemm.pairs)) for width in widths]
    total, before = tiles[0] * words, 0
    for number, drain in enumerate(drains):
        spent = 0
        for place, height in enumerate(tiles):
            following = tiles[place + 1] * words if number == 0 and place + 1 < len(tiles) else 0
            spent += max(k, before, following)
            before = height * drain
        total += max(spent, k / weight_rate)
    return total + before


def core_cycles(rows: int, split: str, bandwidth: int, gemm: GemmConfig) -> tuple[int, int, float]:
    """Rows and columns of the busiest of `CORES` cores, and the share of cycles in which it is offered a weight word.

    ``split``: columns, each core with weights of its own, or rows, all with the same weights, which come once.
    """
    _, columns = CORE_SHAPE
    if split == "columns":
        return rows, columns // CORES, min(1.0, bandwidth / CORES / gemm.columns)
    return -(-rows // CORES), columns, min(1.0, bandwidth / gemm.columns)


def _jobs(
    config: AcceleratorConfig, label: str, rows: int, k: int, columns: int, count: int = 1, **fields: Any
) -> list[Job]:
    draw = np.random.default_rng(zlib.crc32(label.encode()))
    return [random_job(draw, config, rows=rows, k=k, columns=columns, **{**PLAIN, **fields}) for _ in range(count)]


def _cubes(config: AcceleratorConfig, group: str, shapes: Sequence[tuple[int, int, int, int]]) -> Iterator[Run]:
    for rows, k, columns, count in shapes:
        labels = {"group": group, "name": f"{rows} x {columns} x {k}", "m": rows, "n": columns, "k": k}
        yield Run(labels=labels, jobs=_jobs(config, f"{rows} {k}", rows, k, columns, count))


def _smollm2(config: AcceleratorConfig) -> Iterator[Run]:
    for batch in SMOLLM2_BATCHES:
        for job in real_jobs(config, [SMOLLM2_LAYER], batch):
            name = job.name.split(", ")[1]
            labels = {"group": "smollm2", "name": name, "m": batch, "n": job.columns, "k": job.k}
            yield Run(labels=labels, jobs=[job])


def _llama(config: AcceleratorConfig) -> Iterator[Run]:
    for name, (k, columns, fields) in LLAMA.items():
        for tiles in LLAMA_TILES:
            part = tiles * config.gemm.columns
            own = dict(fields)
            if "rotary_columns" in own:
                own["rotary_columns"] = part // config.dsq.head_dim * config.dsq.head_dim
            labels = {"group": "llama2-7b", "name": name, "m": LLAMA_BATCH, "n": columns, "k": k, "part": part}
            yield Run(labels=labels, jobs=_jobs(config, f"{name} {tiles}", LLAMA_BATCH, k, part, **own))


def _cores(config: AcceleratorConfig) -> Iterator[Run]:
    k, _ = CORE_SHAPE
    for batch in CORE_BATCHES:
        for bandwidth in CORE_BANDWIDTHS:
            for split in ("columns", "rows"):
                rows, columns, rate = core_cycles(batch, split, bandwidth, config.gemm)
                labels = {"group": "cores", "batch": batch, "bandwidth": bandwidth, "split": split}
                jobs = _jobs(config, f"cores {rows} {columns}", rows, k, columns)
                yield Run(labels=labels, jobs=jobs, weight_rate=round(rate * RATE_ONE))


def cores_of(
    base: AcceleratorConfig, shapes: Sequence[str], tables: Sequence[str]
) -> list[tuple[AcceleratorConfig, list[Run]]]:
    """Cores that are simulated, with their runs: the preset's with room for all rows, all pairs at once, long rows."""
    g = base.gemm
    roomy = replace(base, gemm=replace(g, act_words=max(g.act_words, 8192)))
    wide = replace(roomy, gemm=replace(roomy.gemm, pairs=g.columns // 2))
    longest = max(k for k, _, _ in LLAMA.values())
    long = replace(base, gemm=replace(g, max_k=longest, act_words=max(g.act_words, longest)))
    # Heads of the model that is measured; the rest of that table does not matter here.
    long = replace(long, dsq=replace(base.dsq, head_dim=128))
    groups: list[tuple[AcceleratorConfig, list[Run]]] = [(roomy, []), (wide, []), (long, [])]
    if "gemmini" in shapes:
        groups[0][1].extend(_cubes(roomy, "gemmini", GEMMINI))
    if "smollm2" in shapes or "traffic" in tables:
        groups[0][1].extend(_smollm2(roomy))
    if "cores" in tables:
        groups[0][1].extend(_cores(roomy))
    if "opengemm" in shapes:
        groups[1][1].extend(_cubes(wide, "opengemm", OPENGEMM))
    if "llama2-7b" in shapes or "traffic" in tables:
        groups[2][1].extend(_llama(long))
    return [(config, runs) for config, runs in groups if runs]


def extrapolated(rows: Sequence[dict[str, Any]], gemm: GemmConfig) -> list[dict[str, Any]]:
    """One row for each projection that ran in parts, for all of its columns.

    Raises `DifferenceError` when a part took other cycles than predicted, beyond `TOLERANCE`.
    """
    made = []
    for name in LLAMA:
        parts = [row for row in rows if row["name"] == name]
        if not parts:
            continue
        errors = [row["cycles"] / row["predicted"] - 1 for row in parts]
        if max(abs(error) for error in errors) > TOLERANCE:
            raise DifferenceError(f"{name}: cycles are {100 * max(errors, key=abs):.1f}% off the prediction")
        last = parts[-1]
        m, n, k = (last[key] for key in ("m", "n", "k"))
        cycles = last["cycles"] + predicted_cycles(m, k, n, gemm) - last["predicted"]
        share = n / last["part"]
        scaled = {
            key: round(last[key] * share) for key in ("weight_bytes", "column_bytes", "residual_bytes", "written_bytes")
        }
        made.append(
            {
                **{
                    key: last[key]
                    for key in ("group", "name", "m", "n", "k", "row_bytes", "angle_bytes", "weights_once")
                },
                **scaled,
                "commands": 1,
                "cycles": round(cycles),
                "utilization": m * n * k / (cycles * gemm.rows * gemm.columns),
                "measured_columns": [row["part"] for row in parts],
                "measured_cycles": [row["cycles"] for row in parts],
                "prediction_errors": errors,
            }
        )
    return made


def traffic(rows: Sequence[dict[str, Any]], rotary_columns: dict[str, int]) -> list[dict[str, Any]]:
    """Bytes that norm, QKV and rotary embedding write as one command, and as passes that write what lies between.

    What the command writes is counted at the core's port; normalized rows and rotated columns have 16 bits.
    """
    made = []
    for row in rows:
        if row["name"] != "qkv":
            continue
        fused = row["written_bytes"]
        norm = row["m"] * row["k"] * ACTIVATION_BYTES
        rotary = row["m"] * rotary_columns[row["group"]] * ACTIVATION_BYTES
        made.append(
            {
                "model": row["group"],
                "rows": row["m"],
                "fused": fused,
                "norm_pass": norm,
                "qkv_pass": fused,
                "rotary_pass": rotary,
                "saved": 1 - fused / (fused + norm + rotary),
                "saved_norm_alone": 1 - fused / (fused + norm),
            }
        )
    return made


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each batch and bandwidth the cycles of both ways to use the cores."""
    made: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        entry = made.setdefault((row["batch"], row["bandwidth"]), {key: row[key] for key in ("batch", "bandwidth")})
        entry[row["split"]] = row["cycles"]
    return list(made.values())


def shape_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: cycles, utilization and bytes of each shape; of commands in a row, per command."""
    lines = [
        "group      name                M       N       K  commands      cycles  utilization  weight bytes  once"
        "   row bytes  residual bytes  written bytes"
    ]
    for row in rows:
        count = row["commands"]
        each = [row[name] // count for name in ("weight_bytes", "row_bytes", "residual_bytes", "written_bytes")]
        lines.append(
            f"{row['group']:9}  {row['name']:16} {row['m']:4,} {row['n']:7,} {row['k']:7,}  {count:8}  "
            f"{row['cycles'] / count:10,.1f}  {100 * row['utilization']:10.2f}%  {each[0]:12,}  "
            f"{'yes' if row['weights_once'] else 'no':>4}  {each[1]:10,}  {each[2]:14,}  {each[3]:13,}"
        )
    return lines


def traffic_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: each model and batch."""
    lines = ["model      rows  fused bytes  norm pass  QKV pass  rotary pass  saved by fusion  saved by the norm alone"]
    for row in rows:
        lines.append(
            f"{row['model']:9}  {row['rows']:4}  {row['fused']:11,}  {row['norm_pass']:9,}  {row['qkv_pass']:8,}  "
            f"{row['rotary_pass']:11,}  {100 * row['saved']:14.1f}%  {100 * row['saved_norm_alone']:22.1f}%"
        )
    return lines


def core_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: each batch and bandwidth."""
    lines = ["batch  weight bytes/cycle  cycles, columns split  cycles, rows split  rows/columns"]
    for row in rows:
        lines.append(
            f"{row['batch']:5}  {row['bandwidth']:18}  {row['columns']:21,}  {row['rows']:18,}  "
            f"{row['rows'] / row['columns']:12.2f}"
        )
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.gemm",
        description="Runs commands on the RTL of the GEMM core (Verilator), played by memories in HDL that never let "
        "it wait: cycles from the first command to the last end, utilization of the array, bytes at the ports. Every "
        "result is compared with golden.",
        epilog="gemmini, opengemm: cubes, the latter back to back on a core that finishes a whole row of the array in "
        "a cycle; the lists are ours. smollm2: the projections of a layer with real weights and rows, batches of "
        f"{' and '.join(map(str, SMOLLM2_BATCHES))}. llama2-7b: batch {LLAMA_BATCH}, some of the columns, from which "
        f"the others are extrapolated if all parts agree with the formula within {100 * TOLERANCE:.0f}%. traffic: "
        "what norm, QKV and rotary embedding write as one command and as three. cores: "
        f"{CORES} cores that split columns or rows. "
        "Exit code: 0, or 1 when hardware and golden or prediction differ, 2 for impossible options.",
    )
    made.add_argument(
        "--shapes",
        default=",".join(SHAPES),
        metavar="LIST",
        help=f"some of {', '.join(SHAPES)} (default: all), or none",
    )
    made.add_argument(
        "--tables",
        default=",".join(TABLES),
        metavar="LIST",
        help=f"some of {', '.join(TABLES)} (default: all), or none",
    )
    made.add_argument("--preset", default="smollm2", help="of the core (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return made


def chosen(option: str, text: str, names: Sequence[str]) -> list[str]:
    """The names of a list; `UserError` when one is unknown."""
    given = [] if text == "none" else text.split(",")
    for name in given:
        if name not in names:
            raise UserError(f"{option} must be some of {', '.join(names)}, or none, not '{name}'")
    return given


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    shapes, tables = chosen("--shapes", args.shapes, SHAPES), chosen("--tables", args.tables, TABLES)
    if not shapes and not tables:
        raise UserError("--shapes and --tables must not both be none")
    base, began = preset(args.preset), time.perf_counter()
    if base.dsq.head_dim != preset("smollm2").dsq.head_dim and ("smollm2" in shapes or "traffic" in tables):
        raise UserError(f"the core of preset {args.preset} has other heads than SmolLM2: give --shapes and --tables")
    groups = cores_of(base, shapes, tables)
    rows: list[dict[str, Any]] = []
    total = sum(len(runs) for _, runs in groups)
    try:
        with tqdm(total=total, desc="gemm", unit="run", disable=not sys.stderr.isatty()) as bar:
            for number, (config, runs) in enumerate(groups):
                folder = ROOT / "build" / "gemm" / str(number)
                rows += simulate(config, runs, folder=folder, advance=bar.update)
        parts = [row for row in rows if row["group"] == "llama2-7b"]
        long = extrapolated(parts, groups[-1][0].gemm) if parts else []
    except SimulationError as error:
        print(f"error: the core could not be simulated: {error}", file=sys.stderr)
        return 1
    except AssertionError as error:
        print(f"error: the core did not finish: {error}", file=sys.stderr)
        return 1
    except DifferenceError as error:
        print(f"error: hardware and golden differ: {error}", file=sys.stderr)
        return 1
    whole = [row for row in rows if row["group"] not in ("llama2-7b", "cores")] + long
    g = base.gemm
    print(f"{g.rows} x {g.columns} array, {g.act_bits}-bit codes, {g.row_lanes} elements of a row a cycle")
    print("\n".join(shape_table([row for row in whole if row["group"] in shapes])))
    for row in long:
        worst = 100 * max(abs(error) for error in row["prediction_errors"])
        measured = ", ".join(f"{columns}" for columns in row["measured_columns"])
        print(f"llama2-7b {row['name']}: {measured} columns ran, at most {worst:.2f}% off the formula; the rest by it")
    record: dict[str, Any] = {"preset": args.preset, "config": asdict(g), "rows": whole, "measured": rows}
    if "traffic" in tables:
        turned = {"smollm2": 768, "llama2-7b": LLAMA["qkv"][2]["rotary_columns"]}
        record["traffic"] = traffic(whole, turned)
        print("\n".join(traffic_table(record["traffic"])))
    if "cores" in tables:
        record["cores"] = compared([row for row in rows if row["group"] == "cores"])
        print(f"{CORES} cores, {CORE_SHAPE[1]} columns of {CORE_SHAPE[0]} weights")
        print("\n".join(core_table(record["cores"])))
    print(f"all results equal golden, every weight was read once; {time.perf_counter() - began:.0f} s, build included")
    if args.json:
        try:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.json}: {error.strerror}") from error
    return 0


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
