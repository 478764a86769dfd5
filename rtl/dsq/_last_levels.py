"""Part of RowQuantizer: the last butterfly levels of a row, while it is given out."""

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.rotation import rotation_shift
from rtl.common.fixed import saturate
from rtl.dsq._rotator_geometry import RotatorGeometry

__all__ = ["LastLevels"]


class LastLevels(wiring.Component):
    """Gives a row out word by word: the last level between words, the levels within a word, shift, saturation."""

    def __init__(self, g: RotatorGeometry, word_shape: data.StructLayout) -> None:
        self.geometry = g
        pair_shape = data.ArrayLayout(data.ArrayLayout(signed(g.stored_bits), g.word_lanes), 2)
        super().__init__(
            {
                "start": In(1),
                "rotate": In(1),
                "region": In(1),
                "idle": Out(1),
                "r_addr": Out(g.pair_bits + 1),
                "r_data": In(pair_shape),
                "grant": In(1),
                "target": Out(range(g.words)),
                "row_end": Out(1),
                "word_valid": Out(1),
                "word": Out(word_shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        g = self.geometry
        low = g.word_levels - 1  # bits of the step within a block
        rounding = 1 << (rotation_shift(g.head_dim) - 1)

        # A step of two cycles for each pair of words: first its sum, then its difference.
        active, rotate, region, second = Signal(), Signal(), Signal(), Signal()
        step = Signal(range(g.pairs))
        issue, last = Signal(), Signal()
        m.d.comb += [
            issue.eq(active & self.grant),
            last.eq(second & (step == g.pairs - 1)),
            self.idle.eq(~active | self.row_end),
            self.row_end.eq(issue & last),
            self.r_addr.eq(Cat(step, region)),
            self.target.eq(Mux(rotate, Cat(step[:low], second, step[low:]), Cat(second, step))),
        ]
        with m.If(issue):
            m.d.sync += second.eq(~second)
            with m.If(second):
                m.d.sync += step.eq(Mux(last, 0, step + 1))
            with m.If(last):
                m.d.sync += active.eq(0)
        with m.If(self.start):
            m.d.sync += [active.eq(1), rotate.eq(self.rotate), region.eq(self.region)]

        invert = rotate & second

        # What travels beside the words through the registers below.
        travel_shape = data.StructLayout({"valid": 1, "rotate": 1, "subtract": 1, "last": 1, "index": range(g.words)})
        travel = [Signal(travel_shape, name=f"travel_{n}") for n in range(g.output_cycles)]
        m.d.sync += [
            travel[0].valid.eq(issue),
            travel[0].rotate.eq(rotate),
            travel[0].subtract.eq(invert),
            travel[0].last.eq(last),
            travel[0].index.eq(self.target),
            *(after.eq(before) for before, after in pairwise(travel)),
        ]

        # Cycle 1: both words, or the plain one and zero; the second is inverted for a difference. Cycle 2: their sum,
        # with a lowest bit in front of both that carries one into the sum of an inverted word.
        operands = Signal.like(self.r_data)
        rounded = Signal(signed(g.stored_bits + 1))
        first_word, second_word = self.r_data[0].as_value(), self.r_data[1].as_value()
        unused = Cat(~rotate & second, ~rotate & ~second)
        m.d.sync += [
            operands[0].eq(Mux(unused[0], 0, first_word)),
            operands[1].eq(Mux(unused[1], 0, second_word ^ invert.replicate(len(second_word)))),
            rounded.eq(Mux(unused[0], 0, self.r_data[0][0] + Mux(rotate, rounding, 0))),
        ]
        values = []
        for lane in range(g.word_lanes):
            a, b = operands[0][lane] if lane else rounded, operands[1][lane]
            value = Signal(signed(len(a) + 1), name=f"joined_{lane}")
            m.d.sync += value.eq((Cat(1, a).as_signed() + Cat(travel[0].subtract, b).as_signed()) >> 1)
            values.append(value)

        # Levels within a word, two to a register. Plain words pass beside them; of the two ways the unused one is zero.
        plain = Signal(data.ArrayLayout(16, g.word_lanes))
        m.d.sync += plain.eq(Mux(travel[1].rotate, 0, Cat(value[:16] for value in values)))
        for register in range(g.lane_registers):
            for level in range(2 * register, min(2 * register + 2, g.lane_levels)):
                values = _butterflies(values, 1 << level)
            stored = [Signal.like(value, name=f"level_{register}_{lane}") for lane, value in enumerate(values)]
            for lane, value in enumerate(values):
                m.d.sync += stored[lane].eq(Mux(travel[1].rotate, value, 0) if register == 0 else value)
            if register:
                plain, plain_before = Signal.like(plain), plain
                m.d.sync += plain.eq(plain_before)
            values = stored

        for lane, value in enumerate(values):
            scaled = value[: g.full_bits].as_signed() >> rotation_shift(g.head_dim)
            m.d.sync += self.word.data[lane].eq(saturate(scaled, 16) | plain[lane].as_signed())
        m.d.sync += [
            self.word_valid.eq(travel[-1].valid),
            self.word.last.eq(travel[-1].last),
            self.word.index.eq(travel[-1].index),
        ]
        return m


def _butterflies(values: list[Value], half: int) -> list[Value]:
    """One level: sums and differences of the values whose numbers differ in the bit `half`."""
    return [values[n - half] - value if n & half else value + values[n + half] for n, value in enumerate(values)]
