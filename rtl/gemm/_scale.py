"""Part of Epilogue: a column's sums to outputs (golden `scale_sums`)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.gemm.prologue import FACTOR_FRACTION_BITS
from rtl.common.fixed import half_up, saturate
from rtl.gemm._delay import Delay
from rtl.gemm._long_product import LOW_BITS, half_up_sum, long_product, stored

__all__ = ["ColumnScale"]

#: the last places of a shift, which come after those in steps of eight
FINE_BITS = 3


class ColumnScale(wiring.Component):
    """``half_up(half_up(sum * factor, 15) * scale, shift - exponent) + bias``, saturated to 32 bits before and after.

    Registers: inputs and the shift's distance, two partial products, scaled sum, two partial products, product, shifted
    by eights, shifted, cut to 33 bits of which the lowest one rounds, rounded, with bias.

    Latency: ``latency`` cycles with ``en``. Throughput: one a cycle.

    Members
    -------
    en : all stages move on.
    sum, factor, exponent, scale, shift, bias : as in golden.
    o : the output.
    """

    latency = 10

    def __init__(self, acc_bits: int) -> None:
        super().__init__(
            {
                "en": In(1),
                "sum": In(signed(acc_bits)),
                "factor": In(16),
                "exponent": In(signed(7)),
                "scale": In(16),
                "shift": In(signed(7)),
                "bias": In(signed(32)),
                "o": Out(signed(32)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.bias = bias = Delay(signed(32), cycles=self.latency - 1)
        m.d.comb += [bias.en.eq(self.en), bias.i.eq(self.bias)]

        total = Signal(signed(max(len(self.sum), LOW_BITS + 1)), reset_less=True)
        scaled = Signal(signed(len(total) + 1), reset_less=True)
        distance = self.shift - self.exponent
        # A bit below rounds. What saturates here, or after the shift by less than eight, is beyond 32 bits in the end.
        coarse = Signal(signed(33 + (1 << FINE_BITS) - 1), reset_less=True)
        with m.If(self.en):
            m.d.sync += total.eq(self.sum)
            factor = stored(m, "factor_1", self.factor)
            right = stored(m, "right_1", Mux(distance < 0, 0, Mux(distance > 63, 63, distance))[:6])
            scale = stored(m, "scale_1", self.scale)
            for n in range(2, 4):
                scale = stored(m, f"scale_{n}", scale)
            for n in range(2, 6):
                right = stored(m, f"right_{n}", right)
            fine = stored(m, "fine", right[:FINE_BITS])

            low, high = long_product(m, "scaled", total, factor)
            m.d.sync += scaled.eq(half_up_sum(low, high, FACTOR_FRACTION_BITS))
            low, high = long_product(m, "product", scaled, scale)
            product = stored(m, "product", low + high)
            eights = Cat(Const(0, FINE_BITS), right[FINE_BITS:])
            m.d.sync += coarse.eq(saturate(product.shift_left(1) >> eights, len(coarse)))
            shifted = stored(m, "shifted", coarse >> fine)
            cut = stored(m, "cut", saturate(shifted, 33))
            rounded = stored(m, "rounded", saturate(half_up(cut, 1), 32))
            m.d.sync += self.o.eq(saturate(rounded + bias.o, 32))
        return m
