"""Part of the control: requests of several users at one read port."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.control.commands import LINE_BYTES
from rtl.cache._read_port import word_shape
from rtl.cache.axi import AxiConfig
from rtl.control._window import LINE_BITS

__all__ = ["ReadOrder", "lines_layout", "word_shift"]

#: requests whose words have not all been given
_DEPTH = 8


def lines_layout() -> data.StructLayout:
    """``count`` words from ``line`` on."""
    return data.StructLayout({"line": LINE_BITS, "count": 16})


def word_shift(config: AxiConfig) -> int:
    """From lines to words of the bus."""
    return ceil_log2(LINE_BYTES // config.word_bytes)


class ReadOrder(wiring.Component):
    """Lets several users read memory through one port, and gives each its words.

    Words come in the order of the requests, so each user takes its words without waiting for those of another one.

    Throughput: a word a cycle.
    Combinational paths: ``i`` to ``o_read``, the first user goes first; ``i_read`` to ``o``, and back.

    Parameters
    ----------
    config : geometry of the port
    users : at least two

    Members
    -------
    i : array of streams of `lines_layout`
    o_read, i_read : requests in words of memory, and their words
    o : array of streams of struct{data, error}
    """

    def __init__(self, config: AxiConfig, users: int) -> None:
        self.config, self.users = config, users
        word = word_shape(config)
        super().__init__(
            {
                "i": In(stream.Signature(lines_layout())).array(users),
                "o_read": Out(stream.Signature(config.request_shape)),
                "i_read": In(stream.Signature(word)),
                "o": Out(stream.Signature(word)).array(users),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        port, count_bits = self.o_read, len(self.o_read.payload.count)
        entry = data.StructLayout({"user": bits_for(self.users - 1), "count": count_bits})
        m.submodules.order = order = SyncFIFO(width=entry.size, depth=_DEPTH)
        # A request that is offered stays, whoever comes meanwhile.
        held, holds, user = Signal(entry["user"].shape), Signal(), Signal(entry["user"].shape)
        for n in reversed(range(self.users)):
            with m.If(self.i[n].valid):
                m.d.comb += user.eq(n)
        with m.If(holds):
            m.d.comb += user.eq(held)
        m.d.sync += [held.eq(user), holds.eq(port.valid & ~port.ready)]
        with m.Switch(user):
            for n, asked in enumerate(self.i):
                with m.Case(n):
                    m.d.comb += [
                        port.valid.eq(asked.valid & order.w_rdy),
                        port.payload.address.eq(asked.payload.line << word_shift(self.config)),
                        port.payload.count.eq(asked.payload.count),
                        asked.ready.eq(port.ready & order.w_rdy),
                    ]
        m.d.comb += [order.w_en.eq(port.valid & port.ready), order.w_data.eq(Cat(user, port.payload.count))]

        oldest, given = data.View(entry, order.r_data), Signal(count_bits)
        last, moved = given == oldest.count - 1, self.i_read.valid & self.i_read.ready
        for n, out in enumerate(self.o):
            mine = order.r_rdy & (oldest.user == n)
            m.d.comb += [out.valid.eq(self.i_read.valid & mine), out.payload.eq(self.i_read.payload)]
            with m.If(mine):
                m.d.comb += self.i_read.ready.eq(out.ready)
        m.d.comb += order.r_en.eq(moved & last)
        with m.If(moved):
            m.d.sync += given.eq(given + 1)
            with m.If(last):
                m.d.sync += given.eq(0)
        return m
