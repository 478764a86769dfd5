"""MhaEngine: presets, wider and narrower words of the scratchpad, bad configs, and the start of the simulations."""

import re
from dataclasses import replace

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, MhaConfig, preset
from rtl.control._mha_check import StateLines
from rtl.control._mha_engine import MhaEngine


def run(name: str, simulator: str, commands: int, *, row_lanes: int | None = None, tests: str | None = None) -> None:
    config = preset(name)
    row_lanes = row_lanes or config.gemm.row_lanes
    launch.run(
        MhaEngine(replace(config, gemm=replace(config.gemm, row_lanes=row_lanes))),
        name="control_mha_engine",
        tb="cocotb_tests.control.tb_mha_engine",
        parameters={"preset": name, "row_lanes": row_lanes, "commands": commands},
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
def test_attends_in_the_smallest_geometry(simulator):
    run("tiny", simulator, commands=4)


@pytest.mark.nightly
@launch.simulators("icarus")
@pytest.mark.parametrize("row_lanes", [1, 4, 64])
def test_attends_with_other_words_in_the_scratchpad(simulator, row_lanes):
    """Narrower than the core's transfers, equal to them, wider than all rows of a token."""
    run("tiny", simulator, commands=3, row_lanes=row_lanes, tests="attends/stall=random/latency=0")


@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["smollm2", pytest.param("llama2-7b", marks=pytest.mark.nightly)])
def test_attends(simulator, name):
    run(name, simulator, commands=6)


def test_rejects_more_groups_than_a_request_has_words():
    config = AcceleratorConfig(mha=MhaConfig(max_groups=1 << 18))
    message = "mha.max_groups must fit in 65535 words of the bus, not 65536"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        StateLines(config)
