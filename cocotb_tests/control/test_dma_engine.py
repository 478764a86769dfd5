"""DmaEngine: presets, and others with wider and narrower words on both sides."""

import pytest

from cocotb_tests.lib import launch
from rtl.config import preset
from rtl.control._dma_engine import DmaEngine


def run(name: str, simulator: str, commands: int) -> None:
    launch.run(
        DmaEngine(preset(name)),
        name="control_dma_engine",
        tb="cocotb_tests.control.tb_dma_engine",
        parameters={"preset": name, "window": 1 << 16, "commands": commands},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_moves_rows_in_the_smallest_geometry(simulator):
    run("tiny", simulator, commands=12)


@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["smollm2", "llama2-7b"])
def test_moves_rows(simulator, name):
    run(name, simulator, commands=40)
