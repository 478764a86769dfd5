"""Quantization steps of the channels, one channel a cycle: hardware of ``golden.dsq.compressor.channel_steps``."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.dsq.scale import SCALE_BIAS
from rtl.common.fixed import split_scale
from rtl.common.memory import BLOCK, NO_COLLISIONS
from rtl.config import DsqConfig

__all__ = ["SHAPE_BITS", "STEP_CODE_BITS", "ChannelSteps", "calibration_layout"]

#: a channel's shape, ``SHAPE_FRACTION_BITS`` of them fraction
SHAPE_BITS = 12
#: a step code is the step (at least 1) minus 1, saturated: no difference of two INT16 values reaches a larger step
STEP_CODE_BITS = 16

#: what a calibration stream carries for each channel
calibration_layout = data.StructLayout({"k_shape": SHAPE_BITS, "v_shape": SHAPE_BITS, "v_mean": signed(16)})


class ChannelSteps(wiring.Component):
    """Keeps the calibrated shapes and turns a group scale into the step code of every channel.

    Latency: the code of channel c leaves ``c + 5`` cycles after ``start``; ``busy`` holds from the cycle after
    ``start`` until the last one has left. ``start`` comes only while ``busy`` is low.

    Members
    -------
    shape : struct{valid, channel, k, v}: a shape pair to keep
    start, is_v, scale : begin with the K or V shapes and this scale code; both hold while ``busy``
    o : struct{valid, channel, code}
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        channel = range(config.head_dim)
        shape = data.StructLayout({"valid": 1, "channel": channel, "k": SHAPE_BITS, "v": SHAPE_BITS})
        o_shape = data.StructLayout({"valid": 1, "channel": channel, "code": STEP_CODE_BITS})
        super().__init__(
            {"shape": In(shape), "start": In(1), "is_v": In(1), "scale": In(8), "busy": Out(1), "o": Out(o_shape)}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pair = data.StructLayout({"k": SHAPE_BITS, "v": SHAPE_BITS})
        m.submodules.shapes = shapes = memory.Memory(
            shape=pair, depth=self.config.head_dim, init=[], attrs=NO_COLLISIONS | BLOCK
        )
        w, r = shapes.write_port(), shapes.read_port()
        m.d.comb += [w.addr.eq(self.shape.channel), w.en.eq(self.shape.valid)]
        m.d.comb += [w.data.k.eq(self.shape.k), w.data.v.eq(self.shape.v)]

        channel = Signal(range(self.config.head_dim))
        running = Signal()
        with m.If(self.start):
            m.d.sync += [running.eq(1), channel.eq(0)]
        with m.Elif(running):
            m.d.sync += channel.eq(channel + 1)
            with m.If(channel == self.config.head_dim - 1):
                m.d.sync += running.eq(0)
        m.d.comb += r.addr.eq(channel)

        # Pipeline: memory, shape, product, shifted product (twice the step, before rounding), code. The multiplier
        # takes three bits of the exponent, a shifter by whole bytes the others.
        stages = [(running, channel)]
        for _ in range(4):
            valid, index = Signal(), Signal.like(channel)
            m.d.sync += [valid.eq(stages[-1][0]), index.eq(stages[-1][1])]
            stages.append((valid, index))
        significand, exponent = split_scale(self.scale)
        shape, factor = Signal(SHAPE_BITS), Signal(4 + 7)
        product = Signal(SHAPE_BITS + len(factor))
        doubled = Signal(len(product) + 24 - SCALE_BIAS - SHAPE_FRACTION_BITS + 1)
        shifted = [product.shift_left(8 * count) >> SCALE_BIAS + SHAPE_FRACTION_BITS - 1 for count in range(4)]
        m.d.sync += [
            factor.eq(significand << exponent[:3]),
            shape.eq(Mux(self.is_v, r.data.v, r.data.k)),
            product.eq(shape * factor),
            doubled.eq(Array(shifted)[exponent[3:]]),
        ]
        code = (doubled[: STEP_CODE_BITS + 1] - doubled.any())[1 : STEP_CODE_BITS + 1]  # half_up(doubled, 1) - 1, or 0
        m.d.comb += [
            self.busy.eq(running | stages[1][0] | stages[2][0] | stages[3][0] | stages[4][0]),
            self.o.valid.eq(stages[4][0]),
            self.o.channel.eq(stages[4][1]),
            self.o.code.eq(code | doubled[STEP_CODE_BITS + 1 :].any().replicate(STEP_CODE_BITS)),
        ]
        return m
