"""Attention of a real model's heads on the RTL: cycles, bytes and utilization against the dense INT8 cache."""

import argparse
import json
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from cocotb_tests.lib import launch
from golden.errors import UserError, main_guard
from golden.heads import Head
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig, preset
from rtl.mha.core import MhaCore
from sim.progress import watch
from sim.simulators import ROOT, SimulationError
from sim.workloads import attention_heads, check_context, head_named

__all__ = ["MODES", "DifferenceError", "main", "simulate"]

MODES = ("dense", "kvo")


class DifferenceError(Exception):
    """Hardware and golden disagree; the message says where."""


def simulate(
    config: AcceleratorConfig,
    heads: Sequence[Head],
    modes: Sequence[str],
    *,
    records: Mapping[tuple[int, int], NDArray[np.uint8]] | None = None,
    latency: int,
    folder: Path,
    advance: Callable[[int], object],
) -> list[dict[str, Any]]:
    """Run the queries of ``heads`` one after the other on Verilator; a row for each of the ``modes`` of each.

    ``records[layer, kv_head][groups, bytes]`` are what memory holds, if given, in place of golden's records. Every
    output, mass and status is compared with golden; ``advance(1)`` is called for every finished row. Raises
    `DifferenceError` at the first difference, `AssertionError` when the core does not finish.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "heads.pkl").write_bytes(pickle.dumps([(head, list(modes)) for head in heads]))
    if records is not None:
        np.savez(folder / "records.npz", **{f"{layer}.{kv_head}": held for (layer, kv_head), held in records.items()})
    parameters = {"folder": str(folder), "config": asdict(config), "latency": latency}
    run = partial(
        launch.run,
        MhaCore(config),
        name="mha_core",
        tb="cocotb_tests.tb_attention",
        parameters=parameters,
        simulators="verilator",
    )
    try:
        watch(run, folder / "progress", advance)
    except AssertionError:
        if (folder / "difference").exists():
            raise DifferenceError((folder / "difference").read_text()) from None
        raise
    return [_figures(row, config) for row in json.loads((folder / "results.json").read_text())]


def _figures(row: dict[str, Any], config: AcceleratorConfig) -> dict[str, Any]:
    """A row with what follows from its counts.

    utilization: words taken in cycles; when_fed: in cycles in which memory had a word for the core or the core had
    asked for none, so that waiting for memory does not count against it.
    """
    cycles = row["busy"] + row["stalled"] + row["waiting"] + row["idle"]
    return {
        **row,
        "utilization": row["busy"] / cycles,
        "when_fed": row["busy"] / (row["busy"] + row["stalled"] + row["idle"]),
        "fp16_bytes": 4 * row["context"] * config.dsq.head_dim,
        "read_fraction": row["bytes"] / (4 * row["context"] * config.dsq.head_dim),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: each mode of each run, with the ratios to the dense mode of the same run."""
    lines = [
        "context  layer.head  mode    cycles   words  of FP16   K array  V array  stalled  waiting    idle  "
        "utilization  when fed   error  cycles/dense"
    ]
    dense: dict[tuple[int, int, int], float] = {}
    for row in rows:
        key = row["context"], row["layer"], row["kv_head"]
        if row["mode"] == "dense":
            dense[key] = row["cycles"]
        ratio = f"{row['cycles'] / dense[key]:.3f}" if key in dense else ""
        head = f"{row['layer']}.{row['kv_head']}"
        parts = ("k_words", "v_words", "stalled", "waiting", "idle")
        shares = [f"{100 * row[name] / row['cycles']:6.1f}%" for name in parts]
        lines.append(
            f"{row['context']:7,}  {head:>10}  {row['mode']:5}  {row['cycles']:8,.0f} {row['words']:7,.0f} "
            f"{100 * row['read_fraction']:7.2f}%  {shares[0]}  {shares[1]}  {shares[2]}  {shares[3]} {shares[4]}  "
            f"{100 * row['utilization']:10.1f}%  {100 * row['when_fed']:7.1f}%  {100 * row['error']:5.2f}%  {ratio:>12}"
        )
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.attention",
        description="Runs the attention of real heads of the embedded model on the RTL of the attention core "
        "(Verilator): each query reads its compressed records, and all tokens in INT8 for comparison. Every output is "
        "compared with the golden model.",
        epilog="cycles: from the end of one query to that of the next, while others follow. error: root mean square "
        "of the difference from float attention on the uncompressed cache, in shares of the latter's. Contexts beyond "
        "the model's are caches of several texts side by side. Exit code: 0, or 1 when hardware and golden differ, 2 "
        "for impossible options.",
    )
    made.add_argument(
        "--context",
        type=int,
        nargs="+",
        default=[1024, 4096, 8192],
        metavar="N",
        help="tokens (default: 1024 4096 8192)",
    )
    made.add_argument(
        "--heads",
        nargs="+",
        default=["0.0", "14.1", "29.2"],
        metavar="L.H",
        help="layers and KV heads (default: 0.0 14.1 29.2)",
    )
    made.add_argument("--preset", default="smollm2", help="of the core (default: smollm2)")
    made.add_argument("--queries", type=int, default=5, metavar="N", help="queries of each run, from 3 on (default: 5)")
    made.add_argument(
        "--latency", type=int, default=40, metavar="CYCLES", help="from a request to its first word (default: 40)"
    )
    made.add_argument("--no-dense", action="store_true", help="leave out the dense INT8 cache")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    config = preset(args.preset)
    for context in args.context:
        check_context(context)
        if args.queries > (context - 1) % config.dsq.group_tokens + 1:
            raise UserError(f"--queries must be at most the tokens of the last group, not {args.queries} at {context}")
    if args.queries < 3 or args.latency < 1:
        raise UserError("--queries must be at least 3, --latency at least 1")
    modes = MODES[1:] if args.no_dense else MODES
    wanted, progress, began = [head_named(head) for head in args.heads], sys.stderr.isatty(), time.perf_counter()
    heads = [
        head
        for context in args.context
        for head in attention_heads(config, wanted, context=context, count=args.queries, progress=progress)
    ]
    folder = ROOT / "build" / "attention"
    try:
        with tqdm(total=len(heads) * len(modes), desc="attention", unit="run", disable=not progress) as bar:
            rows = simulate(config, heads, modes, latency=args.latency, folder=folder, advance=bar.update)
    except SimulationError as error:
        print(f"error: the core could not be simulated: {error}", file=sys.stderr)
        return 1
    except AssertionError as error:
        print(f"error: the core did not finish: {error}", file=sys.stderr)
        return 1
    except DifferenceError as error:
        print(f"error: hardware and golden differ: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(rows)))
    print(f"all outputs, masses and statuses equal golden; {time.perf_counter() - began:.0f} s, build included")
    if args.json:
        record = {"preset": args.preset, "config": config.to_dict(), "latency": args.latency, "rows": rows}
        try:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.json}: {error.strerror}") from error
    return 0


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
