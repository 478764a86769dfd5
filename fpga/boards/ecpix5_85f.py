"""ECPIX-5 with an LFE5UM5G-85F: 512 MB of DDR3, serial line over USB. No board has run this design."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Const, Elaboratable, Instance, Module, ResetSignal, Signal
from amaranth.lib.cdc import ResetSynchronizer
from amaranth_boards.ecpix5 import ECPIX585Platform

from fpga.boards import Board
from fpga.design import MemoryDesign, pin_in, serial_line
from fpga.ecp5_pll import add_pll

__all__ = ["BOARD"]

_CLOCK_HZ = 50_000_000  # the least that the memory's controller works with

#: what the board's pins are called at the controller
_PINS = {
    "clk": "clk_p",
    "clk_en": "cke",
    "we": "we_n",
    "ras": "ras_n",
    "cas": "cas_n",
    "a": "a",
    "ba": "ba",
    "dqs": "dqs_p",
    "dq": "dq",
    "dm": "dm",
    "odt": "odt",
}


def _add_clocks(m: Module, platform: Any, *, stop: Signal, reset: Signal) -> None:
    """``init`` at 25 MHz; ``twice`` for the memory; ``sync`` at half its rate. ``stop``, ``reset``: of the PHY."""
    fast = Signal()
    m.domains.sync = sync = ClockDomain()
    m.domains.init = init = ClockDomain()
    m.domains.twice = twice = ClockDomain(reset_less=True)
    outputs = ((init.clk, 25_000_000, 0), (fast, 2 * _CLOCK_HZ, 0))
    locked = add_pll(m, pin_in(m, platform.request("clk100", dir="-"), "clk"), 100_000_000, outputs)
    m.submodules.gate = Instance("ECLKSYNCB", i_ECLKI=fast, i_STOP=stop, o_ECLKO=twice.clk)
    m.submodules.half = Instance(
        "CLKDIVF", p_DIV="2.0", i_ALIGNWD=Const(0), i_CLKI=twice.clk, i_RST=reset, o_CDIVX=sync.clk
    )
    platform.add_clock_constraint(sync.clk, _CLOCK_HZ)
    m.submodules.init_reset = ResetSynchronizer(~locked, domain="init")
    m.submodules.sync_reset = ResetSynchronizer(~locked | reset, domain="sync")


class _Top(Elaboratable):
    def __init__(self, board: Board) -> None:
        self.design = MemoryDesign(board)
        self.COMMANDS = self.design.commands()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        stop, reset = Signal(), Signal()
        _add_clocks(m, platform, stop=stop, reset=reset)
        for name, text in self.design.files("ecp5").items():
            platform.add_file(name, text)
        memory = platform.request("ddr3", dir=dict.fromkeys(_PINS, "-"))
        pins: dict[str, Any] = {
            "clk2x": ClockSignal("twice"),
            "clk_init": ClockSignal("init"),
            "rst_init": ResetSignal("init"),
            "stop": stop,
            "reset": reset,
        }
        for pin, port in _PINS.items():
            found = getattr(memory, pin)
            pins[f"dram_{port}"] = found.p if port.endswith("_p") else found.io
        self.design.connect(m, pins)
        serial_line(m, platform.request("uart", dir=dict.fromkeys(("rx", "tx"), "-")), self.design.soc)
        return m


BOARD = Board(
    name="ecpix5-85f",
    summary="ECPIX-5, LFE5UM5G-85F, 512 MB DDR3: the accelerator, preset ulx3s",
    preset="ulx3s",
    clock_hz=_CLOCK_HZ,
    platform=ECPIX585Platform,
    top=_Top,
    memory="ddr3-512mb",
    loader="ecpix5",
)
