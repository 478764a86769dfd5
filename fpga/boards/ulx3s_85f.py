"""ULX3S with an LFE5U-85F: 32 MB of SDR SDRAM, serial line over USB."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Const, Elaboratable, Instance, Module, Signal
from amaranth.lib.cdc import ResetSynchronizer
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from fpga.boards import Board
from fpga.design import MemoryDesign, pin_in, pin_out, serial_line

__all__ = ["BOARD"]


class _Pll(Elaboratable):
    """From 25 MHz: ``sync`` at 25 MHz, ``twice`` at 50 MHz, ``shifted`` half a cycle of it later, for the memory."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        clock, locked = pin_in(m, platform.request("clk25", dir="-"), "clk"), Signal()
        m.domains.sync = sync = ClockDomain()
        m.domains.twice = twice = ClockDomain(reset_less=True)
        m.domains.shifted = shifted = ClockDomain(reset_less=True)
        # The oscillator runs at 600 MHz; phases count its cycles.
        m.submodules.pll = Instance(
            "EHXPLLL",
            a_FREQUENCY_PIN_CLKI="25",
            a_FREQUENCY_PIN_CLKOP="25",
            a_FREQUENCY_PIN_CLKOS="50",
            a_FREQUENCY_PIN_CLKOS2="50",
            a_ICP_CURRENT="12",
            a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            p_CLKI_DIV=1,
            p_CLKFB_DIV=1,
            p_FEEDBK_PATH="CLKOP",
            p_OUTDIVIDER_MUXA="DIVA",
            p_OUTDIVIDER_MUXB="DIVB",
            p_OUTDIVIDER_MUXC="DIVC",
            p_PLLRST_ENA="DISABLED",
            p_INTFB_WAKE="DISABLED",
            p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED",
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_DIV=24,
            p_CLKOP_CPHASE=23,
            p_CLKOP_FPHASE=0,
            p_CLKOS_ENABLE="ENABLED",
            p_CLKOS_DIV=12,
            p_CLKOS_CPHASE=11,
            p_CLKOS_FPHASE=0,
            p_CLKOS2_ENABLE="ENABLED",
            p_CLKOS2_DIV=12,
            p_CLKOS2_CPHASE=17,
            p_CLKOS2_FPHASE=0,
            i_CLKI=clock,
            i_CLKFB=sync.clk,
            i_RST=Const(0),
            i_STDBY=Const(0),
            i_PHASESEL0=Const(0),
            i_PHASESEL1=Const(0),
            i_PHASEDIR=Const(1),
            i_PHASESTEP=Const(1),
            i_PHASELOADREG=Const(1),
            i_PLLWAKESYNC=Const(0),
            i_ENCLKOP=Const(0),
            o_CLKOP=sync.clk,
            o_CLKOS=twice.clk,
            o_CLKOS2=shifted.clk,
            o_LOCK=locked,
        )
        m.submodules.reset = ResetSynchronizer(~locked, domain="sync")
        return m


class _Top(Elaboratable):
    def __init__(self, board: Board) -> None:
        self.design = MemoryDesign(board.preset, memory="sdr-32mb", clock_hz=board.clock_hz, baud=board.baud)
        self.COMMANDS = self.design.commands()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.pll = _Pll()
        for name, text in self.design.files("ecp5").items():
            platform.add_file(name, text)
        memory = platform.request("sdram", dir=dict.fromkeys(_PINS, "-"))
        pins: dict[str, Any] = {"clk2x": ClockSignal("twice")}
        pins |= {f"dram_{port}": getattr(memory, pin).io for pin, port in _PINS.items() if port}
        self.design.connect(m, pins)
        # The memory's clock leaves through a DDR cell, half a cycle behind the registers of its other pins.
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
    clock_hz=25_000_000,
    platform=ULX3S_85F_Platform,
    top=_Top,
    loader="ulx3s",
)
