"""Parameters of column tiles on their way to the epilogue."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.config import GemmConfig
from rtl.gemm._command import SIZE_BITS

__all__ = ["ColumnBuffer", "column_layout"]

#: column tiles that are kept, a power of two
SLOTS = 4


def column_layout() -> data.StructLayout:
    """What a column is multiplied by, and what is added then."""
    return data.StructLayout({"scale": 16, "shift": signed(7), "bias": signed(32)})


class ColumnBuffer(wiring.Component):
    """Takes the parameters of column after column, keeps those of the oldest tile until they are released.

    Latency: a tile is available in the cycle after its last column.
    Throughput: a column a cycle.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{columns}; taken with the last column
    i : stream of `column_layout`
    available : the oldest tile is there; its columns are read a beat at a time
    release : strobe, it is not needed any more
    r_en, r_beat, r_data : the columns of a beat, in the cycle after
    """

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout({"columns": SIZE_BITS}))),
                "i": In(stream.Signature(column_layout())),
                "available": Out(1),
                "release": In(1),
                "r_en": In(1),
                "r_beat": In(range(config.beats)),
                "r_data": Out(data.ArrayLayout(column_layout(), 2 * config.pairs)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        beat_bits, lane_bits = (c.beats - 1).bit_length(), exact_log2(2 * c.pairs)
        count, place = Signal(SIZE_BITS), Signal(range(c.columns))
        fill, read_slot, tiles = Signal(range(SLOTS)), Signal(range(SLOTS)), Signal(range(SLOTS + 1))
        last = count + 1 == self.i_command.payload.columns
        taken, done = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(self.i_command.valid & (tiles != SLOTS)),
            taken.eq(self.i.valid & self.i.ready),
            done.eq(taken & (last | (place == c.columns - 1))),
            self.i_command.ready.eq(taken & last),
            self.available.eq(tiles != 0),
        ]
        m.d.sync += tiles.eq(tiles + done - self.release)
        with m.If(taken):
            m.d.sync += [count.eq(count + 1), place.eq(place + 1)]
        with m.If(done):
            m.d.sync += [place.eq(0), fill.eq(fill + 1)]
        with m.If(taken & last):
            m.d.sync += count.eq(0)
        with m.If(self.release):
            m.d.sync += read_slot.eq(read_slot + 1)
        for lane in range(2 * c.pairs):
            bank = Memory(shape=column_layout(), depth=SLOTS << beat_bits, init=[])
            m.submodules[f"lane_{lane}"] = bank
            write, read = bank.write_port(), bank.read_port()
            m.d.comb += [
                write.en.eq(taken & (place[:lane_bits] == lane)),
                write.addr.eq(Cat(place[lane_bits:][:beat_bits], fill)),
                write.data.eq(self.i.payload),
                read.en.eq(self.r_en),
                read.addr.eq(Cat(self.r_beat[:beat_bits], read_slot)),
                self.r_data[lane].eq(read.data),
            ]
        return m
