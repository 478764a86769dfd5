"""Sequencing of k steps: for each tile of columns, for each tile of rows, for each k."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from rtl.config import AcceleratorConfig
from rtl.gemm._code_buffer import CodeBuffer
from rtl.gemm._command import ROW_BITS, SIZE_BITS, words_shape
from rtl.gemm._weight_ring import WeightRing
from rtl.gemm.array import PeArray

__all__ = ["TileFeeder"]


class TileFeeder(wiring.Component):
    """Gives codes and weights to the array, a k step a cycle, command after command without a bubble.

    The first tile of columns waits for each row tile to be loaded; all wait for weights.

    Latency: ``latency`` cycles from a tile's last codes to its first k step, 2 of them from the addresses.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{rows, k, columns, words}; taken with the last k step
    i_load, i_code : ``i_command`` and ``i`` of `CodeBuffer`
    i_weight : ``i`` of `WeightRing`
    o : stream of k steps, as `PeArray` takes them
    """

    latency = 4

    def __init__(self, config: AcceleratorConfig, array: PeArray) -> None:
        self.config, self._array = config, array
        self._codes, self._weights = CodeBuffer(config), WeightRing(config.gemm)
        fields = {"rows": ROW_BITS, "k": SIZE_BITS, "columns": SIZE_BITS, "words": words_shape(config)}
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout(fields))),
                "i_load": In(self._codes.i_command.signature.flip()),
                "i_code": In(self._codes.i.signature.flip()),
                "i_weight": In(self._weights.i.signature.flip()),
                "o": Out(stream.Signature(array.i_shape)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.codes = codes = self._codes
        m.submodules.weights = weights = self._weights
        connect(m, flipped(self.i_load), codes.i_command)
        connect(m, flipped(self.i_code), codes.i)
        connect(m, flipped(self.i_weight), weights.i)
        c, command = self.config.gemm, self.i_command.payload
        step, advance = Signal(), Signal()
        k, row, column = Signal(SIZE_BITS), Signal(ROW_BITS), Signal(SIZE_BITS)
        loaded = Signal(range(codes.depth + 1))
        rows_left, columns_left = command.rows - row, command.columns - column
        last_rows, last_columns = rows_left <= c.rows, columns_left <= c.columns
        last_k = k + 1 == command.k
        first_columns = Signal(init=1)
        m.d.comb += [
            advance.eq(~self.o.valid | self.o.ready),
            step.eq(advance & self.i_command.valid & weights.available & (~first_columns | (loaded != 0))),
            self.i_command.ready.eq(step & last_k & last_rows & last_columns),
            weights.r_en.eq(advance),
            weights.step.eq(step),
            weights.last.eq(last_k),
            weights.keep.eq(~last_rows),
            codes.r_en.eq(advance),
            codes.release.eq(step & last_k & last_columns),
            codes.release_words.eq(command.words),
        ]
        m.d.sync += loaded.eq(loaded + codes.loaded - (step & last_k & first_columns))
        with m.If(step):
            m.d.sync += k.eq(Mux(last_k, 0, k + 1))
            with m.If(last_k):
                m.d.sync += row.eq(Mux(last_rows, 0, row + c.rows))
                with m.If(last_rows):
                    m.d.sync += [column.eq(Mux(last_columns, 0, column + c.columns)), first_columns.eq(last_columns)]
        element = Signal(max(1, exact_log2(c.row_lanes)))
        word_ends = last_k | k[: exact_log2(c.row_lanes)].all()
        self._address(m, step & word_ends, step & last_k & last_rows, last_columns)

        # Stage 1: the memories' data are there; stage 2: `o`.
        read, out = Signal(), self.o.payload
        place = data.StructLayout({name: self._array.i_shape[name].shape for name in ("last", "row_last", "beat_last")})
        places = Signal(place)
        with m.If(advance):
            m.d.sync += [
                read.eq(step),
                element.eq(k[: exact_log2(c.row_lanes)]),
                places.last.eq(last_k),
                places.row_last.eq(Mux(last_rows, rows_left - 1, c.rows - 1)),
                places.beat_last.eq(Mux(last_columns, (columns_left - 1) >> exact_log2(2 * c.pairs), c.beats - 1)),
                self.o.valid.eq(read),
                out.weights.eq(weights.r_data),
                *(out.codes[row].eq(codes.r_data[row][element]) for row in range(c.rows)),
                *(out[name].eq(places[name]) for name in place.members),
            ]
        return m

    def _address(self, m: Module, word_ends: Value, tiles_end: Value, last_columns: Value) -> None:
        """The word of codes that is read."""
        codes = self._codes
        names = ("begin", "address", "following")
        begin, address, following = (Signal(range(codes.depth), name=name) for name in names)
        m.d.comb += [
            following.eq(Mux(address == codes.depth - 1, 0, address + 1)),
            codes.r_addr.eq(address),
        ]
        with m.If(word_ends):
            m.d.sync += address.eq(following)
        # Other columns take the same tiles again; the next command's lie behind them.
        with m.If(tiles_end):
            with m.If(last_columns):
                m.d.sync += begin.eq(following)
            with m.Else():
                m.d.sync += address.eq(begin)
