"""Part of the DMA engine: whether the operands of a command lie within memory and scratchpad."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.control.commands import LINE_BYTES, Opcode
from rtl.config import AcceleratorConfig
from rtl.control._layout import Error, command_layout, operand_layout

__all__ = ["ELEMENT_BITS", "LINE_ELEMENTS", "OperandCheck", "ceil_divide"]

ELEMENT_BITS = 32
LINE_ELEMENTS = LINE_BYTES * 8 // ELEMENT_BITS


def ceil_divide(value: Value, divisor: int) -> Value:
    """``value / divisor`` rounded up, for a power of two."""
    return (value + divisor - 1) >> ceil_log2(divisor)


class OperandCheck(wiring.Component):
    """Looks at all that a command would read and write, before it does.

    Latency: `LATENCY` cycles from the first one with ``command``, which holds meanwhile.

    Members
    -------
    start : strobe
    command : see `command_layout`
    done : strobe, with ``error``, which holds until the next ``start``
    """

    LATENCY = 3

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__({"start": In(1), "command": In(command_layout()), "done": Out(1), "error": Out(Error)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, opcode = self.config, self.command.opcode
        rows = data.View(operand_layout(Opcode.LOAD), self.command.operands)
        lines = data.View(operand_layout(Opcode.FILL), self.command.operands).lines
        loads, stores, fills = (opcode == which for which in (Opcode.LOAD, Opcode.STORE, Opcode.FILL))
        nothing = Mux(fills, lines == 0, (rows.rows == 0) | (rows.k == 0))
        memory_lines = 1 << config.cache.addr_bits - ceil_log2(LINE_BYTES)

        # One multiplier: lines of all rows, then words of the scratchpad from the first row to the last one.
        product = Signal(len(rows.rows) + len(rows.k))
        line_end = rows.address + Mux(fills, lines, product)
        word_end = rows.scratchpad + product + ceil_divide(rows.k, config.gemm.row_lanes)
        row_end = Mux(loads, rows.magnitude + rows.rows, 0)
        beyond = (word_end > config.control.scratch_words) | (row_end > config.control.scratch_rows)
        with m.FSM():
            with m.State("LINES"):
                m.d.sync += [product.eq(rows.rows * ceil_divide(rows.k, LINE_ELEMENTS)), self.error.eq(Error.NONE)]
                with m.If(~(loads | stores | fills)):
                    m.d.sync += self.error.eq(Mux(opcode == Opcode.NOP, Error.NONE, Error.OPCODE))
                with m.Elif(nothing):
                    m.d.sync += self.error.eq(Error.LENGTH)
                with m.If(self.start):
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.sync += product.eq((rows.rows - 1)[: len(rows.rows)] * rows.stride)
                with m.If((self.error == Error.NONE) & (loads | stores | fills) & (line_end > memory_lines)):
                    m.d.sync += self.error.eq(Error.ADDRESS)
                m.next = "END"
            with m.State("END"):
                with m.If((self.error == Error.NONE) & (loads | stores) & beyond):
                    m.d.sync += self.error.eq(Error.SCRATCHPAD)
                m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.next = "LINES"
        return m
