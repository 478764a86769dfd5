"""Cosines and sines of a command's rows."""

from itertools import product
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.gemm.core import ROTARY_TILES
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.gemm._command import ROW_BITS

__all__ = ["RotaryTable", "angle_layout"]


def angle_layout() -> data.StructLayout:
    """Cosine and sine with 14 fraction bits."""
    return data.StructLayout({"cos": signed(16), "sin": signed(16)})


class RotaryTable(wiring.Component):
    """Two tables: one is read while the other one is filled.

    Latency: a table is available in the cycle after its last pair.
    Throughput: a pair a cycle.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{rows}; taken with the last pair
    i : stream of `angle_layout`, ``head_dim / 2`` pairs for each row
    available : the older table is there
    release : strobe, it is not needed any more
    r_en, r_row, r_beat, r_data : the ``pairs`` pairs from ``r_beat * pairs`` on of a row, in the cycle after
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.pairs = pairs = config.gemm.pairs
        self.beats = config.dsq.head_dim // (2 * pairs)
        self.rows = ROTARY_TILES * config.gemm.rows
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout({"rows": ROW_BITS}))),
                "i": In(stream.Signature(angle_layout())),
                "available": Out(1),
                "release": In(1),
                "r_en": In(1),
                "r_row": In(range(self.rows)),
                "r_beat": In(range(self.beats)),
                "r_data": Out(
                    data.StructLayout({name: data.ArrayLayout(signed(16), pairs) for name in ("cos", "sin")})
                ),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        beat_bits, row_bits = (self.beats - 1).bit_length(), (self.rows - 1).bit_length()
        lane_bits = exact_log2(self.pairs)
        pair, row = Signal(range(self.beats * self.pairs)), Signal(range(self.rows + 1))
        fill, reads, tables = Signal(), Signal(), Signal(2)
        row_ends = pair == self.beats * self.pairs - 1
        last = row_ends & (row + 1 == self.i_command.payload.rows)
        taken = Signal()
        m.d.comb += [
            self.i.ready.eq(self.i_command.valid & ~tables[1]),
            taken.eq(self.i.valid & self.i.ready),
            self.i_command.ready.eq(taken & last),
            self.available.eq(tables != 0),
        ]
        m.d.sync += [tables.eq(tables + (taken & last) - self.release), reads.eq(reads ^ self.release)]
        with m.If(taken):
            m.d.sync += [pair.eq(Mux(row_ends, 0, pair + 1)), row.eq(row + row_ends)]
            with m.If(last):
                m.d.sync += [row.eq(0), fill.eq(~fill)]
        for lane, name in product(range(self.pairs), ("cos", "sin")):
            # A table that is available is not written.
            bank = Memory(shape=signed(16), depth=2 << (row_bits + beat_bits), init=[], attrs=NO_COLLISIONS)
            m.submodules[f"{name}_{lane}"] = bank
            write, read = bank.write_port(), bank.read_port()
            m.d.comb += [
                write.en.eq(taken & (pair[:lane_bits] == lane)),
                write.addr.eq(Cat(pair[lane_bits:][:beat_bits], row[:row_bits], fill)),
                write.data.eq(self.i.payload[name]),
                read.en.eq(self.r_en),
                read.addr.eq(Cat(self.r_beat[:beat_bits], self.r_row[:row_bits], reads)),
                self.r_data[name][lane].eq(read.data),
            ]
        return m
