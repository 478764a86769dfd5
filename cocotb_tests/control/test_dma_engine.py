"""DmaEngine: presets, the bus as wide as the scratchpad, wider and narrower."""

from dataclasses import replace

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, GemmConfig, preset
from rtl.control._dma_engine import DmaEngine


def run(config: AcceleratorConfig, simulator: str, commands: int) -> None:
    launch.run(
        DmaEngine(config),
        name="control_dma_engine",
        tb="cocotb_tests.control.tb_dma_engine",
        parameters={"config": config.to_dict(), "window": 1 << 16, "commands": commands},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_moves_rows_in_the_smallest_geometry(simulator):
    run(preset("tiny"), simulator, commands=12)


@launch.simulators("verilator")
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_moves_rows(simulator, lanes):
    """The bus carries four elements."""
    run(replace(preset("smollm2"), gemm=GemmConfig(row_lanes=lanes)), simulator, commands=40)


@pytest.mark.nightly
@launch.simulators("verilator")
def test_moves_rows_of_a_large_model(simulator):
    """With addresses of memory that no command can leave."""
    run(preset("llama2-7b"), simulator, commands=40)
