"""Group scales of the Compressor: the scale part of ``golden.dsq.compressor.encode_deltas``."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from rtl.config import DsqConfig
from rtl.dsq._compressor_lanes import total_bits
from rtl.dsq.scale import DividerConfig, ScaleDivider

__all__ = ["NORM_BITS", "GroupScales", "divider_config"]

NORM_BITS = 20


def divider_config(config: DsqConfig) -> DividerConfig:
    """Operands of the division: at most those of a group whose differences and norms are all as large as can be."""
    return DividerConfig(
        numerator_bits=total_bits(config) + SHAPE_FRACTION_BITS,
        denominator_bits=bits_for(config.group_tokens * ((1 << NORM_BITS) - 1)),
    )


class GroupScales(wiring.Component):
    """Divides a pass's sum of magnitudes by its rows' norms: first for K, then for V.

    The divisor needs no multiplier: the norm is added once for every row. The division for K may overlap the pass
    over V.

    Parameters
    ----------
    config : DsqConfig

    Members
    -------
    row_stb, k_norm, v_norm : a row joins the present sum
    total : sum of magnitudes
    divide, accepted : ask for the division of ``total``; in the cycle of ``accepted`` the next sum begins
    k_scale, v_scale : results, held until the next group's
    k_stb, v_stb : a result is there from this cycle on
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        super().__init__(
            {
                "row_stb": In(1),
                "k_norm": In(NORM_BITS),
                "v_norm": In(NORM_BITS),
                "total": In(total_bits(config)),
                "divide": In(1),
                "accepted": Out(1),
                "k_scale": Out(8),
                "v_scale": Out(8),
                "k_stb": Out(1),
                "v_stb": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.divider = divider = ScaleDivider(divider_config(self.config))
        norms = Signal(divider.config.denominator_bits)
        adds_v, gives_v = Signal(), Signal()
        m.d.comb += [
            divider.i.valid.eq(self.divide),
            divider.i.payload.numerator.eq(self.total << SHAPE_FRACTION_BITS),
            divider.i.payload.denominator.eq(norms),
            self.accepted.eq(self.divide & divider.i.ready),
            divider.o.ready.eq(1),
        ]
        with m.If(self.accepted):
            m.d.sync += [norms.eq(0), adds_v.eq(~adds_v)]
        with m.Elif(self.row_stb):
            m.d.sync += norms.eq(norms + Mux(adds_v, self.v_norm, self.k_norm))
        m.d.sync += [self.k_stb.eq(divider.o.valid & ~gives_v), self.v_stb.eq(divider.o.valid & gives_v)]
        with m.If(divider.o.valid):
            m.d.sync += gives_v.eq(~gives_v)
            with m.If(gives_v):
                m.d.sync += self.v_scale.eq(divider.o.payload)
            with m.Else():
                m.d.sync += self.k_scale.eq(divider.o.payload)
        return m
