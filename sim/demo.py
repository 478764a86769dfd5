"""Demonstration: a real model's KV cache through the integer algorithm and the hardware, figures and plots."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from golden.account import DEFAULT_BURSTS
from golden.calibrate import ModelCalibration
from golden.dsq.record import RecordLayout
from golden.errors import UserError, main_guard
from golden.evaluate import CALIBRATION_CONTEXT, Row, calibration_for, candidates, to_row
from golden.heads import Head, model_heads
from golden.model import Model, Prefill, load_model, prefill, texts
from golden.plots import check_plot, plot_pareto
from golden.scoring import Reference, check_scored, score, steps
from golden.settings import KvoSettings, default_settings
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig
from rtl.dsq.quantizer import Quantizer
from sim.attention import MODES, DifferenceError
from sim.demo_attention import LATENCY, QUERIES, attend_heads, attention_table, check_caches
from sim.demo_groups import (
    Group,
    check_heads,
    choose_heads,
    closed_groups,
    golden_record,
    golden_rows,
    row_difference,
    word_difference,
)
from sim.demo_parts import PARTS, counted_parts
from sim.demo_plots import plot_attention, plot_group, plot_traffic
from sim.demo_rtl import HardwareError, Rebuilt, Records, compress, hardware_config, preset_name, rebuild
from sim.simulators import ROOT

__all__ = ["main"]

METHODS = ("int8", "int4", "kivi2", "h2o", "snapkv", "quest", "kvo")
OUTPUT = ROOT / "build" / "demo"


def show(label: str, text: str) -> None:
    """Print one line of a section."""
    print(f"   {label:<13}{text}", flush=True)


@contextmanager
def section(title: str, seconds: dict[str, float], key: str):
    """Print a section's heading, and keep the seconds that it takes under `key`."""
    began = time.perf_counter()
    print(f"\n{title}", flush=True)
    yield
    seconds[key] = round(time.perf_counter() - began, 1)


def bar(total: int, label: str, unit: str) -> tqdm:
    """A progress bar that goes when it is full; nothing at all outside a terminal."""
    return tqdm(total=total, desc=f"   {label}", unit=unit, leave=False, disable=not sys.stderr.isatty())


def fetch(model: Model, text: str, context: int, settings: KvoSettings) -> tuple[Prefill, ModelCalibration]:
    """The prefill of the text and the model's calibration, computed or from the cache folder."""
    c, progress = model.config, sys.stderr.isatty()
    token_bytes = c.layers * c.kv_heads * c.head_dim * 2 * 2
    heads = f"{c.q_heads} query heads over {c.kv_heads} KV heads of {c.head_dim} channels"
    show("model", f"{model.path.stem}: {c.layers} layers, {heads}")
    began = time.perf_counter()
    sample = prefill(model, text, context, progress=progress)
    show("text", f"{Path(text).name}, {context:,} tokens; their FP16 cache has {context * token_bytes:,} bytes")
    show("prefill", f"exact attention in float32: {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    reach = min(CALIBRATION_CONTEXT, c.context_length // 64 * 64)
    calibration = calibration_for(model, settings, context=reach, progress=progress)
    spent = time.perf_counter() - began
    show("calibration", f"on {reach:,} tokens of another text, {texts.CALIBRATION}: {spent:.1f} s")
    return sample, calibration


def evaluate(model: Model, sample: Prefill, text: str, scored: int, settings: KvoSettings) -> list[Row]:
    """One row per method, printed as a table."""
    context = len(sample.tokens) - 1
    reference = Reference.of(model, sample, scored)
    rows = []
    with bar(steps(model, scored) * len(METHODS), "decoding", "layer") as progress:
        for candidate in candidates(model, METHODS, settings, progress=False):
            with counted_parts() as parts:
                outcome = score(model, candidate.method, reference, DEFAULT_BURSTS, progress.update)
            row = to_row(model, candidate, text, context, outcome)
            row["model"] = model.path.stem
            row["read_bytes_per_token"] = outcome.account.read_bits / 8 / scored
            row["full_bytes_per_token"] = outcome.account.full_bits / 8 / scored
            row["parts"] = {name: bits / outcome.account.full_bits for name, bits in parts.items() if bits}
            rows.append(row)
    heads = ["method", "bits stored", "read", "32 B", "64 B", "KL", "perplexity", "top-1"]
    lines = [heads, ["FP16", "16.00", "100.00%", "", "", "0", f"{rows[0]['ppl_reference']:.2f}", "1.000"]]
    for row in rows:
        change = 100 * (row["ppl"] / row["ppl_reference"] - 1)
        reads = [f"{100 * row[key]:.2f}%" for key in ("read_fraction", *(f"read_fraction_{b}" for b in DEFAULT_BURSTS))]
        line = [row["method"], f"{row['stored_bits']:.2f}", *reads, f"{row['kl']:.4f}", f"{change:+.2f}%"]
        lines.append([*line, f"{row['top1']:.3f}"])
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    for line in lines:
        print("   " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]))
    own = rows[-1]
    read, full = own["read_bytes_per_token"], own["full_bytes_per_token"]
    show("per token", f"{full:,.0f} bytes fetched with FP16, {read:,.0f} with kvo: {full / read:.1f} times fewer")
    error = 100 * own["ppl_change_error"]
    show("", f"(standard error of the perplexity change: {error:.1f}%; KL is the sharper measure)")
    show("what kvo", "fetches, as shares of FP16 traffic:")
    for name, share in own["parts"].items():
        show("", f"{100 * share:5.2f}%  {PARTS[name]}")
    return rows


