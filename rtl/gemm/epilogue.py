"""From sums of the array to output elements (golden `finish_beats`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.gemm.epilogue import Function
from rtl.common.fixed import saturate
from rtl.config import GemmConfig
from rtl.gemm._delay import Delay
from rtl.gemm._pair import PairProducts
from rtl.gemm._scale import ColumnScale
from rtl.gemm._sigmoid import Silu

__all__ = ["Epilogue"]


class Epilogue(wiring.Component):
    """Scales the sums of ``pairs`` pairs of columns, adds their bias, turns them or multiplies one's SiLU by the other.

    Pair p are the columns 2p and 2p + 1. With LINEAR and ROTARY each column has its own element at its own place; with
    SWIGLU the elements of the pairs are in the lower half, the upper half is 0. Then a residual is added, if wanted,
    and the elements are saturated to 16 or 32 bits.

    Latency: ``latency`` cycles from a transfer at ``i`` to its transfer at ``o``, without stalls.
    Throughput: one beat a cycle, whatever the functions.
    Stalls: the pipeline stops while ``o`` waits. A beat whose residual is not there stops all beats behind it, those
    ahead of it leave.
    Combinational paths: ``o.ready`` to ``i.ready`` and ``i_residual.ready``, ``i_residual.valid`` to ``i.ready``.

    Parameters
    ----------
    config: of which only ``acc_bits`` and ``pairs`` matter.
    tag_shape: shape of what passes along with each beat.

    Members
    -------
    i : stream: ``sums``; ``factor`` and ``exponent`` of their row; ``scale``, ``shift`` and ``bias`` of each column;
        ``cos`` and ``sin`` of each pair, for ROTARY; ``function`` (3 does as LINEAR); ``add_residual``; ``narrow``: 16
        bits; ``tag``.
    i_residual : stream: ``elements`` to add, in the order of ``o``, for each beat with ``add_residual``.
    o : stream: ``elements``, sign-extended, and ``tag``.
    """

    def __init__(self, config: GemmConfig, tag_shape: Any) -> None:
        self.acc_bits = config.acc_bits
        self.pairs = pairs = config.pairs
        elements = data.ArrayLayout(signed(32), 2 * pairs)
        angles = {name: data.ArrayLayout(signed(16), pairs) for name in ("cos", "sin")}
        self._late_layout = data.StructLayout({"function": 2, "add_residual": 1, "narrow": 1, "tag": tag_shape})
        self._side_layout = data.StructLayout({**angles, "late": self._late_layout})
        self.i_shape = data.StructLayout(
            {
                "sums": data.ArrayLayout(signed(self.acc_bits), 2 * pairs),
                "factor": 16,
                "exponent": signed(7),
                "scale": data.ArrayLayout(16, 2 * pairs),
                "shift": data.ArrayLayout(signed(7), 2 * pairs),
                "bias": elements,
                **angles,
                **self._late_layout.members,
            }
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.i_shape)),
                "i_residual": In(stream.Signature(data.StructLayout({"elements": elements}))),
                "o": Out(stream.Signature(data.StructLayout({"elements": elements, "tag": tag_shape}))),
            }
        )

    @staticmethod
    def latency(config: GemmConfig) -> int:
        """Cycles from a transfer at ``i`` to its transfer at ``o``."""
        return ColumnScale.latency + Silu.latency + PairProducts.latency + 2

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        beat, elements = self.i.payload, self.o.payload.elements
        advance = Signal()

        # What a beat takes along: from the inputs to the pairs, which need the angles, and on to the residual.
        first = Signal(self._side_layout, reset_less=True)
        side = Delay(self._side_layout, cycles=ColumnScale.latency + Silu.latency - 1)
        late = Delay(self._late_layout, cycles=PairProducts.latency)
        m.submodules.side, m.submodules.late = side, late
        with m.If(advance):
            m.d.sync += [first[name].eq(beat[name]) for name in ("cos", "sin")]
            m.d.sync += [first.late[name].eq(beat[name]) for name in self._late_layout.members]
        m.d.comb += [side.en.eq(advance), side.i.eq(first), late.en.eq(advance), late.i.eq(side.o.late)]

        turned, products = [], []
        for n in range(self.pairs):
            pair = self._pair(m, n, advance, side.o)
            turned += list(pair.turned)
            products.append(pair.product)

        # `valid` ends before the last two registers: elements with their residual beside them, and the output.
        valid = Signal(ColumnScale.latency + Silu.latency + PairProducts.latency)
        leave = ~self.o.valid | self.o.ready
        wants = valid[-1] & late.o.add_residual
        m.d.comb += [
            advance.eq(leave & (~wants | self.i_residual.valid)),
            self.i.ready.eq(advance),
            self.i_residual.ready.eq(leave & wants),
        ]
        swiglu = late.o.function == Function.SWIGLU
        finished = Signal(self.o.payload.shape(), reset_less=True)
        residual = Signal.like(elements, reset_less=True)
        complete, narrow = Signal(), Signal(reset_less=True)
        with m.If(advance):
            m.d.sync += valid.eq(Cat(self.i.valid, valid))
        with m.If(leave):
            m.d.sync += [complete.eq(valid[-1] & advance), narrow.eq(late.o.narrow), finished.tag.eq(late.o.tag)]
            m.d.sync += [self.o.valid.eq(complete), self.o.payload.tag.eq(finished.tag)]
            for n, element in enumerate(finished.elements):
                product = saturate(products[n], 32) if n < self.pairs else 0
                total = element + residual[n]
                m.d.sync += [
                    element.eq(Mux(swiglu, product, turned[n])),
                    residual[n].eq(Mux(late.o.add_residual, self.i_residual.payload.elements[n], 0)),
                    elements[n].eq(Mux(narrow, saturate(total, 16), saturate(total, 32))),
                ]
        return m

    def _pair(self, m: Module, n: int, advance: Signal, side: data.View) -> PairProducts:
        """Columns 2n and 2n + 1; the side is that of the beat whose scaled sums, and SiLU, the pair gets."""
        beat = self.i.payload
        m.submodules[f"silu_{n}"] = silu = Silu()
        m.submodules[f"scaled_{n}"] = scaled = Delay(data.ArrayLayout(signed(32), 2), cycles=Silu.latency)
        m.submodules[f"products_{n}"] = pair = PairProducts()
        for k in range(2):
            column = 2 * n + k
            m.submodules[f"column_{column}"] = scale = ColumnScale(self.acc_bits)
            m.d.comb += [
                scale.en.eq(advance),
                scale.sum.eq(beat.sums[column]),
                scale.factor.eq(beat.factor),
                scale.exponent.eq(beat.exponent),
                scale.scale.eq(beat.scale[column]),
                scale.shift.eq(beat.shift[column]),
                scale.bias.eq(beat.bias[column]),
                scaled.i[k].eq(scale.o),
            ]
        m.d.comb += [
            silu.en.eq(advance),
            silu.y.eq(scaled.i[0]),
            scaled.en.eq(advance),
            pair.en.eq(advance),
            pair.pair.eq(scaled.o),
            pair.silu.eq(silu.o),
            pair.cos.eq(side.cos[n]),
            pair.sin.eq(side.sin[n]),
            pair.rotary.eq(side.late.function == Function.ROTARY),
            pair.swiglu.eq(side.late.function == Function.SWIGLU),
        ]
        return pair
