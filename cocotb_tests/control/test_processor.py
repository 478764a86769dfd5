"""CommandProcessor: geometries and the start of its simulations."""

from typing import Any

import pytest

from cocotb_tests.control.rings import geometry
from cocotb_tests.lib import launch
from rtl.control.processor import CommandProcessor

TINY: dict[str, Any] = {}
FEW = {"bus_bits": 256, "cores": 1, "queue_depth": 2, "semaphores": 3, "event_depth": 2}
ODD = {"bus_bits": 64, "cores": 2, "queue_depth": 3, "semaphores": 1}
MOST = {"bus_bits": 128, "cores": 8, "queue_depth": 16, "semaphores": 256, "event_depth": 256}


def run(simulator: str, sizes: dict[str, Any], *, commands: int) -> None:
    launch.run(
        CommandProcessor(geometry(**sizes)),
        name="control_processor",
        tb="cocotb_tests.control.tb_processor",
        parameters={"geometry": sizes, "commands": commands},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("sizes", [TINY, pytest.param(FEW, marks=pytest.mark.nightly)], ids=["tiny", "few"])
def test_runs_rings_in_small_geometries(simulator, sizes):
    run(simulator, sizes, commands=40)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("sizes", [ODD, MOST], ids=["odd", "most"])
def test_runs_rings(simulator, sizes):
    run(simulator, sizes, commands=120)