def check_compression(
    groups: Sequence[Group],
    config: AcceleratorConfig,
    calibration: ModelCalibration,
    settings: KvoSettings,
    folder: Path,
) -> tuple[dict[str, Any], list[NDArray[np.uint8]], Callable[[Path], None]]:
    """Compress and rebuild the groups in simulation; figures, the Quantizer's records, what draws a group to a file.

    Raises `DifferenceError` at the first difference from golden.
    """
    dsq, layout, count = config.dsq, record_layout(config, settings), len(groups)
    heads = list(dict.fromkeys((group.layer, group.kv_head) for group in groups))
    geometry = f"{dsq.lanes} lanes, {dsq.bus_bits}-bit bus, {dsq.delta_bits}-bit K deltas"
    name = preset_name(config)
    show("hardware", f"{geometry}{f' (python -m rtl.build --preset {name})' if name else ''}")
    names = ", ".join(f"{layer}.{kv_head}" for layer, kv_head in heads)
    show("groups", f"all {count} closed ones of {dsq.group_tokens} tokens in the heads (layer.KV head) {names}")
    expected = [golden_record(group, settings) for group in groups]
    with bar(count, "quantizer", "group") as progress:
        made = compress(groups, dsq, settings, layout.record_bytes, folder / "quantizer", progress.update)
    if difference := word_difference(groups, made.records, expected, dsq.bus_bits):
        raise DifferenceError(f"the quantizer differs from golden in {difference}")
    words = layout.record_bytes * 8 // dsq.bus_bits
    bound = Quantizer.group_cycles(dsq, settings.salient_tokens)
    show("quantizer", f"{count * words:,} words of {dsq.bus_bits} bits in {count} records: all equal to golden")
    _show_cycles("group", made, f" (its bound is {bound:,})")
    rows = [golden_rows(record, group, settings) for record, group in zip(expected, groups, strict=True)]
    with bar(count, "dequantizer", "group") as progress:
        rebuilt = rebuild(groups, made.records, dsq, settings, folder / "dequantizer", progress.update)
    if difference := row_difference(groups, list(rebuilt.rows), rows):
        raise DifferenceError(f"the dequantizer differs from golden in {difference}")
    show("dequantizer", f"{rebuilt.rows.size:,} elements of K and V: all equal to golden")
    _show_cycles("record", rebuilt, f" for {words} words")
    figures = {
        "groups": count,
        "heads": heads,
        "config": asdict(dsq),
        "record_bytes": layout.record_bytes,
        "quantizer": {
            "words_equal": count * words,
            "cycles_per_group": float(made.cycles.mean()) if len(made.cycles) else made.cycles_first,
            "cycles_most": int(made.cycles.max()) if len(made.cycles) else made.cycles_first,
            "cycles_bound": bound,
            "seconds": round(made.seconds, 1),
        },
        "dequantizer": {
            "elements_equal": rebuilt.rows.size,
            "cycles_per_group": float(rebuilt.cycles.mean()),
            "cycles_most": int(rebuilt.cycles.max()),
            "seconds": round(rebuilt.seconds, 1),
        },
    }
    place = count // 2
    return figures, made.records, partial(plot_group, groups[place], rebuilt.rows[place], calibration, settings)


