"""Part of History: the logarithmic code of a history (golden `history_code`)."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.hcap.history import HISTORY_BITS

__all__ = ["CODES", "HistoryCode"]

#: eight codes for the values below eight, and for each bit length above
CODES = 8 * (HISTORY_BITS - 2)
_NIBBLES = HISTORY_BITS // 4


class HistoryCode(wiring.Component):
    """Code of a history: shifted left until its leading one is at the top, but by 28 at most, the upper four bits are
    added to eight times what is left of the 28.

    Latency: 2 cycles with ``en``: the shift by whole nibbles, then by single bits (not where all 28 are used up).
    Throughput: one a cycle.

    Members
    -------
    en : both stages move on.
    history : the history.
    code : its code two cycles ago, 0 to CODES - 1.
    """

    def __init__(self) -> None:
        super().__init__({"en": In(1), "history": In(HISTORY_BITS), "code": Out(range(CODES))})

    def elaborate(self, platform):
        m = Module()
        coarse = Signal(range(_NIBBLES))
        window = Signal(7)  # the upper nibble after the coarse shift, and what a fine shift moves into it

        padded = Cat(Const(0, 3), self.history)
        with m.If(self.en):
            for nibbles in reversed(range(_NIBBLES)):
                place = HISTORY_BITS - 4 * (nibbles + 1)
                with m.If(self.history[place : place + 4].any() if place else 1):
                    m.d.sync += [coarse.eq(nibbles), window.eq(padded[place : place + 7])]

            exponent = Cat(Const(0, 2), ~coarse)
            for fine in (3, 2, 1, 0):
                with m.If(window[6 - fine] if fine < 3 else 1):
                    m.d.sync += self.code.eq(((exponent - fine) << 3) + window[3 - fine : 7 - fine])
            with m.If(coarse == _NIBBLES - 1):
                m.d.sync += self.code.eq(window[3:])
        return m
