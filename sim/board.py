"""Simulated boards: what `fpga.selftest --simulate` and tests speak to in place of a real one."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from amaranth.lib import wiring

from cocotb_tests.fpga.board import CLOCK_HZ, SimulatedBoard
from cocotb_tests.lib import launch
from fpga.dsq_unit import DsqUnit
from rtl.config import AcceleratorConfig, DsqConfig
from rtl.link.host_link import LinkConfig
from sim.simulators import ROOT

__all__ = ["simulated_board", "simulated_unit"]

_SECONDS = 3600


@contextmanager
def simulated_board(
    config: AcceleratorConfig, *, clocks_per_bit: int = 4, simulator: str = "verilator"
) -> Iterator[str]:
    """Build and start a board with the accelerator of that config; gives what `fpga.client.Client` takes as port.

    Building takes minutes, once for each config. At the end the model of the SDRAM tells whether a rule of its timing
    was broken.

    Raises
    ------
    AssertionError, SimulationError : the simulation failed
    """

    def made() -> tuple[wiring.Component, list[Path]]:
        board = SimulatedBoard(config, CLOCK_HZ // clocks_per_bit)
        return board, board.sources()

    with _served(made, clocks_per_bit, simulator) as port:
        yield port


@contextmanager
def simulated_unit(config: DsqConfig, *, clocks_per_bit: int = 4, simulator: str = "verilator") -> Iterator[str]:
    """As `simulated_board`, with a DSQ unit; building takes seconds."""
    link = LinkConfig(clock_hz=CLOCK_HZ, baud=CLOCK_HZ // clocks_per_bit)
    with _served(lambda: (DsqUnit(config, link), []), clocks_per_bit, simulator) as port:
        yield port


@contextmanager
def _served(
    made: Callable[[], tuple[wiring.Component, list[Path]]], clocks_per_bit: int, simulator: str
) -> Iterator[str]:
    """The port of a design with a serial line, which is ``made`` with Verilog beside it."""
    folder = ROOT / "build" / f"board-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            design, sources = made()
            launch.run(
                design,
                name="board",
                tb="cocotb_tests.fpga.tb_board",
                parameters={"folder": str(folder), "clocks_per_bit": clocks_per_bit},
                simulators=simulator,
                sources=sources,
            )
        except BaseException as error:
            failures.append(error)

    simulation = threading.Thread(target=run)
    simulation.start()
    try:
        began = time.monotonic()
        while not (folder / "url").exists():
            if failures:
                raise failures[0]
            if time.monotonic() - began > _SECONDS:
                raise TimeoutError(f"the simulated board has not started within {_SECONDS} s")
            time.sleep(0.1)
        yield (folder / "url").read_text()
    finally:
        (folder / "done").touch()
        simulation.join()
        shutil.rmtree(folder, ignore_errors=True)
    if failures:
        raise failures[0]
