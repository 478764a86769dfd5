"""Attention of a real model's heads on the accelerator with a timed DRAM: cycles, bytes and how busy memory is."""

import argparse
import json
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cocotb_tests.cache.load import LoadedAttention
from cocotb_tests.cache.system import System, dram_config
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_parts import PARTS
from golden.errors import UserError, main_guard
from golden.heads import Head
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig, preset
from sim.attention import DifferenceError, head_named
from sim.progress import watch
from sim.simulators import ROOT, SimulationError
from sim.workloads import attention_heads, check_context

__all__ = ["RUNS", "main", "simulate"]

RUNS = ("stream", "kvo", "no prefetch", "no run order", "with GEMM", "dense")
STREAM_CYCLES = 4000


def sized(config: AcceleratorConfig, context: int, streams: int) -> AcceleratorConfig:
    """The configuration with memory for the compressed caches of ``streams`` heads and for all of them in INT8."""
    groups = -(-context // config.dsq.group_tokens) + 1
    pages = 1 << groups.bit_length()
    cache = replace(config.cache, streams=streams, max_sequences=2, record_pages=pages, block_pages=pages, addr_bits=32)
    return replace(config, cache=cache, mha=replace(config.mha, max_groups=max(config.mha.max_groups, groups)))


def simulate(
    config: AcceleratorConfig,
    heads: Sequence[Head],
    dram: dict[str, Any],
    *,
    folder: Path,
    advance: Callable[[int], object],
) -> list[dict[str, Any]]:
    """All `RUNS` of the queries of ``heads``, which take turns, on Verilator; a row for each.

    Every output, mass and status is compared with golden, and the words at the AXI port are those that golden reads.
    ``advance(1)`` is called for every finished row. Raises `DifferenceError` at the first difference.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "heads.pkl").write_bytes(pickle.dumps(list(heads)))
    closed = len(heads[0].state.closed)
    salient = heads[0].state.settings.salient_tokens
    accelerator = LoadedAttention(config, groups=closed, salient_tokens=salient)
    run = partial(
        launch.run,
        System(accelerator, dram_config(config, **dram)),
        name="memory",
        tb="cocotb_tests.tb_memory",
        parameters={"folder": str(folder), "config": asdict(config), "dram": dram, "stream_cycles": STREAM_CYCLES},
        simulators="verilator",
        sources=DRAM_SOURCES,
    )
    try:
        watch(run, folder / "progress", advance)
    except AssertionError:
        if (folder / "difference").exists():
            raise DifferenceError((folder / "difference").read_text()) from None
        raise
    return figures(json.loads((folder / "results.json").read_text()), config, dram_config(config, **dram))


def figures(rows: Sequence[dict[str, Any]], config: AcceleratorConfig, dram: DramConfig) -> list[dict[str, Any]]:
    """Rows with what follows from their counts.

    port: words at the AXI port in cycles; bus: cycles in which the part's data bus moved data; of_stream: port against
    what long pieces get, which is the most that this memory gives.
    """
    word = config.dsq.bus_bits // 8
    made = []
    for row in rows:
        total = row["attention"] + row["gemm"]
        bursts = row["row_hits"] + row["row_misses"] + row["row_opens"]
        made.append(
            {
                **row,
                "port": total / row["cycles"],
                "attention_share": row["attention"] / row["cycles"],
                "bus": row["busy"] / row["cycles"],
                "hits": row["row_hits"] / bursts,
                "padding": row["read_bytes"] / (total * word),
            }
        )
    best = next(row["port"] for row in made if row["run"] == "stream")
    return [{**row, "of_stream": row["port"] / best, "part": dram.part, "clock_mhz": dram.clock} for row in made]


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: every run."""
    lines = [
        "context  run           cycles/query  words/query  prefetched  port busy  of stream  DRAM bus  row hits  "
        "bytes moved  GEMM words  cycles/dense"
    ]
    dense = next((row["cycles"] for row in rows if row["run"] == "dense"), None)
    for row in rows:
        ratio = f"{row['cycles'] / dense:.3f}" if dense and row["run"] != "stream" else ""
        lines.append(
            f"{row['context']:7,}  {row['run']:12}  {row['cycles']:12,.0f}  {row['attention']:11,.0f}  "
            f"{row['prefetched']:10,.0f}  {100 * row['port']:8.1f}%  {100 * row['of_stream']:8.1f}%  "
            f"{100 * row['bus']:7.1f}%  {100 * row['hits']:7.1f}%  {row['padding']:10.2f}x  {row['gemm']:10,.0f}  "
            f"{ratio:>12}"
        )
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.memory",
        description="Runs the attention of real heads of the embedded model on the RTL of attention core and cache, "
        "with a DRAM that has the timing of a named part (Verilator). Rows: long pieces alone; the compressed cache; "
        "without prefetch; with records whose rows lie in the order of tokens; beside GEMM cores that read all the "
        "time; all tokens in INT8. Every output is compared with golden, and so is every word that is read.",
        epilog="Queries of the heads take turns. bytes moved: by the part, against the words that were asked for. Exit "
        "code: 0, or 1 when hardware and golden differ, 2 for impossible options.",
    )
    made.add_argument("--context", type=int, default=4096, metavar="N", help="tokens (default: %(default)s)")
    made.add_argument(
        "--heads",
        nargs="+",
        default=["0.0", "14.1", "29.2"],
        metavar="L.H",
        help="layers and KV heads (default: 0.0 14.1 29.2)",
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
        "--latency",
        type=int,
        default=20,
        metavar="CYCLES",
        help="of the memory's controller and interface, beside the part's own (default: 20)",
    )
    made.add_argument("--queries", type=int, default=5, metavar="N", help="of each head, from 3 on (default: 5)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    check_context(args.context)
    named = [head_named(head) for head in args.heads]
    base = preset(args.preset)
    n = base.dsq.group_tokens
    if not 3 <= args.queries <= (args.context - 1) % n + 1:
        raise UserError(
            f"--queries must be from 3 to the tokens of the last group, not {args.queries} at {args.context}"
        )
    if args.context < 3 * n:
        raise UserError(f"--context must be at least {3 * n}, so that there are records, not {args.context}")
    config = sized(base, args.context, len(named))
    dram = {"part": args.dram, "clock_mhz": args.clock, "latency": args.latency}
    try:
        dram_config(config, **dram)
    except ValueError as error:
        raise UserError(str(error)) from None
    began = time.perf_counter()
    heads = list(attention_heads(config, named, context=args.context, count=args.queries))
    with tqdm(total=len(RUNS), desc="memory", unit="run", disable=not sys.stderr.isatty()) as bar:
        try:
            rows = simulate(config, heads, dram, folder=ROOT / "build" / "memory", advance=bar.update)
        except SimulationError as error:
            print(f"error: the accelerator could not be simulated: {error}", file=sys.stderr)
            return 1
        except DifferenceError as error:
            print(f"error: hardware and golden differ: {error}", file=sys.stderr)
            return 1
    clock = f"accelerator at {rows[0]['clock_mhz']:.0f} MHz, {config.dsq.bus_bits}-bit AXI"
    print(f"{args.dram}, {args.latency} cycles of controller; {clock}")
    print("\n".join(table(rows)))
    print(f"all outputs and all words read equal golden; {time.perf_counter() - began:.0f} s, build included")
    if args.json:
        record = {"preset": args.preset, "config": config.to_dict(), "rows": rows}
        try:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.json}: {error.strerror}") from error
    return 0


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