def record_layout(config: AcceleratorConfig, settings: KvoSettings) -> RecordLayout:
    """How a record lies in memory."""
    return RecordLayout(
        head_dim=config.dsq.head_dim,
        group_tokens=config.dsq.group_tokens,
        salient_tokens=settings.salient_tokens,
        delta_bits=settings.delta_bits,
        bus_bits=settings.bus_bits,
    )


def check_attention(
    heads: Sequence[Head],
    groups: Sequence[Group],
    records: Sequence[NDArray[np.uint8]],
    config: AcceleratorConfig,
    settings: KvoSettings,
    folder: Path,
) -> dict[str, Any]:
    """The newest queries of ``heads`` on the simulated core, on the Quantizer's ``records`` of their groups; figures.

    Raises `DifferenceError` at the first difference from golden.
    """
    check_caches(heads, groups, records, record_layout(config, settings))
    shared, tile = config.mha.q_heads, config.mha.tile_groups
    plural = "s" if shared > 1 else ""
    show("hardware", f"{shared} query head{plural} at a time, tiles of {tile} groups, {config.dsq.bus_bits}-bit bus")
    by_head: dict[tuple[int, int], list[NDArray[np.uint8]]] = {}
    for group, record in zip(groups, records, strict=True):
        by_head.setdefault((group.layer, group.kv_head), []).append(record)
    held = {head: np.stack(own) for head, own in by_head.items()}
    with bar(len(heads) * len(MODES), "attention", "run") as progress:
        outcome = attend_heads(heads, held, config, folder / "attention", progress.update)
    for line in attention_table(outcome):
        print(f"   {line}")
    show("", f"(cycles: from a query's end to the next one's, {LATENCY} from a request to its first word;")
    show("", "error: root mean square, against float attention on the uncompressed cache)")
    ratios = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(outcome.speedups), max(outcome.speedups))))
    show("core", f"{outcome.outputs} outputs of {config.dsq.head_dim} channels: all equal to golden")
    show("", f"{ratios} times fewer cycles than dense INT8; {outcome.seconds:.0f} s, build included")
    return {
        "config": asdict(config.mha),
        "queries": QUERIES,
        "latency": LATENCY,
        "outputs_equal": outcome.outputs,
        "rows": outcome.rows,
        "speedups": outcome.speedups,
        "seconds": round(outcome.seconds, 1),
    }


