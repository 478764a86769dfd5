"""Part of Epilogue: a pair of columns turned or multiplied (golden `rotate_pairs`, last product of `swiglu_pairs`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.gemm.epilogue import GATE_BITS, GATE_FRACTION_BITS, ROTARY_BITS, ROTARY_FRACTION_BITS
from rtl.common.fixed import half_up, saturate
from rtl.gemm._long_product import LOW_BITS, half_up_sum, stored

__all__ = ["PRODUCT_BITS", "PairProducts"]

#: of SiLU times a gate without its fraction bits
PRODUCT_BITS = 2 * GATE_BITS - GATE_FRACTION_BITS


class PairProducts(wiring.Component):
    """A pair turned by an angle, or as it is; and SiLU times the second one.

    Both take the four products of two numbers with two others: first and second with cosine and sine, or lower and
    upper part of each factor. So they share multipliers.

    Registers: operands, products, their sums, results.

    Latency: ``latency`` cycles with ``en``. Throughput: one pair a cycle.

    Members
    -------
    en : all stages move on.
    pair, silu, cos, sin : the operands.
    rotary, swiglu : which of the two it is, if any.
    turned : the pair, turned with ``rotary``, else as it was; of no meaning with ``swiglu``.
    product : ``half_up(silu * second, 12)``, not saturated; of no meaning without ``swiglu``.
    """

    latency = 4

    def __init__(self) -> None:
        super().__init__(
            {
                "en": In(1),
                "pair": In(data.ArrayLayout(signed(32), 2)),
                "silu": In(signed(GATE_BITS)),
                "cos": In(signed(16)),
                "sin": In(signed(16)),
                "rotary": In(1),
                "swiglu": In(1),
                "turned": Out(data.ArrayLayout(signed(32), 2)),
                "product": Out(signed(PRODUCT_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        up = saturate(self.pair[1], GATE_BITS)
        first, second = (saturate(y, ROTARY_BITS) for y in self.pair)
        x_low, x_high, y_low, y_high = (
            Signal(signed(ROTARY_BITS), name=name, reset_less=True) for name in ("x_low", "x_high", "y_low", "y_high")
        )
        sum_bits = 2 * ROTARY_BITS + 1
        with m.If(self.en):
            pairs, rotaries, swiglus = [self.pair.as_value()], [self.rotary], [self.swiglu]
            for n in range(1, self.latency):
                pairs.append(stored(m, f"pair_{n}", pairs[-1]))
                rotaries.append(stored(m, f"rotary_{n}", rotaries[-1]))
                swiglus.append(stored(m, f"swiglu_{n}", swiglus[-1]))
            m.d.sync += [
                x_low.eq(Mux(self.swiglu, self.silu[:LOW_BITS], first)),
                x_high.eq(Mux(self.swiglu, self.silu[LOW_BITS:].as_signed(), second)),
                y_low.eq(Mux(self.swiglu, up[:LOW_BITS], self.cos)),
                y_high.eq(Mux(self.swiglu, up[LOW_BITS:].as_signed(), self.sin)),
            ]
            low = stored(m, "low", x_low * y_low)
            high = stored(m, "high", x_high * y_high)
            middles = [stored(m, "middle_0", x_low * y_high), stored(m, "middle_1", x_high * y_low)]

            # The outer products of long factors lie side by side: 34 bits of the lower one, which has no sign.
            middle = stored(m, "middle", (middles[0] + middles[1])[:sum_bits].as_signed())
            side_by_side = Cat(low[: 2 * LOW_BITS], high[: 2 * (GATE_BITS - LOW_BITS)])
            outer = stored(m, "outer", Mux(swiglus[2], side_by_side, low - high)[: len(side_by_side)].as_signed())
            product = half_up_sum(outer, middle << LOW_BITS, GATE_FRACTION_BITS)

            before = self.turned.shape()(pairs[3])
            sums = [outer[:sum_bits].as_signed(), middle]
            for result, y, total in zip(self.turned, before, sums, strict=True):
                m.d.sync += result.eq(Mux(rotaries[3], half_up(total, ROTARY_FRACTION_BITS), y))
            m.d.sync += self.product.eq(product)
        return m
