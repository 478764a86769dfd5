"""A board in the simulator: the design that goes on the FPGA, and the model of an SDRAM at its controller's pins."""

import hashlib
from pathlib import Path
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.fpga.dram_board import DramBoard, board_sources
from fpga.dram import Controller, ControllerConfig
from fpga.soc import MODULE, Soc
from rtl.build import block_named, emit
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.link.host_link import LinkConfig
from sim.simulators import ROOT

__all__ = ["SimulatedBoard", "controller_for"]

CLOCK_HZ = 50_000_000


def controller_for(config: AcceleratorConfig) -> Controller:
    """The controller of an SDR SDRAM for that accelerator."""
    return Controller.generate(
        ControllerConfig(
            clock_hz=CLOCK_HZ, data_bits=config.dsq.bus_bits, id_bits=KvCache.axi_configs(config)[0].id_bits
        )
    )


class SimulatedBoard(wiring.Component):
    """Serial line in and out; the rest is inside.

    Members
    -------
    rx, tx, irq : of `Soc`
    clk2x, clear, broken : of `DramBoard`
    """

    def __init__(self, config: AcceleratorConfig, baud: int) -> None:
        self.config, self.controller = config, controller_for(config)
        self._memory = DramBoard(self.controller)
        self._soc = Soc(config, LinkConfig(clock_hz=CLOCK_HZ, baud=baud), self.controller.memory_bytes)
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "irq": Out(1),
                "clk2x": In(1),
                "clear": In(1),
                "broken": Out(16),
            }
        )

    def sources(self) -> list[Path]:
        """Verilog beside this design's."""
        text, _ = emit(block_named("accelerator"), self.config)
        path = ROOT / "build" / "dram" / f"{MODULE}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.v"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return [path, *board_sources(self.controller)]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.soc = soc = self._soc
        m.submodules.memory = memory = self._memory
        for name in ("rx", "clear", "clk2x"):
            inner = soc if name == "rx" else memory
            m.d.comb += getattr(inner, name).eq(getattr(self, name))
        m.d.comb += [self.tx.eq(soc.tx), self.irq.eq(soc.irq), self.broken.eq(memory.broken)]
        for asked, given in ((soc.axi, memory.axi), (soc.dram, memory.host), (soc.controller, memory.ctrl)):
            for path, member, value in asked.signature.flatten(asked):
                other = getattr(given, path[0], None)
                if other is not None:
                    m.d.comb += other.eq(value) if member.flow is Out else value.eq(other)
        return m
