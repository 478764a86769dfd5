"""Part of the AXI4 writer: one requester's bursts, its words and its answers."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.cache._bursts import Bursts
from rtl.cache._queue import Queue
from rtl.cache.axi import AxiConfig
from rtl.common.stage import Stage

__all__ = ["WritePort", "word_shape"]


def word_shape(config: AxiConfig) -> data.StructLayout:
    """A word and which of its bytes are written."""
    return data.StructLayout({"data": config.data_bits, "strb": config.word_bytes})


class WritePort(wiring.Component):
    """Offers bursts whose words are all there; answers a request when its last burst was answered.

    Words of a bad request leave the buffer when all bursts that were asked for before have been answered.

    Members
    -------
    i_request, i, o : as in AxiWriter
    burst : one that may be asked for, until it is; its words follow at ``word``, one for each ``taken``
    answered, last, error : a burst was answered, the ``last`` of its request
    """

    def __init__(self, config: AxiConfig, depth: int) -> None:
        self.config, self.depth = config, depth
        super().__init__(
            {
                "i_request": In(stream.Signature(config.request_shape)),
                "i": In(stream.Signature(word_shape(config))),
                "o": Out(stream.Signature(1)),
                "burst": Out(stream.Signature(config.burst_shape)),
                "word": Out(word_shape(config)),
                "taken": In(1),
                "answered": In(1),
                "last": In(1),
                "error": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.bursts = bursts = Bursts(c)
        m.submodules.stage = stage = Stage(c.burst_shape)
        m.submodules.buffer = buffer = Queue(word_shape(c), depth=self.depth)
        m.submodules.answers = answers = Queue(1, depth=c.outstanding)
        wiring.connect(m, wiring.flipped(self.i_request), bursts.i)
        wiring.connect(m, answers.o, wiring.flipped(self.o))

        # A burst goes on when its words have come and its answer has a place.
        stored = Signal(buffer.address_bits + 2)  # words that belong to no burst that has gone on
        owed = Signal(range(c.outstanding + 1))  # answers that are due or wait
        split = bursts.o.payload
        plenty, judged = Signal(), Signal()
        may = (plenty | judged) & (owed != c.outstanding)
        begins = bursts.o.valid & may & stage.i.ready
        m.d.comb += [
            stage.i.payload.eq(split),
            stage.i.valid.eq(bursts.o.valid & may),
            bursts.o.ready.eq(may & stage.i.ready),
            buffer.i.payload.eq(self.i.payload),
            buffer.i.valid.eq(self.i.valid),
            self.i.ready.eq(buffer.i.ready),
        ]
        stored_then = Signal.like(stored)
        m.d.comb += stored_then.eq(stored + (self.i.valid & self.i.ready) - Mux(begins, split.beats, 0))
        m.d.sync += [
            stored.eq(stored_then),
            plenty.eq(stored_then >= c.max_burst),  # for any burst
            judged.eq(bursts.o.valid & ~bursts.o.ready & (split.beats <= stored)),  # for this one, which has waited
            owed.eq(owed + (begins & split.last) - (self.o.valid & self.o.ready)),
        ]

        burst = stage.o.payload
        under_way = Signal(range(c.outstanding + 1))
        asked = self.burst.valid & self.burst.ready
        refused = stage.o.valid & burst.bad & (under_way == 0)
        m.d.comb += [
            self.burst.payload.eq(burst),
            self.burst.valid.eq(stage.o.valid & ~burst.bad),
            stage.o.ready.eq(Mux(burst.bad, refused, self.burst.ready)),
            self.word.eq(buffer.o.payload),
            buffer.o.ready.eq(self.taken | refused),
        ]
        m.d.sync += under_way.eq(under_way + asked - self.answered)

        failed = Signal()  # an earlier burst of the request did
        m.d.comb += [
            answers.i.payload.eq(refused | failed | self.error),
            answers.i.valid.eq((self.answered & self.last) | (refused & burst.last)),
        ]
        with m.If(self.answered):
            m.d.sync += failed.eq(~self.last & (failed | self.error))
        return m
