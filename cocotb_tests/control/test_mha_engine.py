"""MhaEngine: presets, with wider and narrower words on both sides."""

import pytest

from cocotb_tests.lib import launch
from rtl.config import preset
from rtl.control._mha_engine import MhaEngine


def run(name: str, simulator: str, commands: int) -> None:
    launch.run(
        MhaEngine(preset(name)),
        name="control_mha_engine",
        tb="cocotb_tests.control.tb_mha_engine",
        parameters={"preset": name, "commands": commands},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_attends_in_the_smallest_geometry(simulator):
    run("tiny", simulator, commands=6)


@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["smollm2", "llama2-7b"])
def test_attends(simulator, name):
    run(name, simulator, commands=10)
