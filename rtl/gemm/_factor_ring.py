"""Factors of rows on their way to the epilogue."""

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.gemm.core import ROW_TILES
from rtl.common.memory import NO_COLLISIONS
from rtl.config import GemmConfig

__all__ = ["FactorRing", "factor_layout"]


def factor_layout() -> data.StructLayout:
    """What a row's products are multiplied by."""
    return data.StructLayout({"factor": 16, "exponent": signed(7)})


class FactorRing(wiring.Component):
    """Keeps the factors of the rows of two commands, in the order of the rows since reset.

    Latency: a factor is available in the cycle after its transfer.
    Throughput: a factor a cycle.
    Combinational paths: from ``r_index`` to ``available``.

    Members
    -------
    i : stream of `factor_layout`
    release : strobe, the oldest factor is not needed any more
    r_index : number of a row since reset, modulo twice the size of the ring; none that is released, none beyond the
        first one that is not there
    available : its factor is there
    r_en, r_data : the factor, in the cycle after
    """

    def __init__(self, config: GemmConfig) -> None:
        self.index_bits = ceil_log2(2 * ROW_TILES * config.rows) + 1
        super().__init__(
            {
                "i": In(stream.Signature(factor_layout())),
                "release": In(1),
                "r_index": In(self.index_bits),
                "available": Out(1),
                "r_en": In(1),
                "r_data": Out(factor_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth = 1 << (self.index_bits - 1)
        # What counts of what is read lies from `oldest` up to before `written`.
        m.submodules.memory = factors = Memory(shape=factor_layout(), depth=depth, init=[], attrs=NO_COLLISIONS)
        write, read = factors.write_port(), factors.read_port()
        written, oldest = Signal(self.index_bits), Signal(self.index_bits)
        m.d.comb += [
            self.i.ready.eq((written - oldest)[: self.index_bits] != depth),
            write.en.eq(self.i.valid & self.i.ready),
            write.addr.eq(written),
            write.data.eq(self.i.payload),
            self.available.eq(self.r_index != written),
            read.en.eq(self.r_en),
            read.addr.eq(self.r_index),
            self.r_data.eq(read.data),
        ]
        m.d.sync += [written.eq(written + write.en), oldest.eq(oldest + self.release)]
        return m
