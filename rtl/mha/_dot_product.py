"""Part of ScoreArray: the dot product of a row and one head's query."""

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.config import DsqConfig
from rtl.mha._query_store import offset_bits

__all__ = ["DotProduct", "dot_bits", "tree_registers"]

#: bits of a product of an operand (-15 .. 15) and a query code
PRODUCT_BITS = 12


def dot_bits(config: DsqConfig) -> int:
    """Bits of the dot product of two INT8 rows, one of which has no code -128 (signed)."""
    return (config.head_dim * 127 * 128).bit_length() + 1


def tree_registers(config: DsqConfig) -> int:
    """Registers of the adder trees, one a level, but for the last level of the deltas."""
    return ceil_log2(config.bus_bits // 4)


def _tree(m: Module, values: Sequence[Value], registers: int, name: str) -> Value:
    for register in range(registers):
        if len(values) > 1:
            values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
        stored = [Signal.like(value, name=f"{name}_{register}_{n}") for n, value in enumerate(values)]
        m.d.sync += [after.eq(before) for after, before in zip(stored, values, strict=True)]
        values = stored
    (total,) = values
    return total


class DotProduct(wiring.Component):
    """Sums operand times query over the words of a row: multipliers for nibbles and INT8 codes, adders for deltas.

    A delta is ``2 c - 3``: the lanes sum ``c q``, and the row starts from ``-3 sum(q)``. Lanes that a row's kind does
    not use have the operand 0, so both sums share the last adder. Registers: products, `tree_registers`, the word's
    sum, ``dot``.

    Members
    -------
    operands, codes, query : of a word, from the same register.
    weighted : the odd lanes count 16 times (INT8); belongs to the last register of the trees.
    valid, first, offset : a word of a row, its first one, what a row starts from; belong to the word's sum.
    dot : sum of the words so far; changes with a valid word alone.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        lanes = config.bus_bits // 2
        super().__init__(
            {
                "operands": In(data.ArrayLayout(signed(5), lanes // 2)),
                "codes": In(data.ArrayLayout(2, lanes)),
                "query": In(data.ArrayLayout(signed(8), lanes)),
                "weighted": In(1),
                "valid": In(1),
                "first": In(1),
                "offset": In(signed(offset_bits(config))),
                "dot": Out(signed(dot_bits(config))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        registers = tree_registers(self.config)
        products = [Signal(signed(PRODUCT_BITS), name=f"product_{n}") for n in range(len(self.operands))]
        for product, operand, query in zip(products, self.operands, self.query, strict=False):
            m.d.sync += product.eq(operand * query)
        multiples = [Signal(signed(10), name=f"multiple_{n}") for n in range(len(self.codes))]
        for multiple, code, query in zip(multiples, self.codes, self.query, strict=True):
            m.d.sync += multiple.eq((Mux(code[1], query, 0) << 1) + Mux(code[0], query, 0))

        even = _tree(m, products[::2], registers, "even")
        odd = _tree(m, products[1::2], registers, "odd")
        deltas = [_tree(m, multiples[n::2], registers, f"delta_{n}") << 1 for n in range(2)]
        total = Signal(signed(dot_bits(self.config)))
        m.d.sync += total.eq((even | deltas[0]) + (Mux(self.weighted, odd << 4, odd) | deltas[1]))
        with m.If(self.valid):
            m.d.sync += self.dot.eq(Mux(self.first, self.offset, self.dot) + total)
        return m
