"""A decoder layer of Llama-2-7B's shape at long contexts: parts of it on the RTL, the whole of it by a formula."""

import argparse
import copy
import json
import pickle
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from cocotb_tests.cache.system import System
from cocotb_tests.control.plans import Plan, dram_for, plan_for
from cocotb_tests.control.system import EVENTS, LoggedAccelerator
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from cocotb_tests.lib.dram_parts import PARTS
from golden.cache.cache import fetched_words
from golden.decoder import DecoderLayer
from golden.dsq.record import RecordLayout
from golden.errors import UserError, main_guard
from golden.kvo_method import score_shift
from golden.mha.core import Fetch, attend
from golden.model import Model, load_model, texts
from golden.settings import KvoSettings
from rtl.build import fix_hashes
from rtl.config import AcceleratorConfig, preset
from rtl.control._event_log import EventKind
from sim.attention import DifferenceError
from sim.compiler import Program, compile_layer
from sim.layer_cycles import Layer, compared, extrapolated, fitted
from sim.llama_shape import FFN, HEADS, ShapeMaker, spread
from sim.progress import watch
from sim.simulators import ROOT, SimulationError

__all__ = ["CHECKS", "FITS", "Point", "accelerator", "figures", "main", "query_words", "sampled_words", "simulate"]

