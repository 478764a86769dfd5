"""ULX3S with an LFE5U-85F: 32 MB of SDR SDRAM, serial line over USB."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Const, Elaboratable, Instance, Module
from amaranth.lib.cdc import ResetSynchronizer
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from fpga.boards import Board
from fpga.design import MemoryDesign, pin_in, pin_out, serial_line
from fpga.ecp5_pll import add_pll

__all__ = ["BOARD"]

_CLOCK_HZ = 40_000_000


def _add_clocks(m: Module, platform: Any, degrees: int) -> None:
    """``sync``, ``twice`` at twice its rate, ``shifted`` by so many degrees of that one, for the memory."""
    m.domains.sync = sync = ClockDomain()
    m.domains.twice = twice = ClockDomain(reset_less=True)
    m.domains.shifted = shifted = ClockDomain(reset_less=True)
    outputs = ((sync.clk, _CLOCK_HZ, 0), (twice.clk, 2 * _CLOCK_HZ, 0), (shifted.clk, 2 * _CLOCK_HZ, degrees))
    locked = add_pll(m, pin_in(m, platform.request("clk25", dir="-"), "clk"), 25_000_000, outputs)
    m.submodules.reset = ResetSynchronizer(~locked, domain="sync")


class _Top(Elaboratable):
    def __init__(self, board: Board) -> None:
        self.design = MemoryDesign(board)
        self.COMMANDS = self.design.commands()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        _add_clocks(m, platform, self.design.controller.memory_phase)
        for name, text in self.design.files("ecp5").items():
            platform.add_file(name, text)
        memory = platform.request("sdram", dir=dict.fromkeys(_PINS, "-"))
        pins: dict[str, Any] = {"clk2x": ClockSignal("twice")}
        pins |= {f"dram_{port}": getattr(memory, pin).io for pin, port in _PINS.items() if port}
        self.design.connect(m, pins)
        # The memory's clock leaves through a DDR cell, behind the registers of its other pins.
        m.submodules.memory_clock = Instance(
            "ODDRX1F", i_D0=Const(1), i_D1=Const(0), i_SCLK=ClockSignal("shifted"), i_RST=Const(0), o_Q=memory.clk.io
        )
        serial_line(m, platform.request("uart", dir=dict.fromkeys(("rx", "tx", "rts", "dtr"), "-")), self.design.soc)
        pin_out(m, platform.request("led", 0, dir="-"), "led", self.design.soc.irq)
        return m


#: what the board's pins are called at the controller
_PINS = {
    "clk": None,
    "clk_en": "cke",
    "cs": "cs_n",
    "we": "we_n",
    "ras": "ras_n",
    "cas": "cas_n",
    "ba": "ba",
    "a": "a",
    "dq": "dq",
    "dqm": "dm",
}

BOARD = Board(
    name="ulx3s-85f",
    summary="ULX3S, LFE5U-85F, 32 MB SDRAM: the accelerator, preset ulx3s",
    preset="ulx3s",
    clock_hz=_CLOCK_HZ,
    platform=ULX3S_85F_Platform,
    top=_Top,
    memory="sdr-32mb",
    loader="ulx3s",
)
