"""Part of ValueSum: golden ``inverse``, by restoring division."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.mha.softmax import INVERSE_BITS
from rtl.common.fixed import half_up

__all__ = ["LENGTH_BITS", "Inverse"]

LENGTH_BITS = 6
#: of the bits of the quotient one is behind the point
QUOTIENT_BITS = INVERSE_BITS + 2


class Inverse(wiring.Component):
    """Divides a power of two by a total.

    The total is shifted left until its top bit is set, which gives its bit length, and the dividend with it is the same
    for all totals. Then each cycle gives a bit of the quotient; one behind the point rounds it.

    ``done`` is high for a cycle, `cycles` after the one with ``start``; the results hold until the next ``start``.
    """

    def __init__(self, total_bits: int) -> None:
        self.total_bits = total_bits
        super().__init__(
            {
                "start": In(1),
                "total": In(total_bits),
                "done": Out(1),
                "inverse": Out(INVERSE_BITS + 1),
                "length": Out(LENGTH_BITS),
            }
        )

    @staticmethod
    def cycles(total_bits: int) -> int:
        """Cycles from ``start`` to ``done``."""
        return total_bits + QUOTIENT_BITS + 2

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        divisor = Signal(self.total_bits, reset_less=True)
        rest = Signal(self.total_bits + 1, reset_less=True)
        quotient = Signal(QUOTIENT_BITS, reset_less=True)
        left = Signal(range(self.cycles(self.total_bits)))
        shifting, dividing = left > QUOTIENT_BITS + 1, left > 1
        fits = divisor <= rest
        m.d.sync += [self.done.eq(left == 1), left.eq(left - left.any())]
        with m.If(self.start):
            m.d.sync += [
                left.eq(self.total_bits + QUOTIENT_BITS + 1),
                divisor.eq(self.total),
                self.length.eq(self.total_bits),
                rest.eq(1 << self.total_bits - 1),
            ]
        with m.Elif(shifting):
            with m.If(~divisor[-1]):
                m.d.sync += [divisor.eq(divisor << 1), self.length.eq(self.length - 1)]
        with m.Elif(dividing):
            m.d.sync += [
                quotient.eq(Cat(fits, quotient)),
                rest.eq(Mux(fits, rest - divisor, rest) << 1),
            ]
        with m.Elif(left == 1):
            m.d.sync += self.inverse.eq(Mux(self.length == 0, 0, half_up(quotient, 1)))
        return m
