"""Part of the MHA engine: a calibration from memory to the attention core."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for, ceil_log2

from rtl.cache._queue import Queue
from rtl.cache._read_port import word_shape
from rtl.cache.axi import AxiConfig
from rtl.config import AcceleratorConfig
from rtl.control._gearbox import Gearbox
from rtl.control._read_order import lines_layout
from rtl.dsq._compressor_steps import calibration_layout

__all__ = ["CalibrationReader"]

#: of a channel, in memory
_CHANNEL_BITS = 64


class CalibrationReader(wiring.Component):
    """Asks for a calibration as soon as there is room for all of it, and gives it when it is wanted.

    Throughput: a word or a channel a cycle, whichever are more. Words are always taken.
    Combinational paths: ``i`` to ``o_request`` and back.

    Members
    -------
    i : stream of lines where a calibration begins
    o_request, i_word : its words
    o : stream of the channels
    busy : not all words that were asked for have come
    failed : memory refused a word of the last one
    """

    def __init__(self, config: AcceleratorConfig, memory: AxiConfig) -> None:
        self.channels, self.bus_bits = config.dsq.head_dim, config.dsq.bus_bits
        request = lines_layout()
        super().__init__(
            {
                "i": In(stream.Signature(request["line"].shape)),
                "o_request": Out(stream.Signature(request)),
                "i_word": In(stream.Signature(word_shape(memory))),
                "o": Out(stream.Signature(calibration_layout)),
                "busy": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth = 1 << ceil_log2(self.channels)
        parts = self.channels * max(1, _CHANNEL_BITS // self.bus_bits)
        m.submodules.gearbox = gearbox = Gearbox(self.bus_bits, _CHANNEL_BITS, max_parts=parts)
        m.submodules.queue = queue = Queue(calibration_layout, depth=depth)
        held = Signal(bits_for(depth))
        room = held <= depth - self.channels
        begins, given = self.o_request.valid & self.o_request.ready, self.o.valid & self.o.ready
        m.d.comb += [
            self.o_request.valid.eq(self.i.valid & room),
            self.o_request.payload.line.eq(self.i.payload),
            self.o_request.payload.count.eq(self.channels * _CHANNEL_BITS // self.bus_bits),
            self.i.ready.eq(self.o_request.ready & room),
            gearbox.parts.eq(parts),
            gearbox.i.valid.eq(self.i_word.valid),
            gearbox.i.payload.eq(self.i_word.payload.data),
            self.i_word.ready.eq(gearbox.i.ready),
            queue.i.valid.eq(gearbox.o.valid),
            queue.i.payload.eq(gearbox.o.payload.data),
            gearbox.o.ready.eq(queue.i.ready),
        ]
        connect(m, queue.o, flipped(self.o))
        m.d.sync += held.eq(held - given)
        with m.If(begins):
            m.d.sync += [held.eq(held + self.channels - given), self.busy.eq(1), self.failed.eq(0)]
        with m.Elif(gearbox.o.valid & gearbox.o.ready & gearbox.o.payload.last):
            m.d.sync += self.busy.eq(0)
        with m.If(self.i_word.valid & self.i_word.ready & self.i_word.payload.error):
            m.d.sync += self.failed.eq(1)
        return m
