"""Part of Prologue: sums of a row's codes and of their squares."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from rtl.config import GemmConfig
from rtl.gemm._multiplier import Multiplier

__all__ = ["RowSums", "square_sum_bits", "sum_bits"]

#: cycles of a multiplier
_PRODUCT_STAGES = 2


def square_sum_bits(config: GemmConfig) -> int:
    """Width of the sum of the squares of a row's codes."""
    return bits_for(config.max_k << 2 * config.act_bits - 2)


def sum_bits(config: GemmConfig) -> int:
    """Width of the sum of a row's codes (signed)."""
    return bits_for(config.max_k << config.act_bits - 1) + 1


class RowSums(wiring.Component):
    """Adds up a beat in trees with a register behind each level, then the beats of a row.

    Members
    -------
    codes, valid, last : a beat, in any cycle; the last one of its row.
    done : a cycle long, ``latency(config)`` cycles after a row's last beat: ``squares`` and ``total`` are the row's.
    """

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        super().__init__(
            {
                "codes": In(data.ArrayLayout(signed(config.act_bits), config.row_lanes)),
                "valid": In(1),
                "last": In(1),
                "done": Out(1),
                "squares": Out(square_sum_bits(config)),
                "total": Out(signed(sum_bits(config))),
            }
        )

    @staticmethod
    def latency(config: GemmConfig) -> int:
        """Cycles from a row's last beat to its sums."""
        return _PRODUCT_STAGES + exact_log2(config.row_lanes) + 1

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self.config.act_bits

        def added(values: Sequence[Value], name: str) -> Value:
            while len(values) > 1:
                sums = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
                values = [Signal.like(s, name=f"{name}_{len(sums)}_{n}", reset_less=True) for n, s in enumerate(sums)]
                m.d.sync += [value.eq(s) for value, s in zip(values, sums, strict=True)]
            return values[0]

        products = []
        for lane, code in enumerate(self.codes):
            m.submodules[f"multiplier_{lane}"] = multiplier = Multiplier(bits, bits)
            m.d.comb += [multiplier.a.eq(code), multiplier.b.eq(code)]
            products.append(multiplier.product[: 2 * bits - 1])
        square = added(products, "square")
        code = added([Value.cast(code) for code in self.codes], "code")
        for stage in range(_PRODUCT_STAGES):
            later = Signal.like(code, name=f"code_later_{stage}", reset_less=True)
            m.d.sync += later.eq(code)
            code = later

        before_sum = self.latency(self.config) - 1
        valid, last = Signal(before_sum), Signal(before_sum)
        first = Signal(init=1)
        m.d.sync += [
            valid.eq(Cat(self.valid, valid)),
            last.eq(Cat(self.last, last)),
            self.done.eq(valid[-1] & last[-1]),
        ]
        with m.If(valid[-1]):
            m.d.sync += [
                self.squares.eq(Mux(first, 0, self.squares) + square),
                self.total.eq(Mux(first, 0, self.total) + code),
                first.eq(last[-1]),
            ]
        return m
