"""Calibrated constants of the channels, and their quantization steps in the group at hand: golden ``channel_steps``."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.dsq.compressor import SHAPE_FRACTION_BITS, STEP_BITS
from golden.dsq.scale import SCALE_BIAS
from rtl.common.fixed import half_up, saturate_unsigned, split_scale
from rtl.config import DsqConfig
from rtl.dsq._compressor_steps import SHAPE_BITS, calibration_layout
from rtl.dsq._row_format import Section, row_formats

__all__ = ["StepStore", "step_cycles"]


def step_cycles(config: DsqConfig, lanes: int) -> int:
    """Cycles from a start until the steps of all channels are there, ``lanes`` computed at once."""
    return -(-config.head_dim // lanes) + 3


class StepStore(wiring.Component):
    """Keeps shapes and means of all channels; computes the steps of K, then those of V in their place.

    ``ready`` falls in the cycle after a start and rises `step_cycles` after the start. A start ends a run in progress.
    Reading is combinational; word w has the channels from ``w * width`` on, as the words of a 2-bit row do.

    Parameters
    ----------
    config : DsqConfig
    lanes : int
        Steps that are computed in a cycle, a power of two.

    Members
    -------
    w_en, w_channel, w_data : one channel's calibration
    start_k, start_v : compute the steps of K or V
    k_scale, v_scale : group scales, read while ``ready`` is low
    ready : the steps are complete
    step_addr, steps : a word of steps
    mean_addr, means : a word of V means
    """

    def __init__(self, config: DsqConfig, *, lanes: int) -> None:
        self.config = config
        self.lanes = lanes
        value_format = row_formats(config)[Section.V_DELTA]
        self.words = 1 << ceil_log2(value_format.words)
        self.chunks = -(-config.head_dim // lanes)
        self.width = value_format.codes if value_format.words > 1 else self.chunks * lanes
        super().__init__(
            {
                "w_en": In(1),
                "w_channel": In(range(config.head_dim)),
                "w_data": In(calibration_layout),
                "start_k": In(1),
                "start_v": In(1),
                "k_scale": In(8),
                "v_scale": In(8),
                "ready": Out(1),
                "step_addr": In(range(max(2, self.words))),
                "steps": Out(data.ArrayLayout(STEP_BITS, self.width)),
                "mean_addr": In(range(max(2, self.words))),
                "means": Out(data.ArrayLayout(signed(16), self.width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, addr_bits = self.lanes, ceil_log2(self.words)
        chunk = Signal(range(self.chunks))
        k_shapes, v_shapes = (Signal(data.ArrayLayout(SHAPE_BITS, lanes), name=f"{kind}_shapes") for kind in "kv")
        for output, addr, value in (
            (k_shapes, chunk, self.w_data.k_shape),
            (v_shapes, chunk, self.w_data.v_shape),
            (self.means, self.mean_addr[:addr_bits], self.w_data.v_mean),
        ):
            _channel_store(m, output, addr, self.w_channel, self.w_en, [value])

        # Pipeline: shapes; products with the significand shifted by the exponent's low bits; the rest of the shift.
        is_v, running = Signal(), Signal()
        valid_1, valid_2 = Signal(), Signal()
        chunk_1, chunk_2 = Signal.like(chunk), Signal.like(chunk)
        significand, exponent = split_scale(Mux(is_v, self.v_scale, self.k_scale))
        factor, high_1, high_2 = Signal(11), Signal(2), Signal(2)
        m.d.sync += [
            valid_1.eq(running),
            valid_2.eq(valid_1),
            chunk.eq(chunk + 1),
            chunk_1.eq(chunk),
            chunk_2.eq(chunk_1),
            factor.eq(significand << exponent[:3]),
            high_1.eq(exponent[3:]),
            high_2.eq(high_1),
        ]
        with m.If(chunk == self.chunks - 1):
            m.d.sync += running.eq(0)

        steps = []
        for lane in range(lanes):
            shape = Signal(SHAPE_BITS, name=f"shape_{lane}", reset_less=True)
            product = Signal(SHAPE_BITS + len(factor), name=f"product_{lane}", reset_less=True)
            rounded = Signal(SHAPE_BITS + len(factor) + 5, name=f"rounded_{lane}")
            step = Signal(STEP_BITS, name=f"step_{lane}")
            m.d.sync += [
                shape.eq(Mux(is_v, v_shapes[lane], k_shapes[lane])),
                product.eq(shape * factor),
            ]
            with m.Switch(high_2):
                for high in range(4):
                    with m.Case(high):
                        m.d.comb += rounded.eq(half_up(product, SCALE_BIAS + SHAPE_FRACTION_BITS - 8 * high))
            m.d.comb += step.eq(saturate_unsigned(rounded, STEP_BITS))
            steps.append(step)
        _channel_store(m, self.steps, self.step_addr[:addr_bits], chunk_2, valid_2, steps)

        with m.If(valid_2 & (chunk_2 == self.chunks - 1)):
            m.d.sync += self.ready.eq(1)
        with m.If(self.start_k | self.start_v):
            m.d.sync += [
                is_v.eq(self.start_v),
                running.eq(1),
                chunk.eq(0),
                valid_1.eq(0),
                valid_2.eq(0),
                self.ready.eq(0),
            ]
        return m


def _channel_store(
    m: Module, output: data.View, addr: Value, part: Value, enable: Value, values: list[Value]
) -> None:
    """Words of channels: a memory, or registers for a single word.

    A word, read at ``addr``, has as many channels as ``output``; as many as there are ``values`` are written at once.
    """
    name, layout = output.as_value().name, output.shape()
    parts = layout.length // len(values)
    select = Signal(parts, name=f"{name}_select")
    if len(addr) == 0:
        words = Signal(layout, name=f"{name}_word", reset_less=True)
        m.d.comb += [select.eq(enable << part), output.eq(words)]
        for i in range(layout.length):
            with m.If(select[i // len(values)]):
                m.d.sync += words[i].eq(values[i % len(values)])
    else:
        m.submodules[f"{name}_store"] = store = Memory(shape=layout, depth=1 << len(addr), init=[])
        write, read = store.write_port(granularity=len(values)), store.read_port(domain="comb")
        m.d.comb += [
            select.eq(enable << part % parts),
            write.addr.eq(part // parts),
            write.en.eq(select),
            *(channel.eq(values[i % len(values)]) for i, channel in enumerate(write.data)),
            read.addr.eq(addr),
            output.eq(read.data),
        ]
