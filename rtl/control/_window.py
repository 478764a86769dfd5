"""Part of the control: requests of memory that lie outside the window go nowhere."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from golden.control.commands import LINE_BYTES
from rtl.cache.axi import AxiConfig
from rtl.common.stage import ForwardStage, Stage

__all__ = ["LINE_BITS", "WindowGuard"]

#: bits of a line's number
LINE_BITS = 32


class WindowGuard(wiring.Component):
    """Marks requests with a word outside the window as ``bad``, so that all their words are errors.

    Latency: 2 cycles. Throughput: a request a cycle.

    Members
    -------
    base, end : first line of the window, and the first one behind it
    i, o : streams of requests, see `AxiConfig.request_shape`
    outside : there was such a request; until reset
    """

    def __init__(self, config: AxiConfig) -> None:
        self.config = config
        shape = config.request_shape
        super().__init__(
            {
                "base": In(LINE_BITS),
                "end": In(LINE_BITS),
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "outside": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.stage = stage = Stage(self.config.request_shape)
        m.submodules.judged = judged = ForwardStage(self.config.request_shape)
        shift = ceil_log2(LINE_BYTES // self.config.word_bytes)
        request = stage.o.payload
        last = request.address + request.count - 1
        outside = (request.address < (self.base << shift)) | (last >= (self.end << shift))
        m.d.comb += [
            judged.i.valid.eq(stage.o.valid),
            judged.i.payload.eq(request),
            judged.i.payload.bad.eq(request.bad | outside),
            stage.o.ready.eq(judged.i.ready),
        ]
        with m.If(stage.o.valid & outside):
            m.d.sync += self.outside.eq(1)
        connect(m, flipped(self.i), stage.i)
        connect(m, judged.o, flipped(self.o))
        return m
