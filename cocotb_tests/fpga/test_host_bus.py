"""The bus of a board: every space, its ends, errors, whoever is slow."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from cocotb_tests.fpga.tb_host_bus import DRAM_BYTES, WORDS
from cocotb_tests.lib import launch
from fpga.host_bus import HostBus, WishboneSignature
from rtl.config import preset
from rtl.control.registers import Registers


class BusAndRegisters(wiring.Component):
    """A HostBus with the registers of an accelerator; Wishbone goes outside."""

    def __init__(self):
        self._bus = HostBus(WORDS, DRAM_BYTES)
        members = self._bus.signature.members
        super().__init__(
            {
                "i_access": members["i_access"],
                "o_result": members["o_result"],
                "dram": Out(WishboneSignature()),
                "controller": Out(WishboneSignature()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.bus = bus = self._bus
        m.submodules.registers = registers = Registers(preset("tiny"))
        connect(m, bus.axil, registers.axil)
        connect(m, flipped(self.i_access), bus.i_access)
        connect(m, bus.o_result, flipped(self.o_result))
        connect(m, bus.dram, flipped(self.dram))
        connect(m, bus.controller, flipped(self.controller))
        return m


@launch.simulators()
def test_accesses_go_where_they_belong(simulator):
    for name in ("none", "random", "heavy"):
        launch.run(
            BusAndRegisters(),
            name="fpga_host_bus",
            tb="cocotb_tests.fpga.tb_host_bus",
            parameters={"stall": name},
            simulators=simulator,
        )
