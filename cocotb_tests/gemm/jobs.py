"""Commands of GemmCore with their data: as words of its streams, and what golden makes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.gemm.projections import real_projections
from golden.gemm.core import ROTARY_TILES, ROW_TILES, Command, Fault, Limits, command_fault, output_columns, project
from golden.gemm.epilogue import ROTARY_FRACTION_BITS, Columns, Function
from golden.gemm.prologue import EPSILON_BITS, Norm, magnitude
from golden.gemm.weights import Projection
from golden.model import load_model
from rtl.config import AcceleratorConfig

__all__ = ["Job", "limits", "random_job", "real_jobs"]

Ints = NDArray[np.int64]


def limits(config: AcceleratorConfig) -> Limits:
    """What golden needs to know of a core."""
    c = config.gemm
    return Limits(
        rows=c.rows,
        max_k=c.max_k,
        act_words=c.act_words,
        weight_words=c.weight_words,
        row_lanes=c.row_lanes,
        head_dim=config.dsq.head_dim,
    )


def _words(fields: Sequence[tuple[NDArray[Any], int]]) -> list[int]:
    """One integer for each row of the arrays ``[n, elements]`` (or ``[n]``), elements of so many bits, lowest first."""
    words = [0] * len(fields[0][0])
    at = 0
    for values, bits in fields:
        for column in values.reshape(len(words), -1).T.tolist():
            mask = (1 << bits) - 1
            words = [word | (value & mask) << at for word, value in zip(words, column, strict=True)]
            at += bits
    return words


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command; ``rotary`` and ``residual`` as `project` takes them."""

    config: AcceleratorConfig
    x: NDArray[np.int32]
    projection: Projection
    command: Command
    rotary: tuple[Ints, Ints] | None = None
    residual: NDArray[np.int32] | None = None
    name: str = ""
    #: fields of the command that say something else than the data
    changes: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Activation rows."""
        return len(self.x)

    @property
    def k(self) -> int:
        """Elements of a row."""
        return self.x.shape[1]

    @property
    def columns(self) -> int:
        """Outputs, both of a pair counted."""
        return len(self.projection.weights)

    @cached_property
    def fields(self) -> dict[str, int]:
        """The command as the core gets it."""
        c = self.command
        return {
            "rows": self.rows,
            "k": self.k,
            "columns": self.columns,
            "norm": int(c.norm),
            "epsilon": c.epsilon,
            "function": int(c.function),
            "rotary_columns": c.rotary_columns,
            "half_pairs": int(c.half_pairs),
            "narrow": int(c.narrow),
            "add_residual": int(self.residual is not None),
            **self.changes,
        }

    @cached_property
    def fault(self) -> Fault:
        """Whether it is refused."""
        names = ("rows", "k", "columns", "function", "norm", "rotary_columns")
        fields = {name: self.fields[name] for name in names}
        return command_fault(**fields, add_residual=bool(self.fields["add_residual"]), limits=limits(self.config))

    @cached_property
    def golden(self) -> tuple[NDArray[np.int32], Ints]:
        """Output rows and their magnitudes."""
        p = self.projection
        return project(
            self.x,
            p.weights,
            p.columns,
            self.command,
            act_bits=self.config.gemm.act_bits,
            rotary=self.rotary,
            residual=self.residual,
        )

    def row_words(self) -> list[int]:
        """``i_row``; elements past k are junk."""
        lanes = self.config.gemm.row_lanes
        beats = -(-self.k // lanes)
        padded = np.full((self.rows, beats * lanes), -0x12345678, np.int64)
        padded[:, : self.k] = self.x
        return _words([(padded.reshape(-1, lanes), 32), (np.repeat(magnitude(self.x), beats), 5)])

    def weight_words(self) -> list[int]:
        """``i_weight``; lanes past the last column are junk."""
        columns = self.config.gemm.columns
        padded = np.full((-(-self.columns // columns) * columns, self.k), 0x55, np.int8)
        padded[: self.columns] = self.projection.weights
        tiles = np.ascontiguousarray(padded.reshape(-1, columns, self.k).transpose(0, 2, 1))
        data = tiles.tobytes()
        return [int.from_bytes(data[at : at + columns], "little") for at in range(0, len(data), columns)]

    def column_words(self) -> list[int]:
        """``i_column``."""
        c = self.projection.columns
        return _words([(c.scale, 16), (c.shift, 7), (c.bias, 32)])

    def rotary_words(self) -> list[int]:
        """``i_rotary``."""
        if self.command.function is not Function.ROTARY:
            return []
        assert self.rotary is not None
        cos, sin = self.rotary
        return _words([(cos.ravel(), 16), (sin.ravel(), 16)])

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """``row, column, second, count`` of each beat of results, in their order."""
        c, n = self.config.gemm, 2 * self.config.gemm.pairs
        swiglu = self.command.function is Function.SWIGLU
        where = output_columns(self.columns, self.command)
        rows, firsts = [], []
        for column in range(0, self.columns, c.columns):
            beats = np.arange(column, min(column + c.columns, self.columns), n)
            for row in range(0, self.rows, c.rows):
                tile = np.arange(row, min(row + c.rows, self.rows))
                rows.append(np.repeat(tile, len(beats)))
                firsts.append(np.tile(beats, len(tile)))
        row, first = np.concatenate(rows), np.concatenate(firsts)
        count = np.minimum(self.columns - first, n)
        column = first // 2 if swiglu else where[first]
        second = column + c.pairs
        if self.command.half_pairs and self.command.function is Function.ROTARY:
            second = np.where(first < self.command.rotary_columns, column + self.command.head_dim // 2, second)
        return np.stack([row, column, second, count // 2 if swiglu else count], axis=1)

    def elements(self, rows: NDArray[np.int32]) -> tuple[Ints, NDArray[np.bool_]]:
        """Elements ``[beats, 2 * pairs]`` of rows like golden's in the order of results, and which of them count."""
        pairs = self.config.gemm.pairs
        row, column, second, count = self.places.T
        lane = np.arange(2 * pairs)
        at = np.where(lane < pairs, column[:, None] + lane, second[:, None] + lane - pairs)
        counts = lane < count[:, None]
        return np.where(counts, rows[row[:, None], np.minimum(at, rows.shape[1] - 1)], 0).astype(np.int64), counts

    def residual_words(self) -> list[int]:
        """``i_residual``: answers to the requests for ``places``."""
        if self.residual is None:
            return []
        return _words([(self.elements(self.residual)[0], 32)])

    def part(self, columns: int) -> "Job":
        """Its first columns alone, which are whole heads if there are so many and any are turned."""
        p, c = self.projection, self.projection.columns
        kept = Columns(**{name: getattr(c, name)[:columns] for name in ("scale", "shift", "bias")})
        turned = min(self.command.rotary_columns, columns // self.command.head_dim * self.command.head_dim)
        return replace(
            self,
            projection=Projection(weights=p.weights[:columns], columns=kept),
            command=replace(self.command, rotary_columns=turned),
            residual=None if self.residual is None else self.residual[:, :columns],
        )


def random_job(
    draw: np.random.Generator, config: AcceleratorConfig, *, rows: int = 0, k: int = 0, columns: int = 0, **fields: Any
) -> Job:
    """A command that is not refused; what is 0 or not given is drawn."""
    c, head_dim = config.gemm, config.dsq.head_dim
    k = k or int(draw.integers(1, min(c.max_k, 4 * c.row_lanes + 20) + 1))
    room = -(-c.act_words // c.row_lanes) // -(-k // c.row_lanes)
    most = min(room, ROW_TILES, ROTARY_TILES, 4) * c.rows if k <= c.weight_words else c.rows
    rows = rows or int(draw.integers(1, most + 1))
    columns = columns or int(draw.integers(1, max(3 * c.columns, 2 * head_dim + 3) + 1))
    turns = -(-rows // c.rows) <= ROTARY_TILES
    functions = [Function.LINEAR, *[Function.ROTARY] * turns, *[Function.SWIGLU] * (columns % 2 == 0)]
    command = Command(
        norm=Norm(int(draw.integers(3))),
        epsilon=int(draw.integers(1 << int(draw.integers(EPSILON_BITS + 1)))),
        function=functions[int(draw.integers(len(functions)))],
        rotary_columns=int(draw.integers(columns // head_dim + 1)) * head_dim,
        head_dim=head_dim,
        half_pairs=bool(draw.integers(2)),
        narrow=bool(draw.integers(2)),
    )
    add_residual = fields.pop("add_residual", bool(draw.integers(2)))
    command = replace(command, **fields)
    x = draw.integers(-(1 << 31), 1 << 31, (rows, k)) >> draw.integers(0, 32, (rows, 1))
    x[draw.random((rows, k)) < 0.1] = 0
    weights = draw.integers(-127, 128, (columns, k)).astype(np.int8)
    # Results of 4 to 36 bits, of a row with the usual exponent.
    typical = c.act_bits + 22 + k.bit_length() // 2 - (16 if command.norm else 0)
    shift = np.clip(typical - draw.integers(4, 37, columns), -64, 63)
    anything = draw.random(columns) < 0.1
    projection = Projection(
        weights=weights,
        columns=Columns(
            scale=np.where(draw.random(columns) < 0.05, 0, draw.integers(1 << 15, 1 << 16, columns)),
            shift=np.where(anything, draw.integers(-64, 64, columns), shift),
            bias=draw.integers(-(1 << 31), 1 << 31, columns) >> draw.integers(0, 32, columns),
        ),
    )
    outputs = columns // 2 if command.function is Function.SWIGLU else columns
    rotary = residual = None
    if command.function is Function.ROTARY:
        angle = draw.uniform(0, 2 * np.pi, (rows, head_dim // 2))
        one = 1 << ROTARY_FRACTION_BITS
        rotary = np.rint(np.cos(angle) * one).astype(np.int64), np.rint(np.sin(angle) * one).astype(np.int64)
    elif add_residual:
        residual = (draw.integers(-(1 << 31), 1 << 31, (rows, outputs)) >> draw.integers(0, 32, (rows, 1))).astype(
            np.int32
        )
    return Job(
        config=config,
        x=x.astype(np.int32),
        projection=projection,
        command=command,
        rotary=rotary,
        residual=residual,
    )


def real_jobs(config: AcceleratorConfig, layers: Sequence[int], tokens: int) -> Iterator[Job]:
    """The four projections of layers of the embedded model, for the first tokens of a text."""
    one = 2.0**ROTARY_FRACTION_BITS
    rotary = tuple(np.floor(table * one + 0.5).astype(np.int64) for table in load_model().rotary(np.arange(tokens)))
    names = ("qkv", "attention output", "gate and up", "down")
    for real, name in zip(real_projections(layers, tokens), cycle(names), strict=False):
        yield Job(
            config=config,
            x=real.x.astype(np.int32),
            projection=real.projection,
            command=real.command,
            rotary=rotary if real.command.function is Function.ROTARY else None,
            residual=None if real.residual is None else real.residual.astype(np.int32),
            name=f"layer {real.layer}, {name}",
        )
