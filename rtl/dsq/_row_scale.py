"""Part of RowQuantizer: a row's scale code (golden `ceil_scale` of the largest magnitude) and what divides by it."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.row_quantizer import RECIPROCAL
from golden.dsq.scale import MAX_EXPONENT
from rtl.common.fixed import split_scale

__all__ = ["RowScale"]

# A code is half_up(x * reciprocal, exponent + 3), for exponents up to 16: the factor is the reciprocal shifted left by
# the lowest two bits of 16 - exponent, the upper two choose one of four places in the product.
_FACTOR_BITS = int(RECIPROCAL[0]).bit_length() + 3


class _Peak(wiring.Component):
    """Largest magnitude of a row as a key: ``2 |x|``, less one for negative ``x``, so that no value has to be negated.

    Members
    -------
    word_valid, word : words of a row, as `Rotator` gives them.
    key : the key, of a whole row while ``done``.
    clear : strobe; starts the next row.
    """

    def __init__(self, word_shape: data.StructLayout) -> None:
        super().__init__({"word_valid": In(1), "word": In(word_shape), "key": Out(16), "done": Out(1), "clear": In(1)})

    def elaborate(self, platform):
        m = Module()
        keys = [Cat(x[15], x[:15] ^ x[15].replicate(15)) for x in self.word.data]
        ends = Cat(self.word_valid, self.word_valid & self.word.last)
        level = 0
        while len(keys) > 1:
            keys = [Mux(a < b, b, a) for a, b in zip(keys[::2], keys[1::2], strict=True)]
            level += 1
            if level % 2 == 0 or len(keys) == 1:  # two comparisons to a register
                stored = [Signal(16, name=f"key_{level}_{n}") for n in range(len(keys))]
                ends, ends_before = Signal(2, name=f"ends_{level}"), ends
                m.d.sync += [ends.eq(ends_before), *(s.eq(key) for s, key in zip(stored, keys, strict=True))]
                keys = stored
        with m.If(ends[0] & (self.key < keys[0])):
            m.d.sync += self.key.eq(keys[0])
        with m.If(ends[1]):
            m.d.sync += self.done.eq(1)
        with m.If(self.clear):
            m.d.sync += [self.key.eq(0), self.done.eq(0)]
        return m


class RowScale(wiring.Component):
    """Finds the scale code of each row, the smallest with ``127 (8 + mantissa) 2**exponent >= amax 2**11``.

    ``amax - 1`` is shifted left, ones following, until it has 15 bits. Its upper 11 bits divided by 127 then say how
    far the code is above that of the power of two below; the quotient is ``h + 1`` or ``h`` for their upper four bits
    ``h``, whether or not ``h`` and the lower seven bits sum to 127.

    Members
    -------
    word_valid, word : words of the rows, as `Rotator` gives them.
    free : the last row's results are no longer needed.
    found : strobe; from the next cycle on the results are those of the next row.
    scale : the scale code.
    factor, window : the code of a value ``x`` is ``half_up(x * factor, 19 - 4 * window)``.
    """

    def __init__(self, word_shape: data.StructLayout) -> None:
        super().__init__(
            {
                "word_valid": In(1),
                "word": In(word_shape),
                "free": In(1),
                "found": Out(1),
                "scale": Out(8),
                "factor": Out(_FACTOR_BITS),
                "window": Out(2),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.peak = peak = _Peak(self.word.shape())
        m.d.comb += [peak.word_valid.eq(self.word_valid), peak.word.eq(self.word)]

        below = Signal(15)  # amax - 1, then shifted
        zero = Signal()
        coarse, fine = Signal(2), Signal(2)  # the shift is 4 coarse + fine

        def filled(amount: int) -> Value:
            return Cat(Const((1 << amount) - 1, amount), below)[:15]

        upper, lower = below[11:15], below[4:11]
        mantissa, exponent = split_scale(self.scale)
        left = (MAX_EXPONENT - exponent)[:4]
        with m.FSM():
            with m.State("PEAK"):
                m.d.comb += peak.clear.eq(peak.done)
                m.d.sync += [below.eq(peak.key[1:] - ~peak.key[0]), zero.eq(peak.key == 0)]
                with m.If(peak.done):
                    m.next = "COARSE"
            with m.State("COARSE"):
                for amount, bits in ((3, None), (2, below[3:7]), (1, below[7:11]), (0, below[11:15])):
                    with m.If(1 if bits is None else bits.any()):
                        m.d.sync += [coarse.eq(amount), below.eq(filled(4 * amount))]
                m.next = "FINE"
            with m.State("FINE"):
                for amount in (3, 2, 1, 0):
                    with m.If(1 if amount == 3 else below[14 - amount]):
                        m.d.sync += [fine.eq(amount), below.eq(filled(amount))]
                m.next = "CODE"
            with m.State("CODE"):
                carry = (upper + lower) >= 127
                with m.If(self.free):
                    m.d.sync += self.scale.eq(Mux(zero, 0, Cat(upper[:3], ~Cat(fine, coarse)) + 1 + carry))
                    m.next = "FACTOR"
            with m.State("FACTOR"):
                reciprocal = Array(Const(int(r), _FACTOR_BITS - 3) for r in RECIPROCAL)[mantissa[:3]]
                m.d.sync += [self.factor.eq(reciprocal << left[:2]), self.window.eq(left[2:])]
                m.d.comb += self.found.eq(1)
                m.next = "PEAK"
        return m
