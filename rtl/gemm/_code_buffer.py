"""Activation codes of row tiles: a ring of words, a bank for each row of the array."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.gemm._command import ROW_BITS, words_shape

__all__ = ["CodeBuffer"]


class CodeBuffer(wiring.Component):
    """Writes rows tile by tile, the n-th row of a tile to bank n; read by word, all banks at once.

    A tile takes ``words`` words of the ring, one behind the other's. There is room for two commands of ``act_words``; a
    tile waits until its words are free.

    Latency: a tile counts as loaded in the cycle after its last word; 1 cycle from ``r_addr`` to ``r_data``.
    Throughput: a word of a row a cycle.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{rows, words}; taken with the last word of the last row
    i : stream of struct{codes, last}: rows of ``words`` words
    loaded : strobe, a tile is there
    release, release_words : strobe, the ``release_words`` words of the oldest tile are free
    r_en, r_addr, r_data : the word at an address of every bank
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config, c = config, config.gemm
        self.depth = 2 * -(-c.act_words // c.row_lanes)
        words = words_shape(config)
        self.word_shape = data.ArrayLayout(signed(c.act_bits), c.row_lanes)
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout({"rows": ROW_BITS, "words": words}))),
                "i": In(stream.Signature(data.StructLayout({"codes": self.word_shape, "last": 1}))),
                "loaded": Out(1),
                "release": In(1),
                "release_words": In(words),
                "r_en": In(1),
                "r_addr": In(range(self.depth)),
                "r_data": Out(data.ArrayLayout(self.word_shape, c.rows)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows, command = self.config.gemm.rows, self.i_command.payload
        tile, address, following = (Signal(range(self.depth), name=name) for name in ("tile", "address", "following"))
        begun, row, rows_done = Signal(), Signal(range(rows)), Signal(ROW_BITS)
        free = Signal(bits_for(self.depth), init=self.depth)
        last_row = rows_done + 1 == command.rows
        taken, reserve = Signal(), Signal()
        # Room, found a cycle before: for any tile, or for one that has waited.
        free_then = Signal.like(free)
        plenty, judged = Signal(init=1), Signal()
        most = -(-self.config.gemm.max_k // self.config.gemm.row_lanes)
        m.d.sync += [
            plenty.eq(free_then >= most),
            judged.eq(self.i_command.valid & (free >= command.words) & ~reserve & ~self.i_command.ready),
        ]
        m.d.comb += [
            self.i.ready.eq(self.i_command.valid & (begun | plenty | judged)),
            taken.eq(self.i.valid & self.i.ready),
            reserve.eq(taken & ~begun),
            following.eq(Mux(address == self.depth - 1, 0, address + 1)),
        ]
        m.d.comb += free_then.eq(
            free + Mux(self.release, self.release_words, 0) - Mux(reserve, command.words, 0)
        )
        m.d.sync += [free.eq(free_then), self.loaded.eq(0)]
        with m.If(taken):
            m.d.sync += [begun.eq(1), address.eq(following)]
            with m.If(self.i.payload.last):
                m.d.sync += rows_done.eq(rows_done + 1)
                with m.If(last_row | (row == rows - 1)):
                    m.d.sync += [begun.eq(0), row.eq(0), tile.eq(following), self.loaded.eq(1)]
                with m.Else():
                    m.d.sync += [row.eq(row + 1), address.eq(tile)]
                with m.If(last_row):
                    m.d.comb += self.i_command.ready.eq(1)
                    m.d.sync += rows_done.eq(0)
        for n in range(rows):
            # Tiles that are read are loaded and not released.
            m.submodules[f"bank_{n}"] = bank = Memory(
                shape=self.word_shape, depth=self.depth, init=[], attrs=NO_COLLISIONS
            )
            write, read = bank.write_port(), bank.read_port()
            m.d.comb += [
                write.en.eq(taken & (row == n)),
                write.addr.eq(address),
                write.data.eq(self.i.payload.codes),
                read.en.eq(self.r_en),
                read.addr.eq(self.r_addr),
                self.r_data[n].eq(read.data),
            ]
        return m
