"""MassNormalizer: geometries, bad configs, and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.config import PRESETS, AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.mha.mass import MassNormalizer


def geometry(q_heads: int, max_groups: int) -> AcceleratorConfig:
    return AcceleratorConfig(
        dsq=DsqConfig(head_dim=48, group_tokens=16, max_salient=4, lanes=16, bus_bits=64),
        mha=MhaConfig(q_heads=q_heads, max_groups=max_groups),
    )


def run(simulator: str, config: AcceleratorConfig, *, rows: int) -> None:
    component = MassNormalizer(config)
    launch.run(
        component,
        name="mha_mass",
        tb="cocotb_tests.mha.tb_mass",
        parameters={
            "dsq": asdict(config.dsq),
            "mha": asdict(config.mha),
            "rows": rows,
            "latency": MassNormalizer.latency,
            "entries": component.entries,
            "total_bits": component.total_bits,
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config",
    [pytest.param(preset("tiny"), id="tiny"), pytest.param(geometry(1, 32), id="full-memory")],
)
def test_matches_golden_in_small_geometries(simulator, config):
    """The smallest; one head and as many entries as a memory has."""
    run(simulator, config, rows=12)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, preset("smollm2"), rows=20)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(preset(name), id=name) for name in PRESETS if name != "smollm2"),
        pytest.param(geometry(8, 1), id="8-heads"),
        pytest.param(geometry(3, 5), id="37-entries"),
        pytest.param(geometry(4, 4000), id="4000-groups"),
    ],
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, rows=40)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("q_heads", 9, "q_heads must be from 1 to 8, not 9"),
        ("max_groups", 0, "max_groups must be from 1 to 1048576, not 0"),
    ],
)
def test_rejects_bad_configs(field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MhaConfig(**{field: value})
