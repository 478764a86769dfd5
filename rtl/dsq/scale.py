"""Serial division to a scale code: hardware of ``golden.dsq.scale.divide_scale``."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.scale import SCALE_BIAS

__all__ = ["DividerConfig", "ScaleDivider"]


@dataclass(frozen=True, kw_only=True)
class DividerConfig:
    """Widths of ScaleDivider's operands, at least 1."""

    numerator_bits: int
    denominator_bits: int

    def __post_init__(self) -> None:
        for name, bits in vars(self).items():
            if bits < 1:
                raise ValueError(f"{name} must be at least 1, not {bits!r}")


class ScaleDivider(wiring.Component):
    """The 8-bit scale code of ``i.numerator / i.denominator``.

    A restoring division, one quotient bit a cycle, that stops as soon as the code's four significant bits and the
    rounding bit are known.

    Latency: at most ``latency(config)`` cycles from the transfer at ``i`` to a valid ``o``.
    Throughput: one division at a time; ``i`` is ready again in the cycle after the result has been taken.
    Combinational paths: none between the streams; ``i.ready`` depends on registers alone.

    Parameters
    ----------
    config : DividerConfig

    Members
    -------
    i : stream of struct{numerator, denominator}, both unsigned, the denominator not zero
    o : stream of 8 bits, the scale code
    """

    def __init__(self, config: DividerConfig) -> None:
        self.config = config
        i_shape = data.StructLayout({"numerator": config.numerator_bits, "denominator": config.denominator_bits})
        super().__init__({"i": In(stream.Signature(i_shape)), "o": Out(stream.Signature(8))})

    @staticmethod
    def latency(config: DividerConfig) -> int:
        """The most cycles from a transfer at ``i`` to a valid ``o``: those that produce every quotient bit."""
        return config.numerator_bits + SCALE_BIAS + 1

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        numerator_bits, denominator_bits = self.config.numerator_bits, self.config.denominator_bits
        places = numerator_bits + SCALE_BIAS
        numerator = Signal(numerator_bits)  # shifts out at the top; zeros follow: they multiply by 2**SCALE_BIAS
        denominator = Signal(denominator_bits)
        remainder = Signal(denominator_bits)
        quotient = Signal(4)  # from the first one bit on
        place = Signal(range(places))  # of the quotient bit that this cycle produces

        extended = Cat(numerator[-1], remainder)
        trial = Signal(denominator_bits + 1)
        borrow = Signal()
        m.d.comb += Cat(trial, borrow).eq(extended - denominator)
        digits = Cat(~borrow, quotient)
        # Five digits q stand for the exponent place + 1 and, rounded half up, the significand (q + 1) >> 1. Where this
        # reaches 16 the sum below carries into the exponent, as it should.
        rounded = ((place + 1) << 3) + ((digits + 1) >> 1) - 8
        code = Signal(8)
        with m.If(digits[4]):
            m.d.comb += code.eq(rounded[:8] | (rounded[8:].any()).replicate(8))
        with m.Elif(digits[3]):
            m.d.comb += code.eq(digits[:3])

        busy = Signal()
        m.d.comb += self.i.ready.eq(~busy & ~self.o.valid)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(busy):
            m.d.sync += [
                numerator.eq(numerator << 1),
                remainder.eq(Mux(borrow, extended, trial)),
                quotient.eq(digits),
                place.eq(place - 1),
            ]
            with m.If(digits[4] | (place == 0)):
                m.d.sync += [busy.eq(0), self.o.valid.eq(1), self.o.payload.eq(code)]
        with m.Elif(self.i.valid & self.i.ready):
            m.d.sync += [
                Cat(numerator, denominator).eq(self.i.payload.as_value()),
                remainder.eq(0),
                quotient.eq(0),
                place.eq(places - 1),
                busy.eq(1),
            ]
        return m
