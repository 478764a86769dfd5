"""Part of ValueSum: weights of a token times its scale, golden ``scale_weights``."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.scale import SCALE_BIAS
from golden.mha.value_sum import SCALED_BITS
from rtl.common.fixed import half_up, saturate_unsigned, split_scale
from rtl.mha._value_format import ValueFormat

__all__ = ["WeightScaler"]

#: largest exponent of a scale code
_TOP_EXPONENT = 31


class WeightScaler(wiring.Component):
    """Tokens pass in order, each with its weights in whole units of V when it leaves.

    Latency: 3 cycles. Throughput: a token per cycle. All stages stop when a token at ``o`` is not taken. Combinational
    paths: from ``o.ready`` to ``i.ready``.
    """

    latency = 3

    def __init__(self, sizes: ValueFormat) -> None:
        super().__init__(
            {"i": In(stream.Signature(sizes.token_layout)), "o": Out(stream.Signature(sizes.scaled_layout))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        advance = Signal()
        m.d.comb += [advance.eq(~self.o.valid | self.o.ready), self.i.ready.eq(advance)]

        # Products, with a factor that has the lowest three bits of the shift; products shifted by the others, with one
        # bit behind the point; rounded.
        layout = self.i.payload.shape()
        stages = [(Signal(name=f"valid_{n}"), Signal(layout, name=f"token_{n}", reset_less=True)) for n in (1, 2)]
        significand, exponent = split_scale(self.i.payload.scale)
        factor = significand << exponent[:3]
        right = Signal(len(exponent) - 3)
        with m.If(advance):
            m.d.sync += [
                stages[0][0].eq(self.i.valid),
                stages[0][1].eq(self.i.payload),
                stages[1][0].eq(stages[0][0]),
                stages[1][1].eq(stages[0][1]),
                right.eq(~exponent[3:]),
                self.o.valid.eq(stages[1][0]),
            ]
            for field in ("weights", "rises", "delta", "end", "slot"):
                m.d.sync += self.o.payload[field].eq(stages[1][1][field])
            most = stages[1][1].rises[0]
            for rise in list(stages[1][1].rises)[1:]:
                most = Mux(rise > most, rise, most)
            m.d.sync += [self.o.payload.most.eq(most), self.o.payload.some.eq(most != 0)]
            for head, weight in enumerate(self.i.payload.weights):
                product = Signal(len(weight) + len(factor), name=f"product_{head}", reset_less=True)
                left = product.shift_left(_TOP_EXPONENT - SCALE_BIAS + 1 - 7)
                doubled = Signal(len(left), name=f"doubled_{head}", reset_less=True)
                m.d.sync += [
                    product.eq(weight * factor),
                    doubled.eq(left >> Cat(Const(0, 3), right)),
                    self.o.payload.scaled[head].eq(saturate_unsigned(half_up(doubled, 1), SCALED_BITS)),
                ]
        return m
