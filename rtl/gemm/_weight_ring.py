"""Weights of column tiles: a ring that is read again for each row tile."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.memory import NO_COLLISIONS
from rtl.config import GemmConfig

__all__ = ["WeightRing"]


class WeightRing(wiring.Component):
    """Keeps the weights of k steps until the last row tile has read them.

    Latency: weights can be read in the cycle after their transfer, and are there in the one after ``step``.
    Throughput: k steps a cycle: one written, one read.
    Combinational paths: none; ``available`` and ``i.ready`` depend on registers alone.

    Members
    -------
    i : stream of INT8 weights, one a column: k step after k step
    available : the weights of the next k step are there
    step : read them; not without ``available``
    last : it is the last step of a row tile
    keep : further row tiles need the weights; the first step after ``last`` is again the first one of the column tile
    r_en, r_data : the weights after ``step``; they stay without ``r_en``, without which there is no ``step``
    """

    def __init__(self, config: GemmConfig) -> None:
        self._words = config.weight_words
        self.shape = data.ArrayLayout(signed(8), config.columns)
        super().__init__(
            {
                "i": In(stream.Signature(self.shape)),
                "available": Out(1),
                "step": In(1),
                "last": In(1),
                "keep": In(1),
                "r_en": In(1),
                "r_data": Out(self.shape),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # A step reads from `oldest` up to before `written`, where nothing is written.
        m.submodules.words = words = Memory(shape=self.shape, depth=self._words, init=[], attrs=NO_COLLISIONS)
        write, read = words.write_port(), words.read_port()
        # With one bit more than an address. What is before `oldest` is free; a tile that is kept begins there.
        bits = exact_log2(self._words) + 1
        written, reading, oldest = (Signal(bits, name=name) for name in ("written", "reading", "oldest"))
        m.d.comb += [
            self.i.ready.eq((written - oldest)[:bits] != self._words),
            self.available.eq(written != reading),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(written),
            write.data.eq(self.i.payload),
            read.en.eq(self.r_en),
            read.addr.eq(reading),
            self.r_data.eq(read.data),
        ]
        with m.If(write.en):
            m.d.sync += written.eq(written + 1)
        with m.If(self.step):
            m.d.sync += reading.eq(Mux(self.last & self.keep, oldest, reading + 1))
            with m.If(~self.keep):
                m.d.sync += oldest.eq(reading + 1)
        return m
