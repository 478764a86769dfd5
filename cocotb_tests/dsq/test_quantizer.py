"""Quantizer: geometries, bad configs, the promised throughput and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from golden.settings import default_settings
from rtl.config import DsqConfig
from rtl.dsq.quantizer import Quantizer


def run(simulator: str, config: DsqConfig, groups: int, real_groups: int = 0) -> None:
    most = config.max_salient
    counts = (1, most * 13 // 16, most)
    launch.run(
        Quantizer(config),
        name="dsq_quantizer",
        tb="cocotb_tests.dsq.tb_quantizer",
        parameters={
            "config": asdict(config),
            "groups": groups,
            "real_groups": real_groups,
            "salient_tokens": sorted({n for n in counts if 1 <= n <= most} | {config.group_tokens}),
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_matches_golden_in_the_smallest_geometry(simulator):
    run(simulator, DsqConfig(head_dim=16, group_tokens=16, max_salient=5, lanes=4, bus_bits=32), groups=2)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, DsqConfig(delta_bits=default_settings().delta_bits), groups=3, real_groups=27)


@launch.simulators("verilator")
def test_matches_golden_with_head_dim_that_is_no_power_of_two(simulator):
    run(simulator, DsqConfig(head_dim=48, group_tokens=32, max_salient=11, lanes=8, bus_bits=64), groups=3)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        DsqConfig(head_dim=96, max_salient=20, lanes=32, bus_bits=256),
        DsqConfig(head_dim=80, group_tokens=128, max_salient=32, lanes=16, bus_bits=512),
        DsqConfig(head_dim=128, lanes=64, bus_bits=32, delta_bits=4),
    ],
    ids=str,
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, groups=6)


@pytest.mark.parametrize("delta_bits", [2, 4])
def test_quantizes_the_default_group_within_5120_cycles(delta_bits):
    assert Quantizer.group_cycles(DsqConfig(delta_bits=delta_bits), 13) <= 64 * 80


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 72}, "head_dim must be a multiple of lanes=16, not 72"),
        ({"group_tokens": 8}, "group_tokens must be a power of two from 16 to 128, not 8"),
        ({"max_salient": 64}, "max_salient must be from 1 to group_tokens-1=63, not 64"),
        ({"lanes": 3}, "lanes must be a power of two from 4 to 64, not 3"),
    ],
)
def test_rejects_bad_configs(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**fields)
