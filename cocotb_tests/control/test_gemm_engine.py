"""GemmEngine with core and scratchpad: geometries and the start of the simulations."""

from dataclasses import asdict, replace

import pytest

from cocotb_tests.control.gemm_system import GemmSystem
from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, CacheConfig, ControlConfig, DsqConfig, GemmConfig, preset

#: what is fast enough on Icarus Verilog
FEW = r"results.*|meets_latency|works.*|matches_golden_under_stalls/stall=random.*"


def run(simulator: str, config: AcceleratorConfig, tests: str | None = None, **parameters: object) -> None:
    launch.run(
        GemmSystem(config),
        name="control_gemm_engine",
        tb="cocotb_tests.control.tb_gemm_engine",
        parameters={**asdict(config), "batches": 2, "reset_waits": [15, 60, 200, 400], **parameters},
        simulators=simulator,
        tests=tests,
    )


def small(*, head_dim: int = 16, bus_bits: int = 32, **gemm: int) -> AcceleratorConfig:
    """Few rows and columns, short rows."""
    sizes = {"cores": 2, "rows": 2, "columns": 4, "max_k": 40, "act_words": 160, "weight_words": 32, **gemm}
    return AcceleratorConfig(
        dsq=DsqConfig(head_dim=head_dim, group_tokens=16, max_salient=4, lanes=4, bus_bits=bus_bits),
        cache=CacheConfig(addr_bits=26),
        gemm=GemmConfig(**sizes),
        control=ControlConfig(scratch_words=8192, scratch_rows=512),
    )


@launch.simulators()
def test_matches_golden(simulator):
    if simulator == "icarus":
        run(simulator, small(row_lanes=2), FEW, batches=1, reset_waits=[100])
    else:
        run(simulator, small(row_lanes=2))


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        small(head_dim=32, bus_bits=64, rows=3, columns=2, row_lanes=4),
        small(head_dim=64, bus_bits=128, rows=4, columns=8, row_lanes=8, pairs=2, cores=4),
        small(row_lanes=16, act_bits=9),
    ],
    ids=("3x2", "4x8", "2x4"),
)
def test_matches_golden_in_other_geometries(simulator, config):
    run(simulator, config)


def default() -> AcceleratorConfig:
    base = preset("smollm2")
    return replace(base, control=ControlConfig(scratch_words=8192, scratch_rows=256))


@launch.simulators("verilator")
def test_matches_golden_on_real_projections(simulator):
    """Three layers, four projections, the first columns of each."""
    run(simulator, default(), r"matches_golden_on_real.*", real=[[0, 14, 29], 5, 72])


@launch.simulators("verilator")
def test_keeps_the_array_busy(simulator):
    """Rows, k, columns; cycles of a command behind another one, in those that its steps take."""
    run(simulator, default(), r"keeps_the_array_busy", steady=[[8, 576, 240, 1.002], [16, 576, 64, 1.01]])
