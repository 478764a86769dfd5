"""Part of Scratchpad: one element of all words."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.memory import NO_COLLISIONS

__all__ = ["ScratchLane"]


class ScratchLane(wiring.Component):
    """A memory; what is read is there in the next cycle, and means nothing if it was written in the same one."""

    def __init__(self, bits: int, depth: int) -> None:
        self.bits, self.depth = bits, depth
        address = range(depth)
        members = {"w_en": In(1), "w_addr": In(address), "w_data": In(bits), "r_addr": In(address), "r_data": Out(bits)}
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # Only commands whose rows overlap, an error of the program, read a word while it is written.
        m.submodules.memory = memory = Memory(shape=self.bits, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.w_en),
            write.addr.eq(self.w_addr),
            write.data.eq(self.w_data),
            read.addr.eq(self.r_addr),
            self.r_data.eq(read.data),
        ]
        return m
