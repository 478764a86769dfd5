"""DsqEngine: presets and others; bus, lanes of the quantizer and scratchpad wider and narrower than each other."""

from dataclasses import replace

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.control._dsq_engine import DsqEngine


def run(
    config: AcceleratorConfig,
    simulator: str,
    *,
    appends: int = 12,
    groups: int = 2,
    resets: tuple[int, ...] = (),
    real: int = 0,
    tests: str | None = None,
) -> None:
    parameters = {"config": config.to_dict(), "appends": appends, "groups": groups, "resets": resets}
    launch.run(
        DsqEngine(config),
        name="control_dsq_engine",
        tb="cocotb_tests.control.tb_dsq_engine",
        parameters={**parameters, "real_groups": real},
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
def test_matches_golden_in_the_smallest_geometry(simulator):
    run(preset("tiny"), simulator, appends=9, groups=2, resets=(20, 75, 131, 333, 801))


#: of geometries that are not a preset's
SOME = "appends_overlap|match_golden/.*stall=(none|bursty)/latency=40|history_moves_on/.*random"


def geometry(row_lanes: int, **dsq: int) -> AcceleratorConfig:
    """A small one with an odd number of groups."""
    tiny = preset("tiny")
    return replace(
        tiny,
        dsq=DsqConfig(**dsq),
        mha=MhaConfig(q_heads=1, tile_groups=4, max_groups=37),
        gemm=replace(tiny.gemm, row_lanes=row_lanes),
    )


@pytest.mark.nightly
@launch.simulators("icarus")
def test_matches_golden_with_wide_beats(simulator):
    """Beats of four bus words, words of the scratchpad of two beats, rows that do not fill them."""
    config = geometry(32, head_dim=48, group_tokens=16, max_salient=3, lanes=16, bus_bits=32)
    run(config, simulator, groups=1, tests=SOME)


@pytest.mark.nightly
@launch.simulators("icarus")
def test_matches_golden_with_narrow_beats(simulator):
    """Words of the bus of two beats, the last one of a row not full, words of the scratchpad of one element."""
    config = geometry(1, head_dim=36, group_tokens=32, max_salient=5, delta_bits=4, lanes=4, bus_bits=64)
    run(config, simulator, groups=1, tests=SOME)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(preset("smollm2"), simulator, appends=30, groups=2, resets=(20, 75, 333, 1801, 4001), real=6)
