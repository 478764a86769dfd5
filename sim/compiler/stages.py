"""Stages of a sub-batch: commands that wait together for what came before, and that the next stage waits for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm

from golden.control.commands import LINE_BYTES, Opcode, Wait
from golden.control.memory import row_bytes
from golden.gemm.epilogue import Function
from rtl.config import AcceleratorConfig
from sim.compiler.places import Matrix, Placed, Room
from sim.compiler.program import Queues, Tag
from sim.compiler.split import Part, angle_rows, row_parts

__all__ = ["Batch", "add_dma", "add_pass", "add_projections", "rows_operands"]


@dataclass(kw_only=True)
class Batch:
    """A sub-batch under way; ``last``: its last stage is complete. ``closes``: sequences whose open group is full, and
    when their attention to it is complete."""

    index: int
    sequences: range
    room: Room
    last: Wait | None = None
    closes: list[tuple[int, Wait]] = field(default_factory=list)

    def tag(self, stage: str) -> Tag:
        """Of what serves all of its sequences."""
        return Tag(self.index, stage)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Rows of ``source`` through a projection to ``target``; ``parts``: who has written the source."""

    placed: Placed
    source: Matrix
    target: Matrix
    parts: int = 1
    residual: Matrix | None = None
    angles: int = 0


def rows_operands(matrix: Matrix, address: int, rows: int, k: int, first: int = 0) -> dict[str, int]:
    """Operands that LOAD and STORE share: rows from ``first`` on, which lie at a line of memory."""
    return {
        "address": address + first * row_bytes(k) // LINE_BYTES,
        "rows": rows,
        "k": k,
        "scratchpad": matrix.base + first * matrix.stride,
        "stride": matrix.stride,
    }


def add_dma(queues: Queues, batch: Batch, stage: str, opcode: Opcode, *operands: dict[str, int]) -> None:
    """A stage of LOAD or STORE commands."""
    for given in operands:
        queues.add("dma", batch.tag(stage), opcode, given, batch.last)
    batch.last = queues.reached(batch.index, "dma")


def _project(config: AcceleratorConfig, work: Work, part: Part, line: int, first: int, rows: int) -> dict[str, int]:
    """Operands of PROJECT for some rows and a part of the columns."""
    command, lanes = work.placed.command, config.gemm.row_lanes
    turns = command.function is Function.ROTARY and part.rotary > 0
    target, residual = work.target, work.residual
    place = part.target // lanes
    operands = {
        "stream": line,
        "epsilon_low": command.epsilon & 0xFFFFFFFF,
        "epsilon_high": command.epsilon >> 32,
        "rows": rows,
        "k": work.placed.k,
        "norm": command.norm,
        "function": command.function if turns or command.function is not Function.ROTARY else Function.LINEAR,
        "half_pairs": command.half_pairs and turns,
        "narrow": command.narrow,
        "parts": work.parts,
        "columns": part.columns,
        "source": work.source.base + first * work.source.stride,
        "source_stride": work.source.stride,
        "target": target.base + first * target.stride + place,
        "target_stride": target.stride,
        "source_magnitude": work.source.magnitude + first,
        "target_magnitude": target.magnitude + first,
    }
    if turns:
        operands["rotary_columns"] = part.rotary
        operands["angles"] = work.angles + first * 2 * config.dsq.head_dim // LINE_BYTES
    if residual is not None:
        operands["add_residual"] = 1
        operands["residual"] = residual.base + first * residual.stride + place
        operands["residual_stride"] = residual.stride
    return {name: int(value) for name, value in operands.items()}


def add_projections(config: AcceleratorConfig, queues: Queues, batch: Batch, stage: str, works: Sequence[Work]) -> None:
    """A stage of projections of all rows of a sub-batch, the columns of each split over the cores."""
    cores: list[list[dict[str, int]]] = [[] for _ in range(queues.cores)]
    for work in works:
        p = work.placed
        for first, rows in row_parts(config, len(batch.sequences), p.k, p.columns, p.command):
            for core, (part, line) in enumerate(p.parts):
                cores[core].append(_project(config, work, part, line, first, rows))
    queues.add_stage(batch.tag(stage), cores, batch.last)
    batch.last = queues.reached(batch.index, "gemm")


def add_pass(
    config: AcceleratorConfig, queues: Queues, batch: Batch, stage: str, work: Work, address: int, rows: int
) -> None:
    """A pass of its own over ``rows`` rows in memory at a line: loaded, and split over the cores by rows.

    As many at a time as there are magnitudes for; raises `ValueError` when these are too few.
    """
    p, room, h = work.placed, batch.room, config.dsq.head_dim
    unit = angle_rows(h) if p.command.function is Function.ROTARY else 1
    most = room.views // unit * unit
    if not most:
        raise ValueError(f"control.scratch_rows must leave {unit} rows for passes of their own, not {room.views}")
    ((part, line),) = p.parts
    for begin in range(0, rows, most):
        count = min(most, rows - begin)
        source = work.source._replace(magnitude=room.view_magnitude - begin)
        target = work.target._replace(magnitude=room.view_magnitude - begin)
        load = rows_operands(source, address, count, p.k, begin)
        add_dma(queues, batch, f"{stage}.load", Opcode.LOAD, {**load, "magnitude": room.view_magnitude})
        own = Work(placed=p, source=source, target=target, angles=work.angles)
        tile = lcm(config.gemm.rows, unit)
        share = -(-count // (queues.cores * tile)) * tile
        cores = []
        for first in range(0, count, share):
            pieces = row_parts(config, min(share, count - first), p.k, p.columns, p.command)
            cores.append([_project(config, own, part, line, begin + first + at, size) for at, size in pieces])
        queues.add_stage(batch.tag(stage), cores, batch.last)
        batch.last = queues.reached(batch.index, "gemm")
