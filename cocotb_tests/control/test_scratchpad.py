"""Scratchpad: geometries and the start of the simulations."""

from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, ControlConfig, GemmConfig
from rtl.control.scratchpad import Scratchpad


def run(simulator: str, *, cores: int, lanes: int, words: int, rows: int, cases: int = 60) -> None:
    config = AcceleratorConfig(
        gemm=GemmConfig(cores=cores, row_lanes=lanes),
        control=ControlConfig(scratch_words=words, scratch_rows=rows),
    )
    launch.run(
        Scratchpad(config),
        name="control_scratchpad",
        tb="cocotb_tests.control.tb_scratchpad",
        parameters={"gemm": asdict(config.gemm), "control": asdict(config.control), "cases": cases},
        simulators=simulator,
    )


@launch.simulators()
def test_keeps_words_and_magnitudes(simulator):
    run(simulator, cores=2, lanes=2, words=64, rows=8)


@launch.simulators("verilator")
@pytest.mark.parametrize(
    "geometry",
    [
        {"cores": 1, "lanes": 1, "words": 17, "rows": 3},
        {"cores": 8, "lanes": 4, "words": 100, "rows": 33},
        {"cores": 4, "lanes": 8, "words": 256, "rows": 64},
    ],
    ids=("1x1", "8x4", "4x8"),
)
def test_keeps_words_and_magnitudes_in_other_geometries(simulator, geometry):
    run(simulator, **geometry)
