"""GemmCore: geometries, bad configs, and the start of the simulations."""

import re
from dataclasses import asdict, replace

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, DsqConfig, GemmConfig, preset
from rtl.gemm.core import GemmCore

SMALL = r"matches_golden_(in_edge|for_every|under).*|refused.*|waits.*|meets_latency"
#: (rows, k, columns), how often, least utilization
BACK_TO_BACK = [[[8, 8, 8], 40, 0.82], [[16, 16, 16], 20, 0.82], [[32, 32, 32], 8, 0.82], [[128, 256, 256], 1, 0.99]]
ONE_PAIR = [[[8, 32, 8], 20, 0.82], [[8, 576, 72], 2, 0.9], [[5, 576, 72], 2, 0.56]]


def run(simulator: str, config: AcceleratorConfig, tests: str | None = None, **parameters: object) -> None:
    launch.run(
        GemmCore(config),
        name="gemm_core",
        tb="cocotb_tests.gemm.tb_core",
        parameters={
            **asdict(config),
            "cases": 40,
            "stalled": 12,
            "reset_waits": [10, 60, 150, 400],
            "utilization": [],
            **parameters,
        },
        simulators=simulator,
        tests=tests,
    )


def small(head_dim: int = 16, **gemm: int) -> AcceleratorConfig:
    """Few rows and columns, short rows."""
    sizes = {"max_k": 40, "act_words": 45, "weight_words": 32, **gemm}
    dsq = DsqConfig(head_dim=head_dim, group_tokens=16, max_salient=4, lanes=4, bus_bits=32)
    return AcceleratorConfig(dsq=dsq, gemm=GemmConfig(**sizes))


@launch.simulators()
def test_matches_golden_tiny(simulator):
    run(simulator, preset("tiny"), SMALL, cases=16, stalled=3)


@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        small(rows=3, columns=6, act_bits=9, row_lanes=1),
        small(rows=1, columns=2, act_bits=16, row_lanes=4, weight_words=16),
        small(head_dim=20, rows=4, columns=8, act_bits=8, row_lanes=2, pairs=2, act_words=90),
    ],
    ids=("3x6", "1x2", "4x8"),
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config)


@launch.simulators("verilator")
def test_matches_golden_on_real_projections(simulator):
    """Three layers, four projections, the first columns of each; all columns are nightly."""
    tests = r"matches_golden_on_real.*|keeps_the_array_busy"
    run(simulator, preset("smollm2"), tests, real=[[0, 14, 29], 5, 72], utilization=ONE_PAIR)


@launch.simulators("verilator")
def test_keeps_the_array_busy(simulator):
    """As many pairs finished as the array has in a row: small tiles back to back, and a large product."""
    base = preset("smollm2")
    config = replace(base, gemm=replace(base.gemm, pairs=4, act_words=4096))
    run(simulator, config, "keeps_the_array_busy", utilization=BACK_TO_BACK)


@pytest.mark.nightly
@launch.simulators("verilator")
def test_matches_golden_on_whole_projections(simulator):
    run(simulator, preset("smollm2"), "matches_golden_on_real.*", real=[[0, 14, 29], 5, 0])


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["tiny", "smollm2", "ulx3s", "llama2-7b"])
def test_matches_golden_in_presets(simulator, name):
    run(simulator, preset(name))


def test_rejects_heads_that_beats_do_not_divide():
    message = "gemm.pairs must divide dsq.head_dim/2=10, not 4"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        small(head_dim=20, columns=8, pairs=4)
