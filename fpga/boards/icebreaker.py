"""iCEBreaker with an iCE40UP5K: a DSQ unit, the RowQuantizer at head_dim 64, fed over the serial line."""

from typing import Any

from amaranth.hdl import Elaboratable, Module
from amaranth_boards.icebreaker import ICEBreakerPlatform

from fpga.boards import Board
from fpga.design import pin_out, serial_line
from fpga.dsq_unit import DsqUnit
from rtl.config import preset
from rtl.link.host_link import LinkConfig

__all__ = ["BOARD"]


class _Top(Elaboratable):
    #: cells of these are counted on their own
    COMMANDS = ("setattr -mod -set keep_hierarchy 1 top.unit.link top.unit.quantizer",)

    def __init__(self, board: Board) -> None:
        link = LinkConfig(clock_hz=board.clock_hz, baud=board.baud, max_words=64)
        self.unit = DsqUnit(preset(board.preset).dsq, link)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.unit = self.unit
        serial_line(m, platform.request("uart", dir={"rx": "-", "tx": "-"}), self.unit)
        pin_out(m, platform.request("led_g", 0, dir="-"), "led", self.unit.waiting)
        return m


BOARD = Board(
    name="icebreaker",
    summary="iCEBreaker, iCE40UP5K: the RowQuantizer of preset ulx3s, fed over the serial line",
    preset="ulx3s",
    clock_hz=12_000_000,
    platform=ICEBreakerPlatform,
    top=_Top,
    loader="ice40_generic",
    unit="dsq",
)
