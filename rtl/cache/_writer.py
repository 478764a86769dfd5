"""Part of the cache: writes records and INT8 tokens; a record counts when all of it is in memory."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from golden.cache.page_table import PageOp, PageStatus
from rtl.cache._translator import span_layout, words_layout
from rtl.cache.page_table import PageTable
from rtl.config import AcceleratorConfig

__all__ = ["Writer", "done_layout", "write_layout"]

#: writes that have been begun and not been answered
DEPTH = 8


def write_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What is written; ``commit``: it is a whole record, which queries read from now on."""
    return data.StructLayout({**dict(words_layout(config).members), "commit": 1})


def done_layout() -> data.StructLayout:
    """How a write ended. ``error``: it has no words, none of that page exist, or memory refused one; nothing is
    committed then. Else ``status`` is that of the commit."""
    return data.StructLayout({"error": 1, "status": PageStatus})


class Writer(wiring.Component):
    """Sequences writes: translation, the words, the answer of memory, the commit.

    Words pass by outside, from who writes to the AXI master, which takes as many as the request says.

    Members
    -------
    i : stream of writes
    o_words, i_span : of Translator
    o_span, i_error : of AxiWriter: a request, and whether one failed
    o_command, i_reply : of PageTable
    o : stream, one a write, in order
    """

    def __init__(self, config: AcceleratorConfig, pages: PageTable) -> None:
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(write_layout(config))),
                "o_words": Out(stream.Signature(words_layout(config))),
                "i_span": In(stream.Signature(span_layout(config))),
                "o_span": Out(stream.Signature(span_layout(config))),
                "i_error": In(stream.Signature(1)),
                "o_command": Out(stream.Signature(pages.command_shape)),
                "i_reply": In(stream.Signature(pages.reply_shape)),
                "o": Out(stream.Signature(done_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        write = self.i.payload
        fields = {name: write[name].shape() for name in ("commit", "sequence", "stream")}
        kept = data.StructLayout({"empty": 1, **fields})
        empty = write.count == 0
        m.submodules.begun = begun = SyncFIFOBuffered(width=kept.size, depth=DEPTH)
        m.d.comb += [
            self.o_words.valid.eq(self.i.valid & begun.w_rdy & ~empty),
            *(self.o_words.payload[name].eq(write[name]) for name in words_layout(self.config).members),
            self.i.ready.eq((self.o_words.ready | empty) & begun.w_rdy),
            begun.w_en.eq(self.i.valid & self.i.ready),
            begun.w_data.eq(Cat(empty, write.commit, write.sequence, write.stream)),
            self.o_span.valid.eq(self.i_span.valid),
            self.o_span.payload.eq(self.i_span.payload),
            self.i_span.ready.eq(self.o_span.ready),
        ]
        oldest, out = data.View(kept, begun.r_data), self.o
        m.d.comb += [
            self.o_command.payload.op.eq(PageOp.COMMIT),
            self.o_command.payload.sequence.eq(oldest.sequence),
            self.o_command.payload.stream.eq(oldest.stream),
        ]
        answered = Mux(oldest.empty, begun.r_rdy, self.i_error.valid)
        failed = oldest.empty | self.i_error.payload
        with m.If(out.ready):
            m.d.sync += out.valid.eq(0)
        with m.FSM():
            with m.State("WRITE"):
                with m.If(answered & (~out.valid | out.ready)):
                    with m.If(oldest.commit & ~failed):
                        m.next = "COMMIT"
                    with m.Else():
                        m.d.comb += [self.i_error.ready.eq(~oldest.empty), begun.r_en.eq(1)]
                        m.d.sync += [out.valid.eq(1), out.payload.error.eq(failed)]
                        m.d.sync += out.payload.status.eq(PageStatus.OK)
            with m.State("COMMIT"):
                m.d.comb += self.o_command.valid.eq(1)
                with m.If(self.o_command.ready):
                    m.next = "REPLY"
            with m.State("REPLY"):
                m.d.comb += self.i_reply.ready.eq(1)
                with m.If(self.i_reply.valid):
                    m.d.comb += [self.i_error.ready.eq(1), begun.r_en.eq(1)]
                    m.d.sync += [out.valid.eq(1), out.payload.error.eq(0)]
                    m.d.sync += out.payload.status.eq(self.i_reply.payload.status)
                    m.next = "WRITE"
        return m