#: how far the formula may be off
TOLERANCE = 0.02
#: heads of the layers that are simulated, and which pairs they are
SIMULATED_HEADS = 2
#: tokens of an open group on average: contexts end in the middle of one
HALF_GROUP = 32
#: memory of the simulation, pages of each kind, rows with magnitudes, groups
_LINES, _PAGES, _ROWS, _GROUPS = 1 << 21, 2048, 1280, 544
_LIMIT = 20_000_000
_STAGES = {
    **dict.fromkeys(("qkv", "attention_output", "gate_up", "down"), "project"),
    **dict.fromkeys(("rotary", "swiglu"), "pass"),
    "attend": "attend",
    "append": "append",
    **dict.fromkeys(("close", "page"), "close"),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A layer with `SIMULATED_HEADS` heads that is simulated, one token of each sequence."""

    kv: str
    fused: bool
    contexts: tuple[int, ...]
    ffn: int = 256
    schedule: str = "serial"

    @property
    def name(self) -> str:
        """For tables and messages."""
        sizes = f"batch {len(self.contexts)}, {max(self.contexts) + 1:,} tokens, ffn {self.ffn}"
        return f"{self.schedule}, {self.kv}, fusion {'on' if self.fused else 'off'}, {sizes}"


def _middle(tokens: int) -> int:
    """Cached tokens of about so many, such that the new token is in the middle of a group."""
    return tokens - HALF_GROUP - 1


#: what the constants are from
FITS = (
    Point(kv="dense16", fused=False, contexts=(_middle(192),) * 20, ffn=512),
    Point(kv="dense", fused=True, contexts=(_middle(192),) * 20, ffn=512),
    Point(kv="dense16", fused=False, contexts=(_middle(4096),), ffn=1024),
    Point(kv="dense", fused=True, contexts=(_middle(4096),)),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(2048),) * 2),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(32768),) * 2),
    Point(kv="dsq+hcap", fused=True, contexts=(2047,) * 2),  # its token completes a group
)
#: what the formula is compared with
CHECKS = (
    Point(kv="dense", fused=False, contexts=(_middle(8192),)),
    Point(kv="dense16", fused=False, contexts=(_middle(16384),)),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(8192),) * 4),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(24576),) * 3),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(4096),) * 6, schedule="interleaved"),
    Point(kv="dsq+hcap", fused=True, contexts=(_middle(2048),) * 20, schedule="interleaved"),
)


def accelerator(name: str) -> AcceleratorConfig:
    """A preset with memory for the layers that are simulated."""
    base = preset(name)
    cache = replace(base.cache, streams=SIMULATED_HEADS, record_pages=_PAGES, block_pages=_PAGES)
    mha = replace(base.mha, max_groups=max(base.mha.max_groups, _GROUPS))
    control = replace(base.control, scratch_rows=max(base.control.scratch_rows, _ROWS))
    return replace(base, cache=cache, mha=mha, control=control)


def layout_for(config: AcceleratorConfig, settings: KvoSettings) -> RecordLayout:
    """Of the records."""
    d = config.dsq
    return RecordLayout(
        head_dim=d.head_dim,
        group_tokens=d.group_tokens,
        salient_tokens=settings.salient_tokens,
        delta_bits=d.delta_bits,
        bus_bits=d.bus_bits,
    )


def query_words(config: AcceleratorConfig, settings: KvoSettings, fetch: Fetch, *, padded: bool) -> int:
    """Bus words that a query reads of the cache; padded: rows of INT8 tokens take twice the words."""
    words = int(fetched_words(fetch, layout_for(config, settings)).sum())
    if not padded:
        return words
    return words + config.memory_map.block.row_words * (fetch.v_int8.shape[1] + int(fetch.v_int8.sum()))


def _plan(maker: ShapeMaker, point: Point) -> tuple[Plan, Program, Layer]:
    """What the simulator is told of a point; golden decodes for it."""
    kv, padded = ("dense", True) if point.kv == "dense16" else (point.kv, False)
    batch = maker.make(point.contexts, 1, kv=kv, fused=point.fused)
    x, positions = batch.x, batch.positions
    program = compile_layer(maker.config, batch.decoder, x, positions=positions, schedule=point.schedule)
    after: DecoderLayer = copy.copy(batch.decoder)
    after.sequences = [[state.copy() for state in states] for states in batch.decoder.sequences]
    step = after.step(range(len(point.contexts)), x[0], positions[0])
    fetches = [fetch for of_sequence in step.fetches for fetch in of_sequence]
    words = sum(query_words(maker.config, batch.decoder.settings, fetch, padded=padded) for fetch in fetches)
    layer = Layer(
        heads=SIMULATED_HEADS,
        ffn=point.ffn,
        batch=len(point.contexts),
        kv=point.kv,
        fused=point.fused,
        words=words,
        closes=sum(not (n + 1) % maker.config.dsq.group_tokens for n in point.contexts) if kv != "dense" else 0,
    )
    return plan_for(point.name, program, after, [step.out], padded=padded, limit=_LIMIT), program, layer


def simulate(
    config: AcceleratorConfig,
    model: Model,
    points: Sequence[Point],
    *,
    dram: dict[str, Any],
    folder: Path,
    lines: int = _LINES,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """The points on Verilator, a row for each, see `figures`; all of memory is compared with golden.

    lines: of 64 bytes, the memory's. Raises `DifferenceError` at the first difference, or when a queue stops.
    """
    try:
        memory = dram_for(config, lines, **dram)
    except ValueError as error:
        raise UserError(str(error)) from None
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    makers: dict[int, ShapeMaker] = {}
    made = []
    for point in tqdm(points, desc="golden", unit="layer", disable=not progress):
        if point.ffn not in makers:
            pairs = spread(SIMULATED_HEADS, model.config.layers * model.config.kv_heads // 2)
            makers[point.ffn] = ShapeMaker(config, model, pairs, ffn=point.ffn, progress=progress)
        made.append(_plan(makers[point.ffn], point))
        if made[-1][1].lines > lines:
            raise ValueError(f"lines must be at least {made[-1][1].lines} for {point.name}, not {lines}")
    plans = [plan for plan, _, _ in made]
    (folder / "plans.pkl").write_bytes(pickle.dumps({"config": config, "dram": memory, "plans": plans}))
    run = partial(
        launch.run,
        System(LoggedAccelerator(config), memory),
        name="throughput",
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
    return [
        figures(result, point, program, layer, config)
        for result, point, (_, program, layer) in zip(results, points, made, strict=True)
    ]


def figures(
    result: dict[str, Any], point: Point, program: Program, layer: Layer, config: AcceleratorConfig
) -> dict[str, Any]:
    """What follows from a point's counts: cycles in all, and ``spans``, those of each kind of stage.

    A cycle belongs to the command that ends next; with the serial schedule that is the stage under way.
    """
    events, spans = result["events"], Counter[str]()
    before = begin = min(event[0] for event in events)
    for now, _, kind, tag in sorted(events):
        if kind == EventKind.END.value:
            spans[_STAGES.get(program.tags[tag].stage, "dma")] += now - before
            before = now
    read, written = result["counters"]["read_words"], result["counters"]["write_words"]
    return {
        "name": point.name,
        "schedule": point.schedule,
        "layer": vars(layer),
        "cycles": before - begin,
        "spans": dict(spans),
        "queries_words": read[0] + read[1],
        "words": sum(read) + sum(written),
        "events_lost": len(events) >= EVENTS,
    }


def sampled_words(
    config: AcceleratorConfig, model: Model, context: int, count: int, *, progress: bool = False
) -> list[int]:
    """Bus words of the compressed cache that golden reads for a query of each of ``count`` heads, texts by turns."""
    pairs = spread(count, model.config.layers * model.config.kv_heads // 2)
    maker = ShapeMaker(config, model, pairs, progress=progress)
    made = []
    for h in tqdm(range(count), desc="traffic", unit="head", disable=not progress):
        name = texts.names()[h % len(texts.names())]
        state, q_row = maker.query(name, context, h)
        state.settings = replace(state.settings, prune=True)
        c = maker.calibration
        shift = score_shift(int(c.q_fraction[0, h]), int(c.k_fraction[0, h]), maker.shape.head_dim)
        _, fetch = attend(state, q_row[None, None], shift=shift)
        made.append(query_words(config, state.settings, fetch, padded=False))
    return made


def point_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: each simulated point."""
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'simulated':{width}}       cycles      formula    error  use"]
    for row in rows:
        lines.append(
            f"{row['name']:{width}}  {row['cycles']:11,}  {row['formula']:11,.0f}  {100 * row['error']:+6.2f}%  "
            f"{row['use']}"
        )
    return lines


