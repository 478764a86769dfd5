"""Part of the control: magnitudes of rows that pass (golden `magnitude`)."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RowMagnitude"]


class RowMagnitude(wiring.Component):
    """Finds the bits without sign of the widest element of each row.

    Latency: 3 cycles from a row's last word. Throughput: a word a cycle within a row; a row is to end only while
    ``free``.

    Members
    -------
    i : struct{valid, last, mask, data}: a word of elements, those without a bit in ``mask`` do not count
    free : a row may end
    o : stream of magnitudes, one a row
    """

    BITS: ClassVar[int] = 5

    def __init__(self, lanes: int, element_bits: int = 32) -> None:
        self.lanes, self.element_bits = lanes, element_bits
        elements = data.ArrayLayout(signed(element_bits), lanes)
        word = data.StructLayout({"valid": 1, "last": 1, "mask": lanes, "data": elements})
        super().__init__({"i": In(word), "free": Out(1), "o": Out(stream.Signature(self.BITS))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self.element_bits - 1
        of_word, word_valid, word_last = Signal(bits), Signal(), Signal()
        of_row, row_valid = Signal(bits), Signal()
        folded = 0
        for n in range(self.lanes):
            element = self.i.data[n]
            folded = folded | Mux(self.i.mask[n], element[:bits] ^ element[bits].replicate(bits), 0)
        length = Signal(self.BITS)
        for n in range(bits):
            with m.If(of_row[n]):
                m.d.comb += length.eq(n + 1)
        m.d.sync += [
            of_word.eq(folded),
            word_valid.eq(self.i.valid),
            word_last.eq(self.i.last),
            row_valid.eq(word_valid & word_last),
        ]
        m.d.comb += self.free.eq(~((word_valid & word_last) | row_valid | self.o.valid))
        with m.If(word_valid):
            m.d.sync += of_row.eq(of_word | Mux(row_valid, 0, of_row))
        with m.Elif(row_valid):
            m.d.sync += of_row.eq(0)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(row_valid):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(length)]
        return m
