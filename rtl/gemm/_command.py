"""Commands of a GEMM core, checked (golden `command_fault`) and given to the parts that carry them out."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.gemm import core as golden
from golden.gemm.epilogue import Function
from golden.gemm.prologue import EPSILON_BITS, Norm
from rtl.config import AcceleratorConfig

__all__ = ["ROW_BITS", "SIZE_BITS", "CommandDecoder", "Fault", "command_layout", "words_shape"]

#: widths of a number of rows, and of one of elements of a row
ROW_BITS = 16
SIZE_BITS = 17


class Fault(enum.Enum, shape=3):
    """Golden's `Fault`."""

    NONE = golden.Fault.NONE
    ROWS = golden.Fault.ROWS
    K = golden.Fault.K
    COLUMNS = golden.Fault.COLUMNS
    FUNCTION = golden.Fault.FUNCTION
    ROTARY = golden.Fault.ROTARY
    ACTIVATIONS = golden.Fault.ACTIVATIONS
    WEIGHTS = golden.Fault.WEIGHTS


def command_layout() -> data.StructLayout:
    """What `GemmCore` is told."""
    return data.StructLayout(
        {
            "rows": ROW_BITS,
            "k": SIZE_BITS,
            "columns": SIZE_BITS,
            "norm": 2,
            "epsilon": EPSILON_BITS,
            "function": 2,
            "rotary_columns": SIZE_BITS,
            "half_pairs": 1,
            "narrow": 1,
            "add_residual": 1,
        }
    )


def words_shape(config: AcceleratorConfig) -> int:
    """Bits of a number of words of codes: those of a row tile are at most what ``act_words`` take."""
    return bits_for(-(-config.gemm.act_words // config.gemm.row_lanes))


class CommandDecoder(wiring.Component):
    """Takes a command, counts its row tiles and heads, and gives it on with its fault.

    Latency: 2 cycles and one for each further row tile (at most 33) or, if they are more, for each head that is turned.
    One command at a time.
    Combinational paths: none.

    Members
    -------
    i : stream of `command_layout`
    o : stream of struct{command, words, fault}: ``words`` of codes in a row
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.o_shape = data.StructLayout({"command": command_layout(), "words": words_shape(config), "fault": Fault})
        super().__init__({"i": In(stream.Signature(command_layout())), "o": Out(stream.Signature(self.o_shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, head_dim = self.config.gemm, self.config.dsq.head_dim
        room = -(-c.act_words // c.row_lanes)
        command, given = self.i.payload, self.o.payload.command
        words = (command.k + (c.row_lanes - 1)) >> (c.row_lanes.bit_length() - 1)
        rows_left, tiles = Signal(ROW_BITS), Signal(range(golden.ROW_TILES + 2))
        used, channels_left = Signal(range(2 * room + 2)), Signal(SIZE_BITS)
        counts_rows = (rows_left > c.rows) & (tiles <= golden.ROW_TILES)
        counts_heads = channels_left >= head_dim
        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [
                    given.eq(command),
                    self.o.payload.words.eq(words),
                    rows_left.eq(command.rows),
                    tiles.eq(1),
                    used.eq(Mux(words > room, room + 1, words)),
                    channels_left.eq(Mux(command.function == Function.ROTARY, command.rotary_columns, 0)),
                ]
                with m.If(self.i.valid):
                    m.next = "COUNT"
            with m.State("COUNT"):
                with m.If(counts_rows):
                    m.d.sync += [rows_left.eq(rows_left - c.rows), tiles.eq(tiles + 1)]
                    # Once there is no room, the sum stays.
                    with m.If(used <= room):
                        m.d.sync += used.eq(used + self.o.payload.words)
                with m.If(counts_heads):
                    m.d.sync += channels_left.eq(channels_left - head_dim)
                with m.If(~counts_rows & ~counts_heads):
                    m.d.sync += self.o.payload.fault.eq(self._fault(m, tiles, used > room, channels_left != 0))
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "TAKE"
        return m

    def _fault(self, m: Module, tiles: Value, no_room: Value, part_of_head: Value) -> Value:
        """The first reason to refuse."""
        c, command = self.config.gemm, self.o.payload.command
        turns, gates = command.function == Function.ROTARY, command.function == Function.SWIGLU
        unknown = (command.function > max(Function)) | (command.norm > max(Norm))
        uneven = part_of_head | (command.rotary_columns > command.columns)
        fault = Signal(Fault)
        reasons = {
            Fault.ROWS: (command.rows == 0) | (tiles > golden.ROW_TILES),
            Fault.K: (command.k == 0) | (command.k > c.max_k),
            Fault.COLUMNS: (command.columns == 0) | (gates & command.columns[0]),
            Fault.FUNCTION: unknown | (turns & command.add_residual),
            Fault.ROTARY: turns & (uneven | (tiles > golden.ROTARY_TILES)),
            Fault.ACTIVATIONS: no_room,
            Fault.WEIGHTS: (tiles > 1) & (command.k > c.weight_words),
        }
        for reason, applies in reversed(reasons.items()):
            with m.If(applies):
                m.d.comb += fault.eq(reason)
        return fault
