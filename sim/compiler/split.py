"""Projections in parts: columns over the GEMM cores, rows over commands that a core does not refuse."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

from golden.control.commands import LINE_BYTES
from golden.gemm.core import Command, Fault, Limits, command_fault
from golden.gemm.epilogue import Function
from rtl.config import AcceleratorConfig

__all__ = ["Part", "angle_rows", "column_parts", "limits", "row_parts"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one core does of a projection: columns from ``begin`` up to ``end``, the first ``rotary`` of them turned.

    Its results go from element ``target`` of the output row on.
    """

    begin: int
    end: int
    rotary: int
    target: int

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.end - self.begin


def limits(config: AcceleratorConfig) -> Limits:
    """What a core's refusals depend on."""
    g = config.gemm
    return Limits(
        rows=g.rows,
        max_k=g.max_k,
        act_words=g.act_words,
        weight_words=g.weight_words,
        row_lanes=g.row_lanes,
        head_dim=config.dsq.head_dim,
    )


def column_parts(config: AcceleratorConfig, columns: int, command: Command) -> list[Part]:
    """The columns of a projection in at most as many parts as there are cores, the largest as small as possible.

    A part has whole tiles, unless it ends a projection or the turned columns; its results begin a word of the
    scratchpad, and turned columns are whole heads.
    """
    g, head_dim = config.gemm, config.dsq.head_dim
    swiglu, turned = command.function is Function.SWIGLU, 0
    unit = lcm(g.columns, g.row_lanes * (2 if swiglu else 1))
    if command.function is Function.ROTARY:
        turned = command.rotary_columns
    bounds = [*range(0, turned, lcm(head_dim, g.row_lanes)), *range(turned, columns, unit), columns]
    most = next(size for size in sorted(_sizes(bounds, g.cores)) if len(_cut(bounds, size)) <= g.cores + 1)
    return [
        Part(
            begin=begin,
            end=end,
            rotary=min(max(turned - begin, 0), end - begin),
            target=begin // 2 if swiglu else begin,
        )
        for begin, end in pairwise(_cut(bounds, most))
    ]


def _sizes(bounds: Sequence[int], cores: int) -> set[int]:
    """Sizes that the largest part may have: nothing else is the distance of two bounds."""
    least = max(-(-bounds[-1] // cores), max(end - begin for begin, end in pairwise(bounds)))
    return {end - begin for i, begin in enumerate(bounds) for end in bounds[i + 1 :] if end - begin >= least}


def _cut(bounds: Sequence[int], most: int) -> list[int]:
    """Bounds of parts, each as large as ``most`` allows."""
    cut = [0]
    for here, following in pairwise(bounds):
        if following - cut[-1] > most:
            cut.append(here)
    return [*cut, bounds[-1]]


def angle_rows(head_dim: int) -> int:
    """Rows of angles that fill lines: others cannot be addressed."""
    return lcm(LINE_BYTES, 2 * head_dim) // (2 * head_dim)


def row_parts(config: AcceleratorConfig, rows: int, k: int, columns: int, command: Command) -> list[tuple[int, int]]:
    """First row and number of rows of each command for ``rows`` rows, as few as a core allows.

    Raises `ValueError` when it refuses even the smallest number.
    """
    turns = command.function is Function.ROTARY
    unit = lcm(config.gemm.rows, angle_rows(config.dsq.head_dim) if turns else 1)

    def fault(count: int) -> Fault:
        return command_fault(
            count,
            k,
            columns,
            function=command.function,
            norm=command.norm,
            rotary_columns=command.rotary_columns,
            add_residual=False,
            limits=limits(config),
        )

    if fault(rows) is Fault.NONE:
        return [(0, rows)]
    most = next((count for count in range(rows // unit * unit, 0, -unit) if fault(count) is Fault.NONE), 0)
    if not most:
        raise ValueError(f"a GEMM core must take {unit} rows of {k} elements, not {fault(unit).name}")
    return [(first, min(most, rows - first)) for first in range(0, rows, most)]
