"""Part of PeArray: a multiplier that an FPGA's DSP block can be, registers and all."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Multiplier"]


class Multiplier(wiring.Component):
    """``product`` is ``a * b`` of two cycles before: a register at the inputs, one at the output, none with a reset.

    It stays a module of its own, so that synthesis can put a block in its place (`fpga/ecp5_multiplier.v`).
    """

    def __init__(self, a_bits: int, b_bits: int) -> None:
        super().__init__({"a": In(signed(a_bits)), "b": In(signed(b_bits)), "product": Out(signed(a_bits + b_bits))})

    def elaborate(self, platform):
        m = Module()
        inputs = [Signal.like(port, name=f"{port.name}_input", reset_less=True) for port in (self.a, self.b)]
        product = Signal.like(self.product, reset_less=True)
        m.d.sync += [inputs[0].eq(self.a), inputs[1].eq(self.b), product.eq(inputs[0] * inputs[1])]
        m.d.comb += self.product.eq(product)
        return m
