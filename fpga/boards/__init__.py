"""FPGA boards: a file each, which says what is on the board and how its pins meet the design."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from amaranth.hdl import Elaboratable

from golden.errors import UserError

__all__ = ["Board", "board_named", "board_names"]


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board and the design that is built for it; each file of this package has one, called ``BOARD``.

    Parameters
    ----------
    name : of the board and its FPGA, as on the command line
    summary : in a line
    preset : of the accelerator, or of the unit, that goes on it
    clock_hz : of the design, after the PLL
    baud : of the host link
    platform : makes the Amaranth platform, which names device, package, speed grade and pins
    top : makes the design with its pins; its ``COMMANDS``, if it has any, are yosys' before synthesis
    loader : how openFPGALoader calls the board
    memory : its DRAM, one of `fpga.dram.MEMORIES`, if it has any
    unit : what is on it: ``accelerator``, or ``dsq``, a DSQ unit
    """

    name: str
    summary: str
    preset: str
    clock_hz: int
    baud: int = 3_000_000
    platform: Callable[[], Any]
    top: Callable[["Board"], Elaboratable]
    loader: str
    memory: str | None = None
    unit: str = "accelerator"


def board_names() -> list[str]:
    """Names of all boards."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[a-z]*.py"))


def board_named(name: str) -> Board:
    """The board called ``name``; raises `UserError` when there is none."""
    if name not in board_names():
        raise UserError(f"board must be one of {', '.join(board_names())}, not '{name}'")
    board: Board = import_module(f"{__name__}.{name.replace('-', '_')}").BOARD
    return board
