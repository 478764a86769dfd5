"""Part of the cache: words of a group of a cache to words of memory."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from rtl.cache.axi import AxiConfig
from rtl.config import AcceleratorConfig
from rtl.mha._requests import GROUP_BITS, times

__all__ = ["Translator", "address_bits", "span_layout", "words_layout"]

SEQUENCE_BITS = 8
STREAM_BITS = 16
#: translated requests of each requester under way or waiting: more than the cycles that a translation takes
DEPTH = 16


def address_bits(config: AcceleratorConfig) -> int:
    """Bits of the address of a bus word."""
    return config.cache.addr_bits - ceil_log2(config.dsq.bus_bits // 8)


def words_layout(config: AcceleratorConfig) -> data.StructLayout:
    """``count`` words from ``word`` on of a group's record, or of its block if ``dense``, of a stream of a sequence."""
    bits = bits_for(max(config.memory_map.stride(False), config.memory_map.stride(True)))
    return data.StructLayout(
        {
            "sequence": SEQUENCE_BITS,
            "stream": STREAM_BITS,
            "dense": 1,
            "group": GROUP_BITS,
            "word": bits,
            "count": bits,
        }
    )


def span_layout(config: AcceleratorConfig) -> data.StructLayout:
    """``count`` words from ``address`` on; ``bad``: from nowhere, an error is to be given for each."""
    c = config.cache
    return AxiConfig(data_bits=config.dsq.bus_bits, addr_bits=c.addr_bits, max_burst=1).request_shape


class Translator(wiring.Component):
    """Looks up the pages of requests, several requesters in turn, the first one first.

    Latency: that of the page table and four cycles. A request without a page, or with words behind the end of a page,
    is ``bad``; so is one that does not come from ``writer`` if nobody holds the sequence.

    Members
    -------
    i : streams of struct{sequence, stream, dense, group, word, count}, one a requester
    o : streams of struct{address, count, bad}, in the order of each requester's requests
    o_lookup, i_page : of PageTable
    busy : per requester: a request is being translated, or waits at ``o``
    record_base, block_base : where the pools begin, in words
    """

    def __init__(self, config: AcceleratorConfig, requesters: int, *, writer: int) -> None:
        self.config, self.requesters, self.writer = config, requesters, writer
        words = words_layout(config)
        lookup = {name: words[name].shape for name in ("sequence", "dense", "group")}
        page = bits_for(max(config.cache.record_pages, config.cache.block_pages) - 1)
        super().__init__(
            {
                "i": In(stream.Signature(words)).array(requesters),
                "o": Out(stream.Signature(span_layout(config))).array(requesters),
                "o_lookup": Out(stream.Signature(data.StructLayout(lookup))),
                "i_page": In(stream.Signature(data.StructLayout({"page": page, "valid": 1, "held": 1}))),
                "busy": Out(requesters),
                "record_base": In(address_bits(config)),
                "block_base": In(address_bits(config)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, layout = self.config, self.config.memory_map
        words = words_layout(config)
        kept = data.StructLayout({"requester": bits_for(self.requesters), "words": words})
        m.submodules.tags = tags = SyncFIFOBuffered(width=kept.size, depth=8)
        queues = [SyncFIFOBuffered(width=span_layout(config).size, depth=DEPTH) for _ in self.i]
        m.submodules += queues

        # Choose: a requester with room in its queue for one more than are under way.
        chosen, asking = Signal(range(max(2, self.requesters))), Signal()
        payload = Array(port.payload for port in self.i)[chosen]
        go = Signal()
        free = tags.w_rdy & self.o_lookup.ready
        m.d.comb += go.eq(asking & free)
        before: Value = Const(0)
        for n in range(self.requesters):
            room = Signal(range(DEPTH + 1), init=DEPTH, name=f"room_{n}")
            asks, given = self.i[n].valid & (room != 0), self.o[n].valid & self.o[n].ready
            taken = asks & ~before & free
            m.d.sync += room.eq(room - taken + given)
            m.d.comb += [self.i[n].ready.eq(taken), self.busy[n].eq(room != DEPTH)]
            with m.If(asks & ~before):
                m.d.comb += [chosen.eq(n), asking.eq(1)]
            before = before | asks
        m.d.comb += [
            self.o_lookup.valid.eq(asking & tags.w_rdy),
            *(self.o_lookup.payload[name].eq(payload[name]) for name in ("sequence", "dense", "group")),
            tags.w_en.eq(go),
            tags.w_data.eq(Cat(chosen, Signal(kept.size - words.size - len(chosen)), payload)),
        ]

        # Compute: the page's number among those of all streams, times the stride, plus base and word.
        tag = data.View(kept, tags.r_data)
        m.d.comb += [self.i_page.ready.eq(tags.r_rdy), tags.r_en.eq(self.i_page.valid & tags.r_rdy)]
        numbers = max(config.cache.streams * layout.pages(dense) for dense in (False, True))
        valid, bad = Signal(3), Signal(3)
        number = Signal(range(numbers))
        page_of_stream = [times(tag.words.stream, layout.pages(dense)) for dense in (False, True)]
        begin = Signal(address_bits(config))
        page_found = self.i_page.payload
        nowhere = ~page_found.valid | (~page_found.held & (tag.requester != self.writer))
        spans = [Signal(kept, name=f"span_{n}") for n in range(3)]
        strides = [layout.stride(dense) for dense in (False, True)]
        limit = Mux(tag.words.dense, *reversed(strides))
        address = Signal(address_bits(config))
        m.d.sync += [
            valid.eq(Cat(tags.r_en, valid)),
            bad.eq(Cat(nowhere | (tag.words.word + tag.words.count > limit), bad)),
            number.eq(Mux(tag.words.dense, *reversed(page_of_stream)) + self.i_page.payload.page),
            spans[0].eq(tag),
            begin.eq(Mux(spans[0].words.dense, *(times(number, stride) for stride in reversed(strides)))),
            spans[1].eq(spans[0]),
            address.eq(begin + Mux(spans[1].words.dense, self.block_base, self.record_base) + spans[1].words.word),
            spans[2].eq(spans[1]),
        ]
        for n, (queue, out) in enumerate(zip(queues, self.o, strict=True)):
            span = data.View(span_layout(config), queue.w_data)
            m.d.comb += [
                queue.w_en.eq(valid[2] & (spans[2].requester == n)),
                span.address.eq(address),
                span.count.eq(spans[2].words.count),
                span.bad.eq(bad[2]),
                out.valid.eq(queue.r_rdy),
                out.payload.eq(queue.r_data),
                queue.r_en.eq(out.ready),
            ]
        return m
