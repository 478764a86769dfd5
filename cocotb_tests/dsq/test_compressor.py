"""Compressor: geometries, bad configs and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from golden.settings import default_settings
from rtl.config import DsqConfig
from rtl.dsq.compressor import Compressor


def run(simulator: str, config: DsqConfig, groups: int, real_groups: int = 0) -> None:
    most = config.max_salient
    counts = (1, 2, 3, most * 13 // 16, most)
    launch.run(
        Compressor(config),
        name="dsq_compressor",
        tb="cocotb_tests.dsq.tb_compressor",
        parameters={
            "config": asdict(config),
            "groups": groups,
            "real_groups": real_groups,
            "salient_tokens": sorted({n for n in counts if 1 <= n <= most} | {config.group_tokens}),
        },
        simulators=simulator,
    )


def small(head_dim: int, max_salient: int, lanes: int, bus_bits: int, delta_bits: int = 2) -> DsqConfig:
    return DsqConfig(
        head_dim=head_dim,
        group_tokens=16,
        max_salient=max_salient,
        lanes=lanes,
        bus_bits=bus_bits,
        delta_bits=delta_bits,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config", [small(16, 5, 4, 32), pytest.param(small(48, 3, 16, 128, 4), marks=pytest.mark.nightly)], ids=str
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config, groups=2)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    """With the delta width that is not the default one: the Quantizer's test has that."""
    run(simulator, DsqConfig(delta_bits=6 - default_settings().delta_bits), groups=4, real_groups=27)


@launch.simulators("verilator")
def test_matches_golden_with_wide_bus_and_row_padding(simulator):
    run(
        simulator,
        DsqConfig(head_dim=80, group_tokens=32, max_salient=11, lanes=16, bus_bits=512, delta_bits=4),
        groups=4,
    )


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        DsqConfig(head_dim=16, group_tokens=128, max_salient=127, lanes=16, bus_bits=64),
        DsqConfig(head_dim=64, lanes=64, bus_bits=32, delta_bits=4),
        DsqConfig(head_dim=96, max_salient=20, lanes=32, bus_bits=256),
        DsqConfig(head_dim=128, group_tokens=128, max_salient=32, lanes=4, bus_bits=512),
        DsqConfig(head_dim=128, max_salient=1, lanes=64, bus_bits=64, delta_bits=4),
    ],
    ids=str,
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, groups=10)


def test_compresses_the_default_group_within_5120_cycles():
    assert Compressor.group_cycles(DsqConfig(), 13) <= 64 * 80


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_tokens": 48}, "group_tokens must be a power of two from 16 to 128, not 48"),
        ({"group_tokens": 256}, "group_tokens must be a power of two from 16 to 128, not 256"),
        ({"max_salient": 0}, "max_salient must be from 1 to group_tokens-1=63, not 0"),
        ({"max_salient": 64}, "max_salient must be from 1 to group_tokens-1=63, not 64"),
    ],
)
def test_rejects_bad_configs(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**fields)
