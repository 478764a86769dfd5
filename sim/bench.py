"""A decoder layer of a real model on the RTL of the whole accelerator: cycles, utilization, bytes, timeline."""

import argparse
import copy
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cocotb_tests.cache.system import System
from cocotb_tests.control.plans import Plan, dram_for, plan_for
from cocotb_tests.control.system import EVENTS, LoggedAccelerator
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_parts import PARTS
from golden.control.commands import queue_names
from golden.decoder import DecoderLayer
from golden.errors import UserError, main_guard
from golden.model import Model, load_model
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig, preset
from sim.attention import DifferenceError
from sim.batches import BatchMaker, longest_context
from sim.compiler import SCHEDULES, Program, compile_layer
from sim.progress import watch
from sim.report import write_html, write_trace
from sim.simulators import ROOT, SimulationError

__all__ = ["KV", "Kind", "main", "simulate", "sized"]

#: how K and V are kept: INT8 rows with the traffic of 16-bit ones, INT8 rows, records, records that are pruned
KV = ("dense16", "dense", "dsq", "dsq+hcap")
FUSION = ("off", "on")
#: cycles that a run may take, and that a queue may wait, for each token of the batch and each token of context
_LIMIT = (2_000_000, 4_000)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A run: order of the work, kind of cache, passes in one or one by one."""

    schedule: str
    kv: str
    fusion: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.schedule}, {self.kv}, fusion {self.fusion}"


def sized(
    config: AcceleratorConfig, model: Model, batch: int, context: int, kinds: Sequence[Kind]
) -> AcceleratorConfig:
    """The configuration with pages, scratchpad and heads for a layer of a model and such a batch."""
    c, n = model.config, config.dsq.group_tokens
    groups = -(-context // n) + 2
    pages = 1 << (batch * groups - 1).bit_length()
    dense = any(kind.kv.startswith("dense") for kind in kinds)
    few = 1 << (4 * batch - 1).bit_length()
    hidden, width = c.hidden, (c.q_heads + 2 * c.kv_heads) * c.head_dim
    rows = hidden + width + c.q_heads * c.head_dim + 3 * c.ffn
    cache = replace(
        config.cache,
        streams=c.kv_heads,
        max_sequences=batch,
        record_pages=max(2, pages),
        block_pages=max(2, pages if dense else few),
        addr_bits=max(config.cache.addr_bits, 32),
    )
    control = replace(
        config.control,
        scratch_words=max(config.control.scratch_words, -(-batch * rows // config.gemm.row_lanes)),
        scratch_rows=max(config.control.scratch_rows, batch * 64),
    )
    longest = max(c.hidden, c.q_heads * c.head_dim, c.ffn)
    if config.gemm.max_k < longest:
        raise UserError(f"gemm.max_k must be at least {longest} for this model, not {config.gemm.max_k}")
    mha = replace(config.mha, q_heads=c.q_heads // c.kv_heads, max_groups=max(config.mha.max_groups, groups))
    try:
        return replace(config, cache=cache, control=control, mha=mha, dsq=replace(config.dsq, head_dim=c.head_dim))
    except ValueError as error:
        raise UserError(str(error)) from None


def _plan(maker: BatchMaker, kind: Kind, contexts: Sequence[int], steps: int, sub_batches: int) -> tuple[Plan, Program]:
    """What the simulator is told of a run, and its program; golden decodes the batch for it."""
    kv = "dense" if kind.kv == "dense16" else kind.kv
    batch = maker.make(contexts, steps, kv=kv, fused=kind.fusion == "on")
    try:
        program = compile_layer(
            maker.config,
            batch.decoder,
            batch.x,
            positions=batch.positions,
            schedule=kind.schedule,
            sub_batches=sub_batches,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    after: DecoderLayer = copy.copy(batch.decoder)
    after.sequences = [[state.copy() for state in states] for states in batch.decoder.sequences]
    everyone = range(len(contexts))
    steps_of = zip(batch.x, batch.positions, strict=True)
    outputs = [after.step(everyone, rows, positions).out for rows, positions in steps_of]
    limit = _LIMIT[0] + _LIMIT[1] * steps * sum(contexts)
    plan = plan_for(kind.name, program, after, outputs, padded=kind.kv == "dense16", limit=limit)
    return plan, program


def simulate(
    config: AcceleratorConfig,
    model: Model,
    layer: int,
    kinds: Sequence[Kind],
    contexts: Sequence[int],
    *,
    steps: int,
    sub_batches: int,
    dram: dict[str, Any],
    folder: Path,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """All runs, one after the other, on Verilator; a dictionary for each, see `figures`.

    All outputs, records, INT8 tokens and states of attention are compared with golden. Raises `DifferenceError` at the
    first difference, or when a queue stops.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    maker = BatchMaker(config, model, layer, progress=progress)
    bar = tqdm(kinds, desc="golden", unit="run", disable=not progress)
    made = [_plan(maker, kind, contexts, steps, sub_batches) for kind in bar]
    plans, programs = [plan for plan, _ in made], [program for _, program in made]
    try:
        memory = dram_for(config, max(program.lines for program in programs), **dram)
    except ValueError as error:
        raise UserError(str(error)) from None
    (folder / "plans.pkl").write_bytes(pickle.dumps({"config": config, "dram": memory, "plans": plans}))
    run = partial(
        launch.run,
        System(LoggedAccelerator(config), memory),
        name="bench",
        tb="cocotb_tests.tb_bench",
        parameters={"folder": str(folder)},
        simulators="verilator",
        sources=DRAM_SOURCES,
    )
    total = sum(ring[2] + ring[3] for plan in plans for ring in plan.rings.values())
    with tqdm(total=total, desc="accelerator", unit="command", disable=not progress) as commands:
        try:
            watch(run, folder / "progress", commands.update)
        except AssertionError:
            if (folder / "difference").exists():
                raise DifferenceError((folder / "difference").read_text()) from None
            raise
    results = json.loads((folder / "results.json").read_text())
    tokens = steps * len(contexts)
    return [
        {**figures(result, config, model, memory, program, kind, tokens), "layer": layer}
        for result, program, kind in zip(results, programs, kinds, strict=True)
    ]


