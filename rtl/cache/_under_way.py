"""Part of the AXI4 reader and writer: the bursts that are under way."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.cache.axi import AxiConfig
from rtl.common.memory import NO_COLLISIONS, ram_style

__all__ = ["UnderWay"]


class UnderWay(wiring.Component):
    """Keeps what was asked for until it is answered; answers come in order for a port, in any order among ports.

    Members
    -------
    full : ``config.outstanding`` are reserved; nothing may be
    reserve : a burst will begin, or does
    begin, begin_port, entry : a burst of a port begins, which was reserved
    port, oldest : the entry of the oldest burst of this port, in the same cycle
    end : that burst ends
    """

    def __init__(self, config: AxiConfig, shape: Any) -> None:
        self.config, self.shape = config, shape
        super().__init__(
            {
                "full": Out(1),
                "reserve": In(1),
                "begin": In(1),
                "begin_port": In(config.id_bits),
                "entry": In(shape),
                "port": In(config.id_bits),
                "oldest": Out(shape),
                "end": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        slot_bits = max(1, ceil_log2(c.outstanding))
        depth = 1 << slot_bits + c.id_bits
        m.submodules.entries = entries = Memory(
            shape=self.shape, depth=depth, init=[], attrs=NO_COLLISIONS | ram_style(depth)
        )
        write, read = entries.write_port(), entries.read_port(domain="comb")
        heads = Array(Signal(slot_bits, name=f"head_{port}") for port in range(c.ports))
        tails = Array(Signal(slot_bits, name=f"tail_{port}") for port in range(c.ports))
        count = Signal(range(c.outstanding + 1))
        m.d.comb += [
            self.full.eq(count == c.outstanding),
            write.addr.eq(Cat(tails[self.begin_port], self.begin_port)),
            write.data.eq(self.entry),
            write.en.eq(self.begin),
            read.addr.eq(Cat(heads[self.port], self.port)),
            self.oldest.eq(read.data),
        ]
        m.d.sync += count.eq(count + self.reserve - self.end)
        with m.If(self.begin):
            m.d.sync += tails[self.begin_port].eq(tails[self.begin_port] + 1)
        with m.If(self.end):
            m.d.sync += heads[self.port].eq(heads[self.port] + 1)
        return m