def layer_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: each extrapolated row."""
    lines = [
        "extrapolated                              cycles     attention   projections         other     MB moved  "
        "x dense16 (limit)    x dense (limit)"
    ]
    for row in rows:
        parts = row["parts"]
        other = sum(cycles for kind, cycles in parts.items() if kind not in ("attend", "project"))
        name = f"{row['schedule']}, {row['kv']}, fusion {row['fusion']}"
        lines.append(
            f"{name:34}  {row['cycles']:12,.0f}  {parts['attend']:12,.0f}  {parts['project']:12,.0f}  {other:12,.0f}  "
            f"{row['bytes'] / 1e6:11,.1f}  {row['over_dense16']:8.2f} ({row['limit_dense16']:6.2f})  "
            f"{row['over_dense']:8.2f} ({row['limit_dense']:6.2f})"
        )
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.throughput",
        description="Cycles of one token of every sequence in a decoder layer of Llama-2-7B's shape (hidden 4096, "
        "heads of 128 channels). Layers with few heads, a small MLP and the asked hardware are simulated on the RTL of "
        "the whole accelerator (Verilator), with a DRAM that has the timing of a named part, and compared with golden "
        "bit for bit. A formula with constants from some of them must agree with the others within "
        f"{100 * TOLERANCE:.0f}%; only then it says how long the whole layer takes.",
        epilog="Caches and queries are real ones of the embedded model, two heads side by side. Rows of the last table "
        "are extrapolated, none of them is simulated; limit: the ratio of bytes moved. Exit code: 0, or 1 when "
        "hardware and golden, or hardware and formula, differ, 2 for impossible options. The first run builds the "
        "simulator, which takes several minutes.",
    )
    made.add_argument("--preset", choices=("llama2-7b", "dac25"), default="llama2-7b", help="default: %(default)s")
    made.add_argument("--batch", type=int, default=20, metavar="N", help="sequences (default: %(default)s)")
    made.add_argument(
        "--context",
        type=int,
        default=32768,
        metavar="N",
        help="tokens, rounded to a group's middle (default: %(default)s)",
    )
    made.add_argument("--heads", type=int, default=HEADS, metavar="N", help="of the layer (default: %(default)s)")
    made.add_argument("--ffn", type=int, default=FFN, metavar="N", help="of the layer (default: %(default)s)")
    made.add_argument(
        "--sample",
        type=int,
        default=HEADS,
        metavar="N",
        help="heads whose traffic at that context golden counts (default: %(default)s)",
    )
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
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return made


def _check(args: argparse.Namespace) -> None:
    """Options that nothing can be made of."""
    for name, least, most in (
        ("batch", 2, 256),
        ("context", 2 * HALF_GROUP + 1, 32768),
        ("heads", 1, 256),
        ("ffn", 16, 1 << 16),
        ("sample", 1, 256),
        ("latency", 0, 1000),
    ):
        value = getattr(args, name)
        if not least <= value <= most:
            raise UserError(f"--{name} must be from {least} to {most}, not {value}")
    if args.ffn % 16:
        raise UserError(f"--ffn must be a multiple of 16, not {args.ffn}")
    if args.json is not None and not args.json.resolve().parent.is_dir():
        raise UserError(f"cannot write {args.json}: there is no directory {args.json.resolve().parent}")


def report(
    args: argparse.Namespace, config: AcceleratorConfig, model: Model, rows: Sequence[dict[str, Any]], began: float
) -> int:
    """Tables of the simulated points ``rows`` and, if the formula agrees, of the whole layer; the exit code."""
    uses = ["fit"] * len(FITS) + ["check"] * len(CHECKS)
    formula = fitted(config, rows[: len(FITS)])
    rows = compared(config, formula, [{**row, "use": use} for row, use in zip(rows, uses, strict=True)])
    print("\n".join(point_table(rows)))
    worst = max(rows, key=lambda row: abs(row["error"]) if row["use"] == "check" else 0)
    if abs(worst["error"]) > TOLERANCE:
        print(f"error: hardware and formula differ: {worst['name']}: {100 * worst['error']:+.1f}%", file=sys.stderr)
        return 1
    tokens = _middle(args.context) + 1
    words = sampled_words(config, model, tokens - 1, args.sample, progress=sys.stderr.isatty())
    sizes = {"heads": args.heads, "ffn": args.ffn, "batch": args.batch, "tokens": tokens}
    whole = extrapolated(config, formula, **sizes, words=float(np.mean(words)))
    made = ", ".join(f"{name} {value:.4g}" for name, value in vars(formula).items() if name != "query")
    queries = "; ".join(f"{kv} {a:.0f} + {b:.4f} a word" for kv, (a, b) in formula.query.items())
    print(f"constants: {made}; cycles of a query: {queries}")
    print(
        f"{args.heads} heads, ffn {args.ffn}, batch {args.batch}, {tokens:,} tokens; words of a compressed query: mean "
        f"{np.mean(words):,.0f}, from {min(words):,} to {max(words):,}, golden's of {len(words)} heads"
    )
    print("\n".join(layer_table(whole)))
    print(f"{args.dram}, {args.latency} cycles of controller; {time.perf_counter() - began:.0f} s, build included")
    record = {
        "preset": args.preset,
        "config": config.to_dict(),
        **sizes,
        "points": rows,
        "formula": vars(formula),
        "sampled_words": words,
        "extrapolated": whole,
    }
    if args.json:
        try:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    _check(args)
    config, model = accelerator(args.preset), load_model(None)
    began, progress = time.perf_counter(), sys.stderr.isatty()
    dram = {"part": args.dram, "clock_mhz": args.clock, "latency": args.latency}
    folder = ROOT / "build" / "throughput"
    try:
        rows = simulate(config, model, [*FITS, *CHECKS], dram=dram, folder=folder, progress=progress)
    except (SimulationError, DifferenceError) as error:
        kind = "hardware and golden differ" if isinstance(error, DifferenceError) else "simulation failed"
        print(f"error: {kind}: {error}", file=sys.stderr)
        return 1
    return report(args, config, model, rows, began)


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