def figures(
    result: dict[str, Any],
    config: AcceleratorConfig,
    model: Model,
    memory: DramConfig,
    program: Program,
    kind: Kind,
    tokens: int,
) -> dict[str, Any]:
    """What follows from a run's counts.

    cycles: from the first command to the end of the last one. port: words in the busier direction of the AXI port, in
    cycles. array: multiplications of all GEMM arrays in what they could do. bytes: by requester.
    """
    counters, events = result["counters"], result["events"]
    cycles = max(event[0] for event in events) - min(event[0] for event in events)
    word, cores = config.dsq.bus_bits // 8, config.gemm.cores
    c = model.config
    width = (c.q_heads + 2 * c.kv_heads) * c.head_dim
    products = c.hidden * width + c.q_heads * c.head_dim * c.hidden + 3 * c.hidden * c.ffn
    names = ["attention", "scans ahead", "forks", "groups", "commands", "state", "dsq", "dma"]
    names += [f"gemm{n}" for n in range(cores)]
    read = {name: words * word for name, words in zip(names, counters["read_words"], strict=True)}
    written = ["tokens and records", "forks", "state", "dsq", "dma"]
    read_total, write_total = sum(counters["read_words"]), sum(counters["write_words"])
    queues = {name: counters[name] for name in queue_names(cores)}
    return {
        "name": kind.name,
        "schedule": kind.schedule,
        "kv": kind.kv,
        "fusion": kind.fusion,
        "cycles": cycles,
        "tokens": tokens,
        "tokens_per_million_cycles": 1e6 * tokens / cycles,
        "queues": queues,
        "utilization": {name: spent["busy"] / cycles for name, spent in queues.items()},
        "array": tokens * products / (cycles * cores * config.gemm.rows * config.gemm.columns),
        "port": max(read_total, write_total) / cycles,
        "attention_port": (counters["read_words"][0] + counters["read_words"][1]) / cycles,
        "bus": counters["dram"]["busy"] / cycles,
        "moved_bytes": counters["dram"]["read_bytes"] + counters["dram"]["write_bytes"],
        "read_bytes": read,
        "write_bytes": {name: n * word for name, n in zip(written, counters["write_words"], strict=True)},
        "operations": 2 * tokens * products,
        "peak_operations": 2 * cores * config.gemm.rows * config.gemm.columns,
        "peak_bytes": min(word, memory.ratio * word),
        "part": memory.part,
        "clock_mhz": memory.clock,
        "events": events,
        "events_lost": len(events) >= EVENTS,
        "tags": {str(number): list(tag) for number, tag in program.tags.items()},
        "queue_names": queue_names(cores),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: every run, with ratios against the first; then of each run who was busy, and bytes by requester."""
    width = max(len(row["name"]) for row in rows)
    lines = [
        f"{'run':{width}}      cycles  tokens/Mcycle  port busy  DRAM bus   MHA busy  GEMM busy  arrays    MB read  "
        "MB written  throughput"
    ]
    for row in rows:
        gemm = [share for name, share in row["utilization"].items() if name.startswith("gemm")]
        ratio = row["tokens_per_million_cycles"] / rows[0]["tokens_per_million_cycles"]
        lines.append(
            f"{row['name']:{width}}  {row['cycles']:10,}  {row['tokens_per_million_cycles']:13,.2f}  "
            f"{100 * row['port']:8.1f}%  {100 * row['bus']:7.1f}%  {100 * row['utilization']['mha']:8.1f}%  "
            f"{100 * sum(gemm) / len(gemm):8.1f}%  {100 * row['array']:5.1f}%  "
            f"{sum(row['read_bytes'].values()) / 1e6:9.3f}  {sum(row['write_bytes'].values()) / 1e6:10.3f}  "
            f"{ratio:9.2f}x"
        )
    for row in rows:
        busy = ", ".join(f"{name} {100 * share:.1f}%" for name, share in row["utilization"].items())
        lines += ["", f"{row['name']}: cycles with a command; bytes by requester", f"  busy     {busy}"]
        for way in ("read", "write"):
            moved = ", ".join(f"{name} {count:,}" for name, count in row[f"{way}_bytes"].items() if count)
            lines.append(f"  {way:7}  {moved}")
    return lines


def _kinds(args: argparse.Namespace) -> list[Kind]:
    """The runs that are asked for: lists side by side, single values for all runs."""
    lists = {"schedule": args.schedule, "kv": args.kv, "fusion": args.fusion}
    runs = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, runs):
            raise UserError(f"--{name} must have one value, or {runs} as another option has, not {len(values)}")
    columns = [values * runs if len(values) == 1 else values for values in lists.values()]
    return [Kind(schedule=s, kv=k, fusion=f) for s, k, f in zip(*columns, strict=True)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.bench",
        description="Decodes tokens with a layer of a real model on the RTL of the whole accelerator, with a DRAM that "
        "has the timing of a named part (Verilator). Every output, record, INT8 token and state of attention is "
        "compared with golden, bit for bit.",
        epilog="--schedule, --kv and --fusion take a value for each run, or one for all; ratios are those to the first "
        "run. port busy: words in the busier direction of the AXI port, one a cycle at most. arrays: products of "
        "the GEMM arrays. Contexts beyond the model's are caches of several texts side by side; sequences beyond the "
        "texts are a token shorter each. Exit code: 0, or 1 when hardware and golden differ, 2 for impossible options.",
    )
    made.add_argument("--model", metavar="FILE", help="GGUF file (default: the embedded SmolLM2-135M-Instruct)")
    made.add_argument(
        "--layers", type=int, nargs="+", default=[0], metavar="L", help="which, each by itself (default: 0)"
    )
    made.add_argument("--batch", type=int, default=5, metavar="N", help="sequences (default: %(default)s)")
    made.add_argument("--context", type=int, default=4096, metavar="N", help="cached tokens (default: %(default)s)")
    made.add_argument(
        "--steps", type=int, default=1, metavar="N", help="tokens of each sequence (default: %(default)s)"
    )
    made.add_argument(
        "--schedule",
        nargs="+",
        choices=SCHEDULES,
        default=["serial", "interleaved"],
        metavar="NAME",
        help="serial: one stage after the other; interleaved: attention of a part of the batch beside projections of "
        "another one (default: serial interleaved)",
    )
    made.add_argument(
        "--kv",
        nargs="+",
        choices=KV,
        default=["dense", "dsq+hcap"],
        metavar="KIND",
        help="dense16: INT8 tokens whose rows take the room of 16-bit ones; dense: INT8 tokens; dsq: compressed; "
        "dsq+hcap: compressed and pruned (default: dense dsq+hcap)",
    )
    made.add_argument(
        "--fusion", nargs="+", choices=FUSION, default=["on"], metavar="on|off", help="passes in one (default: on)"
    )
    made.add_argument(
        "--sub-batches", type=int, default=2, metavar="N", help="of the interleaved schedule (default: 2)"
    )
    made.add_argument("--preset", default="smollm2", help="of the accelerator (default: smollm2)")
    made.add_argument("--dram", default="ddr4-2400", choices=list(PARTS), help="part (default: %(default)s)")
    made.add_argument(
        "--clock",
        type=float,
        metavar="MHZ",
        help="of the accelerator (default: the fastest up to 300 at which the part gives a word a cycle)",
    )
    made.add_argument(
        "--latency", type=int, default=20, metavar="CYCLES", help="of the memory's controller (default: %(default)s)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures and events")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline for ui.perfetto.dev")
    made.add_argument("--html", type=Path, metavar="FILE", help="write a report: timeline, roofline, bytes")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    for name, least in (("batch", 1), ("context", 1), ("steps", 1), ("sub_batches", 1)):
        if getattr(args, name) < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(args, name)}")
    if args.batch > 256:
        raise UserError(f"--batch must be at most 256, not {args.batch}")
    for path in (args.json, args.trace, args.html):
        if path is not None and not path.resolve().parent.is_dir():
            raise UserError(f"cannot write {path}: there is no directory {path.resolve().parent}")
    kinds = _kinds(args)
    if args.clock is not None and not 0 < args.clock <= 2000:
        raise UserError(f"--clock must be above 0, at most 2000, not {args.clock}")
    if args.latency < 0:
        raise UserError(f"--latency must be at least 0, not {args.latency}")
    model, began, progress = load_model(args.model), time.perf_counter(), sys.stderr.isatty()
    for layer in args.layers:
        if not 0 <= layer < model.config.layers:
            raise UserError(f"--layers must be from 0 to {model.config.layers - 1}, not {layer}")
    most = longest_context(model)
    if args.context + args.steps > most:
        together = args.context + args.steps
        raise UserError(f"--context and --steps must be at most {most} tokens together, not {together}")
    config = sized(preset(args.preset), model, args.batch, args.context + args.steps, kinds)
    turns = [max(1, args.context - i // 3) for i in range(args.batch)]
    dram = {"part": args.dram, "clock_mhz": args.clock, "latency": args.latency}
    rows: list[dict[str, Any]] = []
    folder = ROOT / "build" / f"bench-{os.getpid()}"
    for layer in args.layers:
        try:
            made = simulate(
                config,
                model,
                layer,
                kinds,
                turns,
                steps=args.steps,
                sub_batches=args.sub_batches,
                dram=dram,
                folder=folder,
                progress=progress,
            )
        except SimulationError as error:
            print(f"error: the accelerator could not be simulated: {error}", file=sys.stderr)
            return 1
        except DifferenceError as error:
            print(f"error: hardware and golden differ: {error}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"layer {layer} of {model.config.name}, batch {args.batch}, {args.context:,} tokens, {args.steps} steps")
        print("\n".join(table(made)))
        rows += made
    word = config.dsq.bus_bits
    print(f"{args.dram}, {args.latency} cycles of controller; {rows[0]['clock_mhz']:.0f} MHz, {word}-bit AXI")
    print(f"all outputs, caches and states equal golden; {time.perf_counter() - began:.0f} s, build included")
    workload = {"batch": args.batch, "context": args.context, "steps": args.steps}
    record = {"preset": args.preset, "config": config.to_dict(), **workload, "runs": rows}
    try:
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if args.trace:
            write_trace(record, args.trace)
        if args.html:
            write_html(record, args.html)
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
