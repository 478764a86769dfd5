"""Part of ScoreArray: what the lanes multiply or add, from the codes of a word (golden ``upper_nibble`` ...)."""

from amaranth.hdl import Cat, Const, Module, Mux, Value, signed
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from rtl.config import DsqConfig

__all__ = ["RowKind", "RowOperands", "is_delta"]


class RowKind(enum.Enum, shape=3):
    """What the codes of a row are."""

    UPPER = 0  # upper nibbles of INT8 codes: u stands for 16 u + 8
    LOWER = 1  # lower nibbles: l stands for l - 8
    INT8 = 2
    COARSE = 3  # upper two bits of delta codes: c stands for 2 c - 3, four times as much if the codes have 4 bits
    FINE = 4  # lower two bits of 4-bit delta codes: c stands for 2 c - 3


def is_delta(kind: Value) -> Value:
    """Whether a row of that kind meets the shaped query, by additions."""
    return (kind == RowKind.COARSE) | (kind == RowKind.FINE)


class RowOperands(wiring.Component):
    """Decodes a word; one register. What a kind does not use is 0.

    Members
    -------
    word, kind : a word of a row.
    operands : of the multiplier lanes: ``2 u + 1``, ``l - 8`` or, an INT8 code in two lanes, ``l`` and ``u``.
    codes : of the delta lanes: ``c``.
    """

    def __init__(self, config: DsqConfig) -> None:
        super().__init__(
            {
                "word": In(config.bus_bits),
                "kind": In(RowKind),
                "operands": Out(data.ArrayLayout(signed(5), config.bus_bits // 4)),
                "codes": Out(data.ArrayLayout(2, config.bus_bits // 2)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for lane, operand in enumerate(self.operands):
            nibble = self.word.word_select(lane, 4)
            choices = {
                RowKind.UPPER: Cat(Const(1), nibble),
                RowKind.LOWER: Cat(nibble[:3], (~nibble[3]).replicate(2)),
                RowKind.INT8: Cat(nibble, nibble[3] if lane % 2 else Const(0)),
            }
            m.d.sync += operand.eq(0)
            with m.Switch(self.kind):
                for kind, value in choices.items():
                    with m.Case(kind):
                        m.d.sync += operand.eq(value)
        m.d.sync += self.codes.eq(Mux(is_delta(self.kind), self.word, 0))
        return m
