"""A simulated board: what `fpga.selftest --simulate` and tests speak to in place of a real one."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cocotb_tests.fpga.board import CLOCK_HZ, SimulatedBoard
from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig
from sim.simulators import ROOT

__all__ = ["simulated_board"]

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
    folder = ROOT / "build" / f"board-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            board = SimulatedBoard(config, CLOCK_HZ // clocks_per_bit)
            launch.run(
                board,
                name="board",
                tb="cocotb_tests.fpga.tb_board",
                parameters={"folder": str(folder), "clocks_per_bit": clocks_per_bit},
                simulators=simulator,
                sources=board.sources(),
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
