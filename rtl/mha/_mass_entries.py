"""Part of the attention core: sums the weights of each group's tokens, for its attention mass."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.config import AcceleratorConfig
from rtl.mha._requests import GROUP_BITS

__all__ = ["MassEntries", "mass_entry_layout"]

WEIGHT_BITS = 24
MAXIMUM_BITS = 19


def mass_entry_layout(config: AcceleratorConfig) -> data.StructLayout:
    """Weights of a token or group with the maxima that they are against, or a query's end with the final maxima."""
    heads = config.mha.q_heads
    return data.StructLayout(
        {
            "weights": data.ArrayLayout(WEIGHT_BITS, heads),
            "maxima": data.ArrayLayout(signed(MAXIMUM_BITS), heads),
            "group": 1,
            "index": GROUP_BITS,
            "end": 1,
        }
    )


class MassEntries(wiring.Component):
    """Gives an entry for a token whose mass counts alone, for a group after its last token, and at a query's end.

    Members
    -------
    i : output of StreamingSoftmax with `weight_tag`
    o : entries for MassNormalizer
    """

    def __init__(self, config: AcceleratorConfig, i_shape: data.StructLayout) -> None:
        self.config = config
        super().__init__(
            {"i": In(stream.Signature(i_shape)), "o": Out(stream.Signature(mass_entry_layout(config)))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        token, tag, out = self.i.payload, self.i.payload.tag, self.o.payload
        gives, free = Signal(), Signal()
        m.d.comb += [
            gives.eq(token.end | tag.by_token | tag.end),
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(free),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(self.i.valid & gives),
                out.maxima.eq(token.maxima),
                out.group.eq(~tag.by_token),
                out.index.eq(Mux(tag.by_token, tag.index, tag.group)),
                out.end.eq(token.end),
            ]
        for head, weight in enumerate(token.weights):
            so_far, total = Signal(WEIGHT_BITS, name=f"so_far_{head}"), Signal(WEIGHT_BITS, name=f"total_{head}")
            m.d.comb += total.eq((so_far >> token.rises[head]) + weight)
            with m.If(free):
                m.d.sync += out.weights[head].eq(total)
            with m.If(free & self.i.valid):
                m.d.sync += so_far.eq(Mux(gives, 0, total))
        return m
