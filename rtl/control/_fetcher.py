"""Part of the command processor: reads the commands of all rings, and says which cannot be done."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.control.commands import COMMAND_BYTES, FIXED_QUEUES, HEADER_WORDS, OPCODES, Queue
from rtl.cache._read_port import word_shape
from rtl.cache.axi import AxiConfig
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._layout import Error

__all__ = ["COUNT_BITS", "CommandFetcher", "entry_layout", "place_layout", "queue_count", "word_layout"]

#: of commands since reset
COUNT_BITS = 32
_LINE_BITS = 32
_SIZE_BITS = 5
_COMMAND_BITS = 8 * COMMAND_BYTES
_HEADER_BITS = 32 * HEADER_WORDS
#: commands that are asked for and have not come
_UNDER_WAY = 8


def queue_count(config: AcceleratorConfig) -> int:
    """Queues of the accelerator."""
    return FIXED_QUEUES + config.gemm.cores


def place_layout(config: AcceleratorConfig) -> data.StructLayout:
    """Where a command is kept."""
    return data.StructLayout({"slot": ceil_log2(config.control.queue_depth), "queue": ceil_log2(queue_count(config))})


def word_layout(config: AcceleratorConfig) -> data.StructLayout:
    """Word ``index`` of the command at a place."""
    index_bits = ceil_log2(_COMMAND_BITS // config.dsq.bus_bits)
    return data.StructLayout({"index": index_bits, "place": place_layout(config), "data": config.dsq.bus_bits})


def entry_layout() -> data.StructLayout:
    """What the processor has to know of a command; ``error``: why it cannot be done."""
    wait = data.StructLayout({"semaphore": 8, "enable": 1, "count": 16})
    signal = data.StructLayout({"semaphore": 8, "enable": 1})
    return data.StructLayout(
        {"error": Error, "detail": 8, "waits": data.ArrayLayout(wait, 2), "signal": signal, "tag": 16}
    )


def _header_layout() -> data.FlexibleLayout:
    """The first bits of a command."""
    wait = data.FlexibleLayout(
        32, {"semaphore": data.Field(8, 0), "enable": data.Field(1, 8), "count": data.Field(16, 16)}
    )
    return data.FlexibleLayout(
        _HEADER_BITS,
        {
            "opcode": data.Field(8, 0),
            "tag": data.Field(16, 8),
            "waits": data.Field(data.ArrayLayout(wait, 2), 32),
            "signal": data.Field(wait, 96),
        },
    )


class CommandFetcher(wiring.Component):
    """Reads the next commands of each ring as long as there is room for them.

    Rings take turns. The room of a command is free again when it is done. Behind one that cannot be done no further
    ones are asked for.

    Members
    -------
    enable : reads are asked for
    rings : per queue: ``base`` in lines, ``size`` (log2 of commands), ``head``
    done : per queue: commands that are done
    stopped : per queue: ask for nothing more
    o_read, i_read : requests in words of memory, and their words
    outside : a request lay outside the window
    word, word_en : words of commands
    entry, entry_en : commands that have come completely, with their place
    good : the entry and all before it in its queue have no error
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.queues = queues = queue_count(config)
        self.port: AxiConfig = KvCache.axi_configs(config)[0]
        ring = data.StructLayout({"base": _LINE_BITS, "size": _SIZE_BITS, "head": COUNT_BITS})
        super().__init__(
            {
                "enable": In(1),
                "rings": In(data.ArrayLayout(ring, queues)),
                "done": In(data.ArrayLayout(unsigned(COUNT_BITS), queues)),
                "stopped": In(queues),
                "o_read": Out(stream.Signature(self.port.request_shape)),
                "i_read": In(stream.Signature(word_shape(self.port))),
                "outside": In(1),
                "word": Out(word_layout(config)),
                "word_en": Out(1),
                "entry": Out(data.StructLayout({"place": place_layout(config), "entry": entry_layout()})),
                "entry_en": Out(1),
                "good": Out(1),
            }
        )

    def _requests(self, m: Module, order: SyncFIFOBuffered, faulty: Signal) -> None:
        """A ring after the other: the next command, if it may come."""
        place = place_layout(self.config)
        slot_bits = place["slot"].width
        fetched = [Signal(COUNT_BITS, name=f"fetched_{q}") for q in range(self.queues)]
        wanted = Signal(self.queues)
        for q, ring in enumerate(self.rings):
            room = (fetched[q] - self.done[q])[: slot_bits + 1] < self.config.control.queue_depth
            m.d.sync += wanted[q].eq(self.enable & ~self.stopped[q] & ~faulty[q] & (fetched[q] != ring.head) & room)

        queue, next_queue = Signal(range(self.queues)), Signal(range(self.queues))
        m.d.comb += next_queue.eq(Mux(queue == self.queues - 1, 0, queue + 1))
        base, offset, chosen = Signal(_LINE_BITS), Signal(COUNT_BITS), Signal(place)
        line = Signal(_LINE_BITS + 1)
        shift = ceil_log2(COMMAND_BYTES // self.port.word_bytes)
        beyond = line[self.port.word_addr_bits - shift :].any()
        m.d.comb += [
            line.eq(base + offset),
            order.w_data.eq(Cat(chosen, beyond)),
            self.o_read.payload.count.eq(1 << shift),
        ]
        with m.FSM():
            with m.State("CHOOSE"):
                m.d.sync += queue.eq(next_queue)
                with m.Switch(queue):
                    for q, ring in enumerate(self.rings):
                        with m.Case(q):
                            m.d.sync += [
                                base.eq(ring.base),
                                offset.eq(fetched[q] & ((1 << ring.size) - 1)[:COUNT_BITS]),
                                chosen.queue.eq(q),
                                chosen.slot.eq(fetched[q]),
                            ]
                            with m.If(wanted[q] & order.w_rdy):
                                m.d.sync += fetched[q].eq(fetched[q] + 1)
                                m.next = "ADD"
            with m.State("ADD"):
                m.d.comb += order.w_en.eq(1)
                m.d.sync += [
                    self.o_read.valid.eq(1),
                    self.o_read.payload.address.eq(line << shift),
                    self.o_read.payload.bad.eq(beyond),
                ]
                m.next = "ASK"
            with m.State("ASK"):
                with m.If(self.o_read.ready):
                    m.d.sync += self.o_read.valid.eq(0)
                    m.next = "CHOOSE"

    def _check(self, m: Module, header: data.View, queue: Signal, refused: Signal, outside: Signal) -> None:
        """The entry of a command, from its header."""
        entry, most = self.entry.entry, self.config.control.semaphores
        m.d.comb += [entry.tag.eq(header.tag), entry.error.eq(Error.NONE)]
        numbered = [*zip(entry.waits, header.waits, strict=True), (entry.signal, header.signal)]
        for inner, outer in numbered:
            m.d.comb += [inner.semaphore.eq(outer.semaphore), inner.enable.eq(outer.enable)]
        m.d.comb += [inner.count.eq(outer.count) for inner, outer in numbered[:2]]
        for outer in reversed([header for _, header in numbered]):  # the first one is named
            with m.If(outer.enable & (outer.semaphore >= most)):
                m.d.comb += [entry.error.eq(Error.SEMAPHORE), entry.detail.eq(outer.semaphore)]
        known = Signal()
        with m.Switch(queue):
            for kind in Queue:
                with m.Case(kind):
                    m.d.comb += known.eq(Cat(header.opcode == code for code in OPCODES[kind.name.lower()]).any())
            with m.Default():
                m.d.comb += known.eq(Cat(header.opcode == code for code in OPCODES["gemm"]).any())
        with m.If(~known):
            m.d.comb += [entry.error.eq(Error.OPCODE), entry.detail.eq(header.opcode)]
        with m.If(refused):
            m.d.comb += [entry.error.eq(Mux(outside, Error.ADDRESS, Error.MEMORY)), entry.detail.eq(0)]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        place, bits = place_layout(self.config), self.config.dsq.bus_bits
        m.submodules.order = order = SyncFIFOBuffered(width=place.size + 1, depth=_UNDER_WAY)
        faulty = Signal(self.queues)
        self._requests(m, order, faulty)

        # Words come in the order of the requests.
        word, given = self.word, self.i_read.payload
        last, error = Signal(), Signal()
        beyond = order.r_data[-1]
        m.d.comb += [
            self.i_read.ready.eq(order.r_rdy),
            self.word_en.eq(self.i_read.valid & order.r_rdy),
            word.place.eq(order.r_data),
            word.data.eq(given.data),
            last.eq(word.index == _COMMAND_BITS // bits - 1),
            order.r_en.eq(self.word_en & last),
        ]
        index = Signal.like(word.index)
        m.d.comb += word.index.eq(index)
        header = Signal(_header_layout())
        refused, outside = Signal(), Signal()
        m.d.sync += self.entry_en.eq(order.r_en)
        with m.If(self.word_en):
            m.d.sync += [index.eq(index + 1), error.eq(~last & (error | given.error))]
            for n in range(-(-_HEADER_BITS // bits)):
                with m.If(index == n):
                    m.d.sync += header.as_value()[n * bits : (n + 1) * bits].eq(given.data)
            with m.If(last):
                m.d.sync += [
                    index.eq(0),
                    self.entry.place.eq(word.place),
                    refused.eq(error | given.error),
                    outside.eq(beyond | self.outside),
                ]
        self._check(m, header, self.entry.place.queue, refused, outside)
        bad = self.entry.entry.error != Error.NONE
        m.d.comb += self.good.eq(~bad & ~faulty.bit_select(self.entry.place.queue, 1))
        for q in range(self.queues):
            with m.If(self.entry_en & bad & (self.entry.place.queue == q)):
                m.d.sync += faulty[q].eq(1)
        return m
