"""Part of RowQuantizer: rows in, rotated or plain INT16 words out (golden `rotate`)."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.config import DsqConfig
from rtl.dsq._last_levels import LastLevels
from rtl.dsq._rotator_geometry import RotatorGeometry
from rtl.dsq._word_levels import WordLevels

__all__ = ["Rotator"]


class Rotator(wiring.Component):
    """Takes rows beat by beat and gives them word by word, rotated where asked.

    The butterflies have constant geometry: a level reads words 2t and 2t+1 and writes their sum to word t and their
    difference to word t + half a block, of the other half of the same two memory banks (even words, odd words). So no
    operand needs a selector, and after all levels the order is natural. The first level is done while a row is loaded,
    the last one while it is given out, with its own adders, so loading overlaps giving out. Lanes within a word are
    rotated behind the last level. Plain rows take the same path with the partner operand held at zero.

    Rounding costs one adder: a constant added to a block's first channel appears in all outputs of the rotation.

    Parameters
    ----------
    config: geometry.

    Members
    -------
    i : row beats.
    grant : the next word may be given out; its row position is ``target``.
    row_end : strobe with the last word's start; that word appears at ``word`` a few cycles later.
    word : ``valid``, ``last`` (of the row), ``index`` (row position) and ``data``; no back-pressure.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.geometry = g = RotatorGeometry(head_dim=config.head_dim, lanes=config.lanes)
        row_shape = data.StructLayout({"rotate": 1, "data": data.ArrayLayout(signed(16), config.lanes)})
        self.word_shape = data.StructLayout(
            {"last": 1, "index": range(g.words), "data": data.ArrayLayout(signed(16), g.word_lanes)}
        )
        super().__init__(
            {
                "i": In(stream.Signature(row_shape)),
                "grant": In(1),
                "target": Out(range(g.words)),
                "row_end": Out(1),
                "word_valid": Out(1),
                "word": Out(self.word_shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        g = self.geometry

        # Control: LOAD (first level, or plain words), WAIT for the memory, STAGE (a further level), until only the last
        # is left.
        step = Signal(range(g.pairs))
        stage = Signal(range(g.word_levels))
        second = Signal()  # a plain row loads its words one by one
        rotate_kept, region, settle = Signal(), Signal(), Signal(range(g.settle_cycles + 1))
        rotate = Signal()
        loading, running, start, drained = Signal(), Signal(), Signal(), Signal()
        step_end = Signal()
        last_step = step == g.pairs - 1
        m.d.comb += rotate.eq(Mux(loading & (step == 0), self.i.payload.rotate, rotate_kept))
        with m.If(step_end):
            m.d.sync += step.eq(Mux(last_step, 0, step + 1))
        with m.FSM():
            with m.State("LOAD"):
                m.d.comb += loading.eq(1)
                m.d.comb += step_end.eq(self.i.valid & (rotate | second))
                m.d.comb += self.i.ready.eq(step[0] & (rotate_kept | second))
                with m.If(self.i.valid):
                    m.d.sync += second.eq(~rotate & ~second)
                    m.d.sync += rotate_kept.eq(rotate)
                m.d.sync += stage.eq(Mux(rotate, g.word_levels - 2, 0))
                m.d.sync += settle.eq(g.settle_cycles)
                with m.If(step_end & last_step):
                    m.next = "WAIT"
            with m.State("WAIT"):
                with m.If(settle != 0):
                    m.d.sync += settle.eq(settle - 1)
                with m.Elif(drained):
                    with m.If(stage != 0):
                        m.next = "STAGE"
                    with m.Else():
                        m.d.comb += start.eq(1)
                        m.d.sync += region.eq(~region)
                        m.next = "LOAD"
            with m.State("STAGE"):
                m.d.comb += [running.eq(1), step_end.eq(1)]
                m.d.sync += settle.eq(g.settle_cycles)
                with m.If(last_step):
                    m.d.sync += [stage.eq(stage - 1), region.eq(~region)]
                    m.next = "WAIT"

        m.submodules.levels = levels = WordLevels(g)
        m.submodules.output = output = LastLevels(g, self.word_shape)
        with m.If(loading):
            for lane in range(g.word_lanes):
                for operand in range(2):
                    first = self.i.payload.data[operand * g.word_lanes + lane]
                    other = self.i.payload.data[(2 + operand) * g.word_lanes + lane]
                    m.d.comb += levels.operand[operand][lane].eq(Mux(step[0], other, first))
        with m.Else():
            m.d.comb += levels.operand.eq(levels.r_data)
        m.d.comb += [
            levels.valid.eq(loading & self.i.valid | running),
            levels.zero.eq(Mux(loading & ~rotate, Mux(second, 0b01, 0b10), 0)),
            levels.plain.eq(~rotate),
            levels.bank.eq(Mux(rotate, step[0], second)),
            levels.region.eq(Mux(loading, region, ~region)),
            levels.step.eq(step),
            levels.r_addr.eq(Mux(running, Cat(step, region), output.r_addr)),
            output.start.eq(start),
            output.rotate.eq(rotate_kept),
            output.region.eq(region),
            output.grant.eq(self.grant),
            output.r_data.eq(levels.r_data),
            drained.eq(output.idle),
            self.target.eq(output.target),
            self.row_end.eq(output.row_end),
            self.word_valid.eq(output.word_valid),
            self.word.eq(output.word),
        ]
        return m
