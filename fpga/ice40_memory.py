"""Block RAM of iCE40 FPGAs for memories whose reads are combinational."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Fragment, MemoryInstance, Module
from amaranth.lib.memory import Memory

__all__ = ["with_block_memories"]


class _BlockMemories:
    """Amaranth asks a platform for memories; this one has nothing else.

    The FPGA has neither distributed RAM nor block RAM with combinational reads, so such memories would be flip-flops.
    Reading at the falling edge gives the same: what was written at the rising edge before is there, what is read holds
    at the next one. The address must be there at the falling edge, so it must not depend on what another such memory
    gives in the same cycle.
    """

    def get_memory(self, memory: Memory) -> Module:
        m = Module()
        m.domains.falling = ClockDomain(clk_edge="neg", reset_less=True, local=True)
        m.d.comb += ClockSignal("falling").eq(ClockSignal())
        m.submodules.instance = instance = MemoryInstance(data=memory.data, attrs=memory.attrs)
        writes = {
            port: instance.write_port(domain=port.domain, addr=port.addr, data=port.data, en=port.en)
            for port in memory.write_ports
        }
        for port in memory.read_ports:
            instance.read_port(
                domain="falling" if port.domain == "comb" else port.domain,
                data=port.data,
                addr=port.addr,
                en=port.en,
                transparent_for=tuple(writes[write] for write in port.transparent_for),
            )
        return m


def with_block_memories(design: Elaboratable) -> Any:
    """The design with its combinational reads at the falling edge; a submodule for another one."""
    return Fragment.get(design, _BlockMemories())
