"""Part of ScoreArray: a dot product to a score (the scales of golden `scores`)."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.scale import SCALE_BIAS
from golden.mha.scores import SCORE_BITS
from rtl.common.fixed import half_up, saturate, split_scale
from rtl.config import DsqConfig
from rtl.mha._dot_product import dot_bits

__all__ = ["BASE_BITS", "BASE_OFFSET", "ScoreScale"]

#: the farthest left shift: all others saturate, or leave 0, like this one
LEFT = SCORE_BITS - 1
#: the farthest right shift, which leaves 0
RIGHT = 32
#: bits of a product that the parts of a multiplication with the factor take from the dot product
LOW_BITS = 17
#: LEFT and what the biases of the two scales add to the shift
BASE_OFFSET = LEFT + 2 * SCALE_BIAS
BASE_BITS = 8


class ScoreScale(wiring.Component):
    """Score: ``half_up(dot * q_scale * k_scale, shift)``, saturated.

    With s the right shift of the product of ``dot`` and both significands, plus ``LEFT`` so that it is never negative,
    the lowest three bits of s go into the factor and the others choose one of seven places in the product: no barrel
    shifter. Registers: sums, factor (``SETUP`` in all), then from ``dot`` on partial products, product, place, score
    (``REGISTERS``).

    Members
    -------
    q_scale, k_scale, base : scale codes, and s for exponents of 0 (signed).
    dot : belongs to the factor's register.
    score : the result.
    """

    SETUP = 2
    REGISTERS = 4

    def __init__(self, config: DsqConfig) -> None:
        super().__init__(
            {
                "q_scale": In(8),
                "k_scale": In(8),
                "base": In(signed(BASE_BITS)),
                "dot": In(signed(dot_bits(config))),
                "score": Out(signed(SCORE_BITS)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        (q_significand, q_exponent), (k_significand, k_exponent) = split_scale(self.q_scale), split_scale(self.k_scale)
        significand, shift = Signal(8), Signal(signed(BASE_BITS))
        factor, place = Signal(8 + 7), Signal(3)
        limited = Mux(shift < 0, 0, Mux(shift > LEFT + RIGHT, LEFT + RIGHT, shift))[:6]
        m.d.sync += [
            significand.eq(sum(Mux(bit, q_significand << n, 0) for n, bit in enumerate(k_significand))),
            shift.eq(self.base - q_exponent - k_exponent),
            factor.eq(significand << ~limited[:3]),
            place.eq(limited[3:]),
        ]

        low = Signal(LOW_BITS + len(factor))
        high = Signal(signed(len(self.dot) - LOW_BITS + len(factor)))
        product = Signal(signed(len(self.dot) + len(factor)))
        places = [Signal.like(place, name=f"place_{n}") for n in range(2)]
        m.d.sync += [
            low.eq(self.dot[:LOW_BITS] * factor),
            high.eq(self.dot[LOW_BITS:].as_signed() * factor),
            product.eq(low + (high << LOW_BITS)),
            places[0].eq(place),
            places[1].eq(places[0]),
        ]

        # A window has the score's bits and one to round with; the bits above all equal its sign, or the score is too
        # large. Windows are eight bits apart, the first one shifts left by LEFT - 7 beyond the factor.
        wide = Cat(Const(0, LEFT - 7 + 1), product)
        windows, fitting = [], []
        for offset in range(0, LEFT + RIGHT + 1, 8):
            above = Cat(wide[offset + SCORE_BITS :], wide[-1])
            windows.append(wide.as_signed().shift_right(offset)[: SCORE_BITS + 1].as_signed())
            fitting.append(above.all() | ~above.any())
        window, fits, sign = Signal(signed(SCORE_BITS + 1)), Signal(), Signal()
        m.d.sync += [
            window.eq(Array(windows)[places[1]]),
            fits.eq(Array(fitting)[places[1]]),
            sign.eq(product[-1]),
        ]
        limit = Cat((~sign).replicate(SCORE_BITS - 1), sign).as_signed()
        m.d.sync += self.score.eq(Mux(fits, saturate(half_up(window, 1), SCORE_BITS), limit))
        return m
