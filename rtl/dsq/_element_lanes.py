"""The arithmetic of the dequantizer, lane by lane: golden ``reconstruct_rows``, ``decode_deltas`` and ``expand``."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.compressor import STEP_BITS, VALUE_BITS
from golden.dsq.record import COARSE_BITS
from golden.dsq.scale import SCALE_BIAS
from rtl.common.fixed import saturate, split_scale
from rtl.config import DsqConfig
from rtl.dsq._row_format import Section, row_formats

__all__ = ["ElementLanes"]

#: how far products are shifted right; those with an exponent of 8 or more, which is left out of the factor, by 8 less
FINE_SHIFT = SCALE_BIAS
COARSE_SHIFT = FINE_SHIFT - 8
#: a delta's odd multiple of half a step is multiplied by this to fit COARSE_SHIFT
DELTA_SHIFT = COARSE_SHIFT - 1


class ElementLanes(wiring.Component):
    """Decodes the codes of a word and adds them to their bases.

    Three registers: operands, products, offsets. Every lane that base elements use has a multiplier, for INT8 codes and
    row factors or for levels and steps; the other lanes only have deltas, whose few levels are worth adders alone.
    ``result`` is combinational in the inputs that belong to the last stage.

    Members
    -------
    enable : the pipeline moves
    section, word, upper, scales : a word, the upper nibbles that belong to it, the scale codes of its rows
    steps : steps of the word's channels
    result_section : the section of the word in the last stage; ``bases`` and ``means`` belong to it
    result : its elements
    """

    def __init__(self, config: DsqConfig, *, step_shape: data.Layout, mean_shape: data.Layout) -> None:
        self.formats = row_formats(config)
        self.delta_bits = config.delta_bits
        base, k_delta, _, v_delta = self.formats.values()
        super().__init__(
            {
                "enable": In(1),
                "section": In(Section),
                "word": In(config.bus_bits),
                "upper": In(config.bus_bits),
                "scales": In(data.ArrayLayout(8, base.per_word)),
                "steps": In(step_shape),
                "result_section": In(Section),
                "bases": In(data.ArrayLayout(signed(16), k_delta.lanes)),
                "means": In(mean_shape),
                "result": Out(data.ArrayLayout(signed(16), v_delta.lanes)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        base, _, _, v_delta = self.formats.values()
        is_delta, is_value = Signal(), Signal()
        m.d.comb += [
            is_delta.eq((self.section == Section.K_DELTA) | (self.section == Section.V_DELTA)),
            is_value.eq((self.section == Section.V_SALIENT) | (self.section == Section.V_DELTA)),
        ]
        # Factor of each row and whether its products are shifted by COARSE_SHIFT; MAX_EXPONENT, 16, counts as 8 + 8.
        factors, coarse = [], [Signal(base.per_word, name=f"coarse_{stage}") for stage in range(3)]
        for row, scale in enumerate(self.scales):
            significand, exponent = split_scale(scale)
            factor = Signal(12, name=f"row_factor_{row}")
            m.d.comb += factor.eq(significand << Cat(exponent[:3], exponent[4]))
            m.d.comb += coarse[0][row].eq(is_delta | exponent[3:].any())
            factors.append(factor)
        with m.If(self.enable):
            m.d.sync += [coarse[1].eq(coarse[0]), coarse[2].eq(coarse[1])]

        for lane, result in enumerate(self.result):
            if lane < base.lanes:
                row = base.place(lane)[0]
                doubled = self._multiplied(m, lane, factors[row], coarse[2][row], is_delta, is_value)
            else:
                doubled = self._added(m, lane, is_value)
            added = Mux(self.result_section == Section.V_DELTA, self.means[v_delta.place(lane)[1]], 0)
            if lane < len(self.bases):
                added = Mux(self.result_section == Section.K_DELTA, self.bases[lane], added)
            # half_up(doubled, 1) and the sum in one adder: the one below the base carries doubled[0].
            total = Signal(signed(len(doubled) + 1), name=f"total_{lane}")
            m.d.comb += [
                total.eq(Cat(Const(1, 1), added).as_signed() + doubled),
                result.eq(saturate(total[1:].as_signed(), 16)),
            ]
        return m

    def _delta_code(self, lane: int, is_value: Value) -> Value:
        """The delta code of a lane, ``delta_bits`` wide; the V code v has the level of the 4-bit code v + 6."""
        code = self.formats[Section.V_DELTA].code(self.word, lane)
        if self.delta_bits == VALUE_BITS:
            return code
        coarse = self.formats[Section.K_DELTA].code(self.upper, lane)
        return Mux(is_value, Cat(code[0], ~code[1], ~code[1], code[1]), Cat(code, coarse))

    def _multiplied(
        self, m: Module, lane: int, row_factor: Value, coarse: Value, is_delta: Value, is_value: Value
    ) -> Value:
        """Twice the offset of a lane with a multiplier: one code bit more than the result needs, for half_up."""
        base, _, v_salient, v_delta = self.formats.values()
        bits = STEP_BITS + self.delta_bits + 1 + DELTA_SHIFT  # the product of a delta is the widest
        code = Signal(signed(8), name=f"code_{lane}", reset_less=True)
        factor = Signal(STEP_BITS, name=f"factor_{lane}", reset_less=True)
        product = Signal(signed(bits), name=f"product_{lane}", reset_less=True)
        doubled = Signal(signed(bits - COARSE_SHIFT + 1), name=f"doubled_{lane}", reset_less=True)
        row_code = Cat(base.code(self.word, lane), base.code(self.upper, lane)).as_signed()
        if lane < v_salient.lanes:
            row_code = Mux(is_value, v_salient.code(self.word, lane).as_signed(), row_code)
        delta = _odd(self._delta_code(lane, is_value)) << DELTA_SHIFT
        step = self.steps[v_delta.place(lane)[1]]
        with m.If(self.enable):
            m.d.sync += [
                code.eq(Mux(is_delta, delta, row_code)),
                factor.eq(Mux(is_delta, step, row_factor)),
                product.eq(code * factor),
                doubled.eq(Mux(coarse, product >> COARSE_SHIFT - 1, product >> FINE_SHIFT - 1)),
            ]
        return doubled

    def _added(self, m: Module, lane: int, is_value: Value) -> Value:
        """Twice the offset of a lane without multiplier: a level of -3, -1, 1 or 3 steps for each plane of the code.

        The negative of x is ~x + 1. A carry adds the 1 of the lower plane. That of the upper plane, which has the sign
        of the sum, is left to the rounding that follows: half_up(y + 1, 1) = half_up(y | 1, 1).
        """
        code, code_1 = (Signal(self.delta_bits, name=f"code_{lane}_{stage}", reset_less=True) for stage in range(2))
        step, step_1 = (Signal(STEP_BITS, name=f"factor_{lane}_{stage}", reset_less=True) for stage in range(2))
        triple = Signal(STEP_BITS + 2, name=f"triple_{lane}", reset_less=True)
        doubled = Signal(signed(STEP_BITS + self.delta_bits + 1), name=f"doubled_{lane}", reset_less=True)

        def multiple(plane: Value) -> Value:
            """The plane's level times the step, less 1 if negative."""
            negative = ~plane[1]
            size = Mux(plane[0] == plane[1], triple, step_1)
            return Cat(size ^ negative.replicate(len(triple)), negative).as_signed()

        total = multiple(code_1[-COARSE_BITS:])
        negative = total[-1]
        if self.delta_bits > COARSE_BITS:
            fine = multiple(code_1[:-COARSE_BITS])
            coarse = Cat(negative.replicate(2), total)  # 4 times as much, less 1 if negative
            total = (Cat(Const(1, 1), coarse).as_signed() + Cat(fine[-1], fine).as_signed())[1:]
        with m.If(self.enable):
            m.d.sync += [
                code.eq(self._delta_code(lane, is_value)),
                step.eq(self.steps[self.formats[Section.V_DELTA].place(lane)[1]]),
                code_1.eq(code),
                step_1.eq(step),
                triple.eq(step + (step << 1)),
                doubled.eq(Cat(step_1[0] | negative, total[1:])),
            ]
        return doubled


def _odd(code: Value) -> Value:
    """Golden ``decode_deltas``: the level of a delta code in half steps, an odd signed number of one bit more."""
    return Cat(Const(1, 1), code[:-1], ~code[-1]).as_signed()
