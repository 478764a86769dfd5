"""Cycles of a decoder layer of Llama-2-7B's shape by a formula, whose constants come from simulations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from golden.control.memory import COLUMN_BYTES
from golden.decoder import swiglu_block
from golden.gemm.core import Command
from golden.gemm.epilogue import Function
from rtl.config import AcceleratorConfig
from sim.compiler.split import column_parts
from sim.gemm import predicted_cycles
from sim.llama_shape import HIDDEN

__all__ = ["Formula", "Layer", "Stage", "compared", "dense_words", "extrapolated", "fitted", "stages"]

#: tiles whose columns' parameters a GEMM core keeps
TILES = 4


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What the cycles of a token of every sequence depend on.

    words: bus words of all queries together. closes: sequences whose group is complete.
    """

    heads: int
    ffn: int
    batch: int
    kv: str
    fused: bool
    words: float
    closes: float = 0

    @property
    def queries(self) -> int:
        """ATTEND commands."""
        return self.heads * self.batch


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Commands of one kind, which the next stage waits for.

    Parameters
    ----------
    kind: project, dma, pass, append, attend or close.
    words: that the bus carries for it.
    commands: of all queues but those of GEMM cores, of which a stage is one; a mean may be no whole number.
    array: cycles of the busiest GEMM core, if it never waits for a weight.
    cores: GEMM cores that take part.
    ahead: words of weights that these have room for before the stage begins.
    """

    kind: str
    words: float = 0
    commands: float = 1
    array: float = 0
    cores: int = 0
    ahead: float = 0


def _project(config: AcceleratorConfig, rows: int, works: Sequence[tuple[int, int, Command]]) -> Stage:
    """Projections (k, columns, command) of so many rows.

    The rows of the first tile come from the scratchpad, which gives one word a cycle for all cores.
    """
    g, word = config.gemm, config.dsq.bus_bits // 8
    cycles, words = [0.0] * g.cores, 0.0
    for number, (k, columns, command) in enumerate(works):
        parts = column_parts(config, columns, command)
        load = min(rows, g.rows) * -(-k // g.row_lanes)
        # Later commands' rows come beside the one before.
        more = load * (len(parts) - 1) if number == 0 else -load
        for core, part in enumerate(parts):
            cycles[core] += predicted_cycles(rows, k, part.columns, g) + more
            words += -(-part.columns // g.columns) * g.columns * (k + COLUMN_BYTES) / word
    k, columns, command = works[0]
    parts = column_parts(config, columns, command)
    held = [min(g.weight_words, min(TILES, -(-part.columns // g.columns)) * k) * g.columns / word for part in parts]
    return Stage(kind="project", words=words, array=max(cycles), cores=len(parts), ahead=sum(held))


def stages(config: AcceleratorConfig, layer: Layer) -> Iterator[Stage]:
    """The stages of the serial schedule, in their order."""
    g, dim, n = config.gemm, config.dsq.head_dim, layer.batch
    width, word = layer.heads * dim, config.dsq.bus_bits // 8

    def project(*works: tuple[int, int, Command]) -> Stage:
        return _project(config, n, works)

    def dma(*widths: int) -> Stage:
        return Stage(kind="dma", words=n * sum(widths) * 4 / word, commands=len(widths))

    def passed(rows: int, size: int) -> Iterator[Stage]:
        most = config.control.scratch_rows - 2 * n
        for first in range(0, rows, most):
            count = min(most, rows - first)
            yield Stage(kind="dma", words=count * size * 4 / word)
            share = min(count, -(-count // (g.cores * g.rows)) * g.rows)
            yield Stage(kind="pass", array=predicted_cycles(share, size, size, g))

    plain, swiglu = Command(), Command(function=Function.SWIGLU)
    turning = Command(function=Function.ROTARY, rotary_columns=2 * width, head_dim=dim)
    middle, gate_up = layer.ffn, 2 * layer.ffn
    yield dma(HIDDEN)
    if layer.fused:
        yield project((HIDDEN, 3 * width, turning))
    else:
        yield project(*[(HIDDEN, width, plain)] * 3)
        yield dma(width, width, width)
        for _ in range(2):
            yield from passed(n * layer.heads, dim)
        yield dma(width, width)
        yield dma(width, width, width)
    yield Stage(kind="append", commands=layer.queries)
    yield Stage(kind="attend", words=layer.words, commands=layer.queries)
    if layer.closes:
        yield Stage(kind="close", commands=layer.closes * layer.heads)
    if not layer.fused:
        yield dma(width)
        yield dma(width)
    yield project((width, HIDDEN, plain))
    if not layer.fused:
        yield dma(HIDDEN)
        yield dma(HIDDEN)
    yield project((HIDDEN, gate_up, swiglu if layer.fused else plain))
    if not layer.fused:
        block = swiglu_block(layer.ffn)
        yield dma(gate_up)
        yield from passed(n * gate_up // block, block)
        yield dma(middle)
        yield dma(middle)
    yield project((layer.ffn, HIDDEN, plain))
    yield dma(HIDDEN)


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Cycles of a layer, from measured constants.

    Parameters
    ----------
    spacing: cycles of a bus word when nothing but weights or rows is read.
    project, command, append, close: cycles that a stage of projections, a command of the DMA engine or a pass, a token
        of a head, and closing a group of a head take beyond what their words and arrays do.
    query: by kind of cache, cycles of a query and of a bus word that it reads.
    """

    spacing: float
    project: float = 0
    command: float = 0
    append: float = 0
    close: float = 0
    query: dict[str, tuple[float, float]] = field(default_factory=dict)

    def walk(self, made: Sequence[Stage], kv: str) -> Iterator[tuple[Stage, float]]:
        """Stages one after the other, each with its cycles.

        Weights of the projection that comes next are read ahead as far as there is room, beside what else reads: a
        requester among the cores, each of which gets as much of the bus as the others.
        """
        ahead = 0.0
        for number, stage in enumerate(made):
            coming = next((s for s in made[number + (stage.kind == "project") :] if s.kind == "project"), None)
            room = coming.ahead - (0 if stage.kind == "project" else ahead) if coming else 0.0
            if stage.kind == "project":
                bus = self.spacing * (stage.words - ahead)
                cycles = max(stage.array, bus) + self.project
                ahead = min(room, max(0.0, cycles - bus))
            elif stage.kind in ("append", "pass", "close"):
                own = {"append": self.append, "pass": self.command, "close": self.close}[stage.kind]
                cycles = stage.array + own * stage.commands
                ahead += min(room, cycles)
            else:
                each, per = self.query.get(kv, (0, 0)) if stage.kind == "attend" else (self.command, self.spacing)
                more = min(room, stage.words * coming.cores) if coming else 0.0
                cycles = each * stage.commands + per * stage.words + self.spacing * more
                ahead += more
            yield stage, cycles

    def parts(self, config: AcceleratorConfig, layer: Layer) -> dict[str, float]:
        """Cycles by kind of stage with the serial schedule."""
        made: dict[str, float] = {}
        for stage, cycles in self.walk(list(stages(config, layer)), layer.kv):
            made[stage.kind] = made.get(stage.kind, 0) + cycles
        return made

    def serial(self, config: AcceleratorConfig, layer: Layer) -> float:
        """Cycles of the serial schedule."""
        return sum(self.parts(config, layer).values())

    def interleaved(self, config: AcceleratorConfig, layer: Layer) -> float:
        """Cycles of the interleaved schedule with two sub-batches.

        Attention of one is beside what comes before or after attention of the other, as long as the bus has room.
        """
        sizes = (layer.batch // 2, layer.batch - layer.batch // 2)
        before, attention, after = [], [], []
        for size in sizes:
            share = size / layer.batch
            half = replace(layer, batch=size, words=layer.words * share, closes=layer.closes * share)
            costs = list(self.walk(list(stages(config, half)), layer.kv))
            place = next(i for i, (stage, _) in enumerate(costs) if stage.kind == "attend")
            for into, part in ((before, costs[:place]), (attention, [costs[place]]), (after, costs[place + 1 :])):
                into.append((sum(cycles for _, cycles in part), self.spacing * sum(stage.words for stage, _ in part)))

        def beside(one: tuple[float, float], other: tuple[float, float]) -> float:
            return max(one[0], other[0], one[1] + other[1])

        return before[0][0] + beside(attention[0], before[1]) + beside(attention[1], after[0]) + after[1][0]

    def cycles(self, config: AcceleratorConfig, layer: Layer, schedule: str) -> float:
        """Of either schedule."""
        return self.serial(config, layer) if schedule == "serial" else self.interleaved(config, layer)


def _least_squares(amounts: Sequence[Sequence[float]], cycles: Sequence[float]) -> list[float]:
    """Factors of amounts that give cycles, with small relative errors."""
    scale = 1 / np.maximum(np.array(cycles, float), 1)
    a = np.array(amounts, float) * scale[:, None]
    return [float(x) for x in np.linalg.lstsq(a, np.array(cycles, float) * scale, rcond=None)[0]]


def dense_words(config: AcceleratorConfig, tokens: int, *, padded: bool) -> int:
    """Bus words of a query of a cache of INT8 tokens, or of one whose rows take twice the words."""
    n = config.dsq.group_tokens
    sizes = [n] * (tokens // n) + ([tokens % n] if tokens % n else [])
    scales = sum(-(-8 * size // config.dsq.bus_bits) for size in sizes)
    return 2 * (scales + tokens * config.memory_map.block.row_words * (2 if padded else 1))


def extrapolated(
    config: AcceleratorConfig, formula: Formula, *, heads: int, ffn: int, batch: int, tokens: int, words: float
) -> list[dict[str, Any]]:
    """Rows of a whole layer, the first one is compared with; ``words``: of a query of a compressed cache."""
    made: list[dict[str, Any]] = []
    for kv, fused in (("dense16", False), ("dense", False), ("dense", True), ("dsq+hcap", True)):
        each = words if kv == "dsq+hcap" else dense_words(config, tokens, padded=kv == "dense16")
        closes = batch / config.dsq.group_tokens if kv == "dsq+hcap" else 0
        total = each * heads * batch
        layer = Layer(heads=heads, ffn=ffn, batch=batch, kv=kv, fused=fused, words=total, closes=closes)
        moved = sum(stage.words for stage in stages(config, layer))
        schedules = ("serial", "interleaved") if kv == "dsq+hcap" else ("serial",)
        found = {name: formula.cycles(config, layer, name) for name in schedules}
        best = min(found, key=lambda name: found[name])
        made.append(
            {
                "kv": kv,
                "fusion": "on" if fused else "off",
                "schedules": found,
                "schedule": best,
                "cycles": found[best],
                "parts": formula.parts(config, layer),
                "bytes": moved * config.dsq.bus_bits / 8,
            }
        )
    for name, base in zip(("dense16", "dense"), made, strict=False):
        for row in made:
            row[f"over_{name}"] = base["cycles"] / row["cycles"]
            row[f"limit_{name}"] = base["bytes"] / row["bytes"]
    return made


def fitted(config: AcceleratorConfig, rows: Sequence[dict[str, Any]]) -> Formula:
    """The formula whose constants come from these rows, all of the serial schedule.

    Those of queries, tokens and closes are from the cycles of their stages, the others make relative errors small.
    """
    layers = [Layer(**row["layer"]) for row in rows]
    query: dict[str, tuple[float, float]] = {}
    for kv in dict.fromkeys(layer.kv for layer in layers):
        own = [(row, layer) for row, layer in zip(rows, layers, strict=True) if layer.kv == kv]
        beside = [Formula(spacing=1).parts(config, layer)["attend"] for _, layer in own]
        cycles = [row["spans"]["attend"] - more for (row, _), more in zip(own, beside, strict=True)]
        query[kv] = tuple(_least_squares([(layer.queries, layer.words) for _, layer in own], cycles))  # type: ignore
    own = {kind: sum(row["spans"].get(kind, 0) for row in rows) for kind in ("append", "close")}
    counts = {kind: sum(_count(config, layer, kind) for layer in layers) for kind in own}
    each = {kind: own[kind] / counts[kind] if counts[kind] else 0.0 for kind in own}
    best, least = Formula(spacing=1), np.inf
    for spacing in np.arange(0.97, 1.2, 0.005).tolist():
        bare = Formula(spacing=spacing, query=query, **each)
        amounts, rest, scale = [], [], []
        for layer, row in zip(layers, rows, strict=True):
            amounts.append([_count(config, layer, "project"), sum(_count(config, layer, k) for k in ("dma", "pass"))])
            rest.append(row["cycles"] - bare.serial(config, layer))
            scale.append(1 / row["cycles"])
        weighted = np.array(amounts) * np.array(scale)[:, None]
        factors = np.maximum(np.linalg.lstsq(weighted, np.array(rest) * scale, rcond=None)[0], 0)
        made = replace(bare, project=float(factors[0]), command=float(factors[1]))
        found = [made.serial(config, layer) / row["cycles"] - 1 for layer, row in zip(layers, rows, strict=True)]
        if np.square(found).sum() < least:
            best, least = made, float(np.square(found).sum())
    return best


def _count(config: AcceleratorConfig, layer: Layer, kind: str) -> float:
    """Commands in stages of a kind."""
    return sum(stage.commands for stage in stages(config, layer) if stage.kind == kind)


def compared(config: AcceleratorConfig, formula: Formula, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with what the formula says; ``error`` is its relative one."""
    made = []
    for row in rows:
        cycles = formula.cycles(config, Layer(**row["layer"]), row["schedule"])
        made.append({**row, "formula": cycles, "error": cycles / row["cycles"] - 1})
    return made
