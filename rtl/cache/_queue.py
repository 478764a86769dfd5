"""Part of the AXI4 reader and writer: words that wait in memory."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.memory import NO_COLLISIONS, ram_style

__all__ = ["Queue"]


class Queue(wiring.Component):
    """Words leave in the order in which they came; at least ``depth`` fit.

    Latency: 2 cycles. Throughput: a word a cycle. ``ready`` and ``valid`` depend on registers alone.

    No word is read and written at once: nothing is read when it is empty, nothing is written when it is full.
    """

    def __init__(self, shape: Any, *, depth: int) -> None:
        self.address_bits = max(1, ceil_log2(depth))
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self.address_bits
        attributes = NO_COLLISIONS | ram_style(1 << bits)
        m.submodules.words = words = Memory(shape=self.i.payload.shape(), depth=1 << bits, init=[], attrs=attributes)
        write, read = words.write_port(), words.read_port()
        produce, consume = Signal(bits + 1), Signal(bits + 1)
        full = (produce ^ consume) == 1 << bits
        m.d.comb += [
            self.i.ready.eq(~full),
            write.addr.eq(produce),
            write.data.eq(self.i.payload),
            write.en.eq(self.i.valid & ~full),
            read.addr.eq(consume),
            read.en.eq((produce != consume) & (~self.o.valid | self.o.ready)),
            self.o.payload.eq(read.data),
        ]
        m.d.sync += [produce.eq(produce + write.en), consume.eq(consume + read.en)]
        m.d.sync += self.o.valid.eq(read.en | (self.o.valid & ~self.o.ready))
        return m
