"""Part of QueryPreparer: the codes of a rotated row, plain, then shaped."""

from itertools import pairwise

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from rtl.common.fixed import half_up, saturate
from rtl.config import AcceleratorConfig
from rtl.dsq._compressor_steps import SHAPE_BITS
from rtl.mha._query_store import SLOT_BITS, query_layout

__all__ = ["QueryCodes"]


class QueryCodes(wiring.Component):
    """Reads a row once for its plain codes, while its shaped values come out, and once for its shaped codes.

    Registers: element and shape, their product, value, its product with the scale's reciprocal, code (``REGISTERS``).

    Members
    -------
    start, shaped : strobe, and which codes of a row are given from the next cycle on.
    channel, element, k_shape : what is read, in the same cycle.
    value_valid, value, value_last : shaped values, while plain codes are given; no back-pressure.
    scale, factor, window : the scale of these codes and what divides by it, as `RowScale` gives them.
    busy : the scale is still needed.
    row_end : strobe; the row need not be kept for longer.
    slot : of the query.
    o : stream of codes.
    """

    REGISTERS = 5

    def __init__(self, config: AcceleratorConfig, *, factor_bits: int) -> None:
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "shaped": In(1),
                "channel": Out(range(config.dsq.head_dim)),
                "element": In(signed(16)),
                "k_shape": In(SHAPE_BITS),
                "value_valid": Out(1),
                "value": Out(signed(16)),
                "value_last": Out(1),
                "scale": In(8),
                "factor": In(factor_bits),
                "window": In(2),
                "busy": Out(1),
                "row_end": Out(1),
                "slot": In(SLOT_BITS),
                "o": Out(stream.Signature(query_layout(config))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        heads, dim = self.config.mha.q_heads, self.config.dsq.head_dim
        advance = ~self.o.valid | self.o.ready

        reading, shaped = Signal(), Signal()
        channel = Signal(range(dim))
        last = channel == dim - 1
        # What goes with an element: beside[n] belongs to register n + 1.
        beside_shape = data.StructLayout({"valid": 1, "shaped": 1, "last": 1, "channel": range(dim)})
        beside = [Signal(beside_shape, name=f"beside_{n}") for n in range(self.REGISTERS - 1)]
        valued, end = beside[2], beside[3]
        m.d.comb += [
            self.channel.eq(channel),
            self.row_end.eq(reading & last & shaped & advance),
            self.busy.eq(reading | Cat(each.valid for each in beside).any()),
        ]
        with m.If(advance):
            m.d.sync += [after.eq(before) for before, after in pairwise(beside)]
            m.d.sync += beside[0].as_value().eq(Cat(reading, shaped, last, channel))
            with m.If(reading):
                m.d.sync += [channel.eq(Mux(last, 0, channel + 1)), reading.eq(~last)]
        with m.If(self.start):
            m.d.sync += [reading.eq(1), shaped.eq(self.shaped)]

        # Element and shape; product; the value, of both forms the one that becomes a code; its product.
        element, k_shape = [Signal(signed(16), name=f"element_{n}") for n in range(2)], Signal(SHAPE_BITS)
        product = Signal(signed(16 + SHAPE_BITS))
        value = Signal(signed(16))
        scaled = Signal(signed(16 + len(self.factor)))
        shaped_value = saturate(half_up(product, SHAPE_FRACTION_BITS), 16)
        with m.If(advance):
            m.d.sync += [
                element[0].eq(self.element),
                k_shape.eq(self.k_shape),
                element[1].eq(element[0]),
                product.eq(element[0] * k_shape),
                self.value.eq(shaped_value),
                value.eq(Mux(beside[1].shaped, shaped_value, element[1])),
                scaled.eq(value * self.factor),
            ]
        m.d.comb += [
            self.value_valid.eq(valued.valid & ~valued.shaped & advance),
            self.value_last.eq(valued.last),
        ]

        windows = [scaled[18 - 4 * n : 27 - 4 * n] for n in range(4)]
        head = Signal(range(heads))
        o = self.o.payload
        with m.If(advance):
            m.d.sync += [
                self.o.valid.eq(end.valid),
                o.slot.eq(self.slot),
                o.head.eq(head),
                o.shaped.eq(end.shaped),
                o.channel.eq(end.channel),
                o.code.eq(half_up(Array(windows)[self.window].as_signed(), 1)),
                o.scale.eq(self.scale),
                o.last.eq(end.shaped & end.last & (head == heads - 1)),
            ]
            with m.If(end.valid & end.shaped & end.last):
                m.d.sync += head.eq(Mux(head == heads - 1, 0, head + 1))
        return m
