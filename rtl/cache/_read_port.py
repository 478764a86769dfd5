"""Part of the AXI4 reader: one requester's bursts and its landing buffer."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.cache._bursts import Bursts
from rtl.cache._queue import Queue
from rtl.cache.arbiter import SHARE_BITS
from rtl.cache.axi import AxiConfig
from rtl.common.stage import Stage

__all__ = ["ReadPort", "word_shape"]


def word_shape(config: AxiConfig) -> data.StructLayout:
    """A word and whether it is in error."""
    return data.StructLayout({"data": config.data_bits, "error": 1})


class ReadPort(wiring.Component):
    """Offers bursts for which the buffer has room; takes their words whenever they come.

    Words of a bad request go into the buffer when all words that were asked for before have come; their data are those
    of whatever is on the bus.

    Members
    -------
    i_request, o : as in AxiReader
    burst : one that may be asked for, until it is; ``gain``: its beats times ``share``
    beat, word : a word arrives
    under_way : words that are asked for and have not come
    """

    def __init__(self, config: AxiConfig, depth: int, gain_bits: int) -> None:
        self.config, self.depth = config, depth
        super().__init__(
            {
                "i_request": In(stream.Signature(config.request_shape)),
                "o": Out(stream.Signature(word_shape(config))),
                "burst": Out(stream.Signature(config.burst_shape)),
                "share": In(SHARE_BITS),
                "gain": Out(gain_bits),
                "beat": In(1),
                "word": In(word_shape(config)),
                "under_way": Out(bits_for(depth)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.bursts = bursts = Bursts(c)
        m.submodules.stage = stage = Stage(data.StructLayout({"gain": len(self.gain), "burst": c.burst_shape}))
        m.submodules.buffer = buffer = Queue(word_shape(c), depth=self.depth)
        wiring.connect(m, wiring.flipped(self.i_request), bursts.i)
        wiring.connect(m, buffer.o, wiring.flipped(self.o))

        # Room is kept for a burst before it is asked for; the buffer never refuses a word.
        room = Signal(range(self.depth + 1), init=self.depth)
        beats = bursts.o.payload.beats
        plenty, judged = Signal(init=self.depth >= c.max_burst), Signal()
        fits = plenty | judged
        begins = bursts.o.valid & fits & stage.i.ready
        m.d.comb += [
            stage.i.payload.gain.eq(beats * self.share),
            stage.i.payload.burst.eq(bursts.o.payload),
            stage.i.valid.eq(bursts.o.valid & fits),
            bursts.o.ready.eq(fits & stage.i.ready),
        ]
        room_then, left = Signal.like(room), Signal()  # left: a word has
        m.d.comb += room_then.eq(room - Mux(begins, beats, 0) + left)
        m.d.sync += [
            left.eq(self.o.valid & self.o.ready),
            room.eq(room_then),
            plenty.eq(room_then >= c.max_burst),  # for any burst
            judged.eq(bursts.o.valid & ~bursts.o.ready & (beats <= room)),  # for this one, which has waited
        ]

        burst = stage.o.payload.burst
        m.d.comb += self.gain.eq(stage.o.payload.gain)
        asked = self.burst.valid & self.burst.ready
        refused = stage.o.valid & burst.bad & (self.under_way == 0)
        m.d.comb += [
            self.burst.payload.eq(burst),
            self.burst.valid.eq(stage.o.valid & ~burst.bad),
            stage.o.ready.eq(Mux(burst.bad, refused, self.burst.ready)),
            buffer.i.valid.eq(self.beat | refused),
            buffer.i.payload.data.eq(self.word.data),
            buffer.i.payload.error.eq(self.word.error | refused),
        ]
        m.d.sync += self.under_way.eq(self.under_way + Mux(asked, burst.beats, 0) - self.beat)
        return m
