"""Sums of the array, with all that the epilogue needs to finish them."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for

from golden.gemm.core import ROW_TILES
from golden.gemm.epilogue import Function
from rtl.config import AcceleratorConfig, GemmConfig
from rtl.gemm._column_buffer import ColumnBuffer
from rtl.gemm._command import ROW_BITS, SIZE_BITS
from rtl.gemm._factor_ring import FactorRing
from rtl.gemm._rotary_table import RotaryTable
from rtl.gemm.array import PeArray

__all__ = ["SumCollector", "place_layout", "residual_layout"]


def place_layout(config: GemmConfig) -> data.StructLayout:
    """Where a beat belongs: element 0 to ``column`` of ``row``; with ``halves`` the second members of pairs lie apart.

    ``count`` of its elements count. ``row_ends``: no other beat of the row in this tile. ``first``, ``final``: of the
    tiles of columns. ``last`` of its command.
    """
    return data.StructLayout(
        {
            "row": bits_for(ROW_TILES * config.rows - 1),
            "column": SIZE_BITS,
            "halves": 1,
            "count": bits_for(2 * config.pairs),
            "row_ends": 1,
            "first": 1,
            "final": 1,
            "last": 1,
        }
    )


def residual_layout() -> data.StructLayout:
    """Which residual is asked for."""
    return data.StructLayout({"row": ROW_BITS, "column": SIZE_BITS})


class SumCollector(wiring.Component):
    """Follows the tiles that the array drains: each beat with its row's factor, its columns' parameters, its angles.

    Beats wait for what belongs to them. A beat that takes a residual asks for it when it goes on.

    Latency: ``latency`` cycles. Throughput: a beat a cycle.
    Combinational paths: from ``o.ready`` and ``o_residual.ready`` to ``i.ready``, ``o_residual.ready`` to ``o.valid``.

    Members
    -------
    i_command : stream of struct{rows, columns, function, rotary_columns, half_pairs, narrow, add_residual}; taken with
        the last beat
    i : stream of sums, as `PeArray` gives them
    i_factor : ``i`` of `FactorRing`
    i_column_command, i_column : ``i_command`` and ``i`` of `ColumnBuffer`
    i_rotary_command, i_rotary : ``i_command`` and ``i`` of `RotaryTable`
    o : stream of beats, as `Epilogue` takes them, with `place_layout` as tag
    o_residual : stream of `residual_layout`
    """

    latency = 1

    def __init__(self, config: AcceleratorConfig, array: PeArray, beat: data.Layout) -> None:
        self.config = config
        self._factors, self._columns = FactorRing(config.gemm), ColumnBuffer(config.gemm)
        self._rotary = RotaryTable(config)
        command = {
            "rows": ROW_BITS,
            "columns": SIZE_BITS,
            "function": 2,
            "rotary_columns": SIZE_BITS,
            "half_pairs": 1,
            "narrow": 1,
            "add_residual": 1,
        }
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout(command))),
                "i": In(stream.Signature(array.o_shape)),
                "i_factor": In(self._factors.i.signature.flip()),
                "i_column_command": In(self._columns.i_command.signature.flip()),
                "i_column": In(self._columns.i.signature.flip()),
                "i_rotary_command": In(self._rotary.i_command.signature.flip()),
                "i_rotary": In(self._rotary.i.signature.flip()),
                "o": Out(stream.Signature(beat)),
                "o_residual": Out(stream.Signature(residual_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.factors = factors = self._factors
        m.submodules.columns = columns = self._columns
        m.submodules.rotary = rotary = self._rotary
        for outer, inner in (
            (self.i_factor, factors.i),
            (self.i_column_command, columns.i_command),
            (self.i_column, columns.i),
            (self.i_rotary_command, rotary.i_command),
            (self.i_rotary, rotary.i),
        ):
            connect(m, flipped(outer), inner)
        c, command, sums = self.config.gemm, self.i_command.payload, self.i.payload

        advance, taken, tile_ends = Signal(), Signal(), Signal()
        row, column, tile_column = Signal(ROW_BITS), Signal(SIZE_BITS), Signal(SIZE_BITS)
        left = command.columns - column
        last_rows = command.rows - row <= c.rows
        last_columns = command.columns - tile_column <= c.columns
        row_ends = (sums.beat == c.beats - 1) | (left <= 2 * c.pairs)
        turns = command.function == Function.ROTARY
        turned = turns & (column < command.rotary_columns)
        ends, columns_end = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(
                advance & self.i_command.valid & columns.available & factors.available & (~turns | rotary.available)
            ),
            taken.eq(self.i.valid & self.i.ready),
            tile_ends.eq(taken & sums.last),
            columns_end.eq(tile_ends & last_rows),
            ends.eq(columns_end & last_columns),
            self.i_command.ready.eq(ends),
            columns.release.eq(columns_end),
            columns.r_beat.eq(sums.beat),
            factors.release.eq(taken & row_ends & last_columns),
            rotary.release.eq(ends & turns),
            rotary.r_row.eq(row + sums.row),
        ]
        first_columns = Signal(init=1)
        with m.If(taken):
            m.d.sync += column.eq(Mux(row_ends, tile_column, column + 2 * c.pairs))
        with m.If(tile_ends):
            m.d.sync += row.eq(Mux(last_rows, 0, row + c.rows))
        with m.If(columns_end):
            following = Mux(last_columns, 0, tile_column + c.columns)
            m.d.sync += [column.eq(following), tile_column.eq(following), first_columns.eq(last_columns)]
        self._factor_index(m, tile_ends, last_rows, last_columns)
        beat = self._head_beat(m, taken, row_ends, columns_end, last_columns)

        place = Signal(place_layout(c))
        gates, most = command.function == Function.SWIGLU, Signal.like(place.count)
        m.d.comb += [
            most.eq(Mux(left < 2 * c.pairs, left, 2 * c.pairs)),
            place.row.eq(row + sums.row),
            place.halves.eq(turned & command.half_pairs),
            place.column.eq(Mux(gates, column >> 1, column - Mux(place.halves, c.pairs * beat, 0))),
            place.count.eq(Mux(gates, most >> 1, most)),
            place.row_ends.eq(row_ends),
            place.first.eq(first_columns),
            place.final.eq(last_columns),
            place.last.eq(sums.last & last_rows & last_columns),
        ]
        self._give(m, advance, taken, turned, place)
        return m

    def _factor_index(self, m: Module, tile_ends: Value, last_rows: Value, last_columns: Value) -> None:
        """Where the factor of a row is."""
        factors, sums = self._factors, self.i.payload
        begin, tile = (Signal(factors.index_bits, name=name) for name in ("factor_begin", "factor_tile"))
        m.d.comb += factors.r_index.eq(tile + sums.row)
        with m.If(tile_ends):
            m.d.sync += tile.eq(tile + self.config.gemm.rows)
            with m.If(last_rows & last_columns):
                m.d.sync += [tile.eq(factors.r_index + 1), begin.eq(factors.r_index + 1)]
            with m.Elif(last_rows):
                m.d.sync += tile.eq(begin)

    def _head_beat(self, m: Module, taken: Value, row_ends: Value, columns_end: Value, last_columns: Value) -> Signal:
        """The number of a beat in its head."""
        rotary = self._rotary
        beat, tile_beat, following = (
            Signal(range(rotary.beats), name=name) for name in ("beat", "tile_beat", "following_beat")
        )
        m.d.comb += [following.eq(Mux(beat == rotary.beats - 1, 0, beat + 1)), rotary.r_beat.eq(beat)]
        with m.If(taken):
            m.d.sync += beat.eq(Mux(row_ends, tile_beat, following))
        with m.If(columns_end):
            m.d.sync += [beat.eq(Mux(last_columns, 0, following)), tile_beat.eq(Mux(last_columns, 0, following))]
        return beat

    def _give(self, m: Module, advance: Signal, taken: Value, turned: Value, place: Value) -> None:
        """The beat beside the data of the memories, with what it asks for."""
        command, out, ask = self.i_command.payload, self.o.payload, self.o_residual
        factor, columns, angles = self._factors.r_data, self._columns.r_data, self._rotary.r_data
        shapes = self.o.payload.shape()
        kept = ("sums", "function", "add_residual", "narrow", "tag")
        held = Signal(data.StructLayout({name: shapes[name].shape for name in kept}))
        valid, free = Signal(), Signal()
        m.d.comb += [
            free.eq(~out.add_residual | ask.ready),
            advance.eq(~valid | (self.o.ready & free)),
            self.o.valid.eq(valid & free),
            ask.valid.eq(valid & out.add_residual & self.o.ready),
            ask.payload.row.eq(out.tag.row),
            ask.payload.column.eq(out.tag.column),
            *(out[name].eq(held[name]) for name in kept),
            *(part.r_en.eq(advance) for part in (self._factors, self._columns, self._rotary)),
            out.factor.eq(factor.factor),
            out.exponent.eq(factor.exponent),
            out.cos.eq(angles.cos),
            out.sin.eq(angles.sin),
        ]
        for n in range(2 * self.config.gemm.pairs):
            m.d.comb += [out[name][n].eq(columns[n][name]) for name in ("scale", "shift", "bias")]
        with m.If(advance):
            m.d.sync += [
                valid.eq(taken),
                held.sums.eq(self.i.payload.sums),
                held.function.eq(
                    Mux(turned | (command.function == Function.SWIGLU), command.function, Function.LINEAR)
                ),
                held.add_residual.eq(command.add_residual),
                held.narrow.eq(command.narrow),
                held.tag.eq(place),
            ]