def _show_cycles(unit: str, outcome: Records | Rebuilt, note: str) -> None:
    cycles = outcome.cycles if len(outcome.cycles) else np.array([outcome.cycles_first])
    text = f"{cycles.mean():,.0f} cycles per {unit}, at most {cycles.max():,}{note}"
    show("", f"{text}; {outcome.seconds:.0f} s, build included")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.demo",
        description="Compresses the KV cache of a language model: decodes a text on the compressed cache with the "
        "integer algorithm, then sends heads of the same cache through the hardware in simulation: compresses all "
        "their groups, rebuilds them, and attends to the records. Every word, element and output is compared with the "
        "golden model. Writes plots and demo.json.",
        epilog="The first run computes the model's cache and builds the simulations; they are kept, in the user's "
        "cache folder (or $KVO_CACHE) and in build/. Exit code: 0 when hardware and golden agree, 1 when they differ, "
        "2 for impossible options.",
    )
    made.add_argument(
        "--model", metavar="FILE", help="GGUF file of a Llama-type model (default: SmolLM2-135M-Instruct)"
    )
    made.add_argument(
        "--text",
        default=texts.names()[0],
        metavar="T",
        help=f"shipped text ({', '.join(texts.names())}) or path of a UTF-8 file (default: %(default)s)",
    )
    made.add_argument(
        "--context", type=int, default=4096, metavar="N", help="tokens of the text, a multiple of 64 (default: 4096)"
    )
    made.add_argument(
        "--scored",
        type=int,
        default=256,
        metavar="N",
        help="last tokens of them, decoded on the compressed cache; a multiple of 64 (default: 256)",
    )
    made.add_argument(
        "--heads",
        type=int,
        default=3,
        metavar="N",
        help="KV heads, from the first layer to the last, that are sent through the hardware (default: 3)",
    )
    made.add_argument(
        "-o", "--output", type=Path, default=OUTPUT, metavar="DIR", help="folder of the plots (default: build/demo)"
    )
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    check_scored(args.scored, args.context)
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {args.output}: {error.strerror}") from error
    plots = {name: args.output / f"{name}.png" for name in ("traffic", "pareto", "group", "attention")}
    check_plot(plots["traffic"])
    settings = default_settings()
    began, seconds = time.perf_counter(), {}
    try:
        model = load_model(args.model)
        config = hardware_config(model.config, args.context, settings)
        check_heads(model.config, args.context, settings, args.heads)
        wanted = choose_heads(model.config, args.heads)
        with section("1  A language model reads a text", seconds, "prefill"):
            sample, calibration = fetch(model, args.text, args.context, settings)
        title = f"2  The integer algorithm decodes the last {args.scored} tokens on the compressed cache"
        with section(title, seconds, "evaluation"):
            rows = evaluate(model, sample, args.text, args.scored, settings)
        groups = closed_groups(sample, calibration, settings, wanted)
        folder = args.output / "simulation"
        with section("3  The hardware compresses the same cache, simulated by Verilator", seconds, "hardware"):
            hardware, records, draw_group = check_compression(groups, config, calibration, settings, folder)
        title = f"4  The hardware attends to these records with the newest {QUERIES} queries"
        with section(title, seconds, "attention"):
            heads = list(model_heads(model, sample, calibration, settings, wanted, context=args.context, count=QUERIES))
            attention = check_attention(heads, groups, records, config, settings, folder)
    except (DifferenceError, HardwareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with section("5  Plots and figures", {}, ""):
        plot_traffic(rows, plots["traffic"])
        show("traffic", f"{_short(plots['traffic'])}: what is fetched, and of what kind")
        plot_pareto(rows, plots["pareto"])
        show("pareto", f"{_short(plots['pareto'])}: traffic against loss")
        draw_group(plots["group"])
        show("group", f"{_short(plots['group'])}: one group before and after")
        source = f"{args.context:,} tokens of {Path(args.text).name}"
        title = f"What the newest query attends to, and what the hardware read for it: {source}"
        plot_attention(heads, title, plots["attention"])
        show("attention", f"{_short(plots['attention'])}: what a query attends to, and what was read for it")
        seconds["total"] = round(time.perf_counter() - began, 1)
        record = {
            "model": model.config.name,
            "text": args.text,
            "context": args.context,
            "scored": args.scored,
            "settings": asdict(settings),
            "rows": rows,
            "hardware": hardware,
            "attention": attention,
            "seconds": seconds,
        }
        figures = args.output / "demo.json"
        try:
            figures.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {figures}: {error.strerror}") from error
        show("figures", f"{_short(figures)}: everything printed here")
    minutes, rest = divmod(round(time.perf_counter() - began), 60)
    agreed = f"{len(groups)} group{'s' if len(groups) > 1 else ''} and {attention['outputs_equal']} attention outputs"
    print(f"\nHardware and golden agree on {agreed}. Done in {minutes} min {rest} s.")
    return 0


def _short(path: Path) -> Path:
    """A path relative to the working folder where it lies inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    fix_hashes()  # or each run would emit Verilog of another order and build it anew
    main(sys.argv[1:])
