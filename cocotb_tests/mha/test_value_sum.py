"""ValueSum: geometries, bad configs, and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.config import PRESETS, AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.mha._value_format import ValueFormat
from rtl.mha.value_sum import ValueSum


def geometry(head_dim: int, lanes: int, bus_bits: int, q_heads: int, delta_cycles: int = 1) -> AcceleratorConfig:
    return AcceleratorConfig(
        dsq=DsqConfig(head_dim=head_dim, group_tokens=16, max_salient=4, lanes=lanes, bus_bits=bus_bits),
        mha=MhaConfig(q_heads=q_heads, max_groups=64, delta_cycles=delta_cycles),
    )


def run(simulator: str, config: AcceleratorConfig, *, rows: int, tests: str | None = None) -> None:
    launch.run(
        ValueSum(config),
        name="mha_value_sum",
        tb="cocotb_tests.mha.tb_value_sum",
        parameters={
            "dsq": asdict(config.dsq),
            "mha": asdict(config.mha),
            "rows": rows,
            "inverse_latency": ValueSum.inverse_latency(config),
            "row_latency": ValueSum.row_latency(config),
        },
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(preset("tiny"), id="tiny"),
        pytest.param(geometry(20, 4, 32, 1), id="head-dim-20"),
        pytest.param(geometry(20, 4, 32, 2, delta_cycles=4), id="few-delta-lanes"),
    ],
)
def test_matches_golden_in_small_geometries(simulator, config):
    """The smallest, and rows whose last words are not full."""
    run(simulator, config, rows=2)


@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["smollm2", "ulx3s"])
def test_matches_golden(simulator, name):
    """Sums in lookup tables, and in block RAM."""
    run(simulator, preset(name), rows=8)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(preset(name), id=name) for name in PRESETS if name not in ("smollm2", "ulx3s")),
        pytest.param(geometry(16, 4, 32, 8), id="8-heads"),
        pytest.param(geometry(48, 16, 64, 1), id="head-dim-48"),
        pytest.param(geometry(80, 16, 128, 4), id="head-dim-80"),
        pytest.param(geometry(80, 16, 64, 2, delta_cycles=2), id="half-of-the-delta-lanes"),
        pytest.param(geometry(80, 16, 64, 2, delta_cycles=4), id="quarter-of-the-delta-lanes"),
    ],
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, rows=20)


@pytest.mark.parametrize("name", PRESETS)
def test_accumulators_have_at_most_60_bits(name):
    """And hold the largest sums of as many tokens as the config allows."""
    config = preset(name)
    sizes = ValueFormat(config)
    tokens = (config.mha.max_groups + 2) * config.dsq.group_tokens
    assert sizes.exact_bits <= 60 and sizes.delta_bits <= 60
    assert tokens * 128 * 65359 * (15 << 5) < 1 << sizes.exact_bits - 1
    assert tokens * 3 * ((1 << 32) - 1) < 1 << sizes.delta_bits
    assert tokens * 65359 < 1 << sizes.total_bits


def test_widths_stop_growing_with_the_most_groups():
    """Golden's `inverse` knows totals below 2**42."""
    sizes = ValueFormat(AcceleratorConfig(mha=MhaConfig(max_groups=1 << 20)))
    assert (sizes.total_bits, sizes.exact_bits, sizes.delta_bits) == (42, 59, 60)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("q_heads", 0, "q_heads must be from 1 to 8, not 0"),
        ("q_heads", 9, "q_heads must be from 1 to 8, not 9"),
        ("max_groups", 0, "max_groups must be from 1 to 1048576, not 0"),
        ("delta_cycles", 0, "delta_cycles must be 1, 2 or 4, not 0"),
        ("delta_cycles", 3, "delta_cycles must be 1, 2 or 4, not 3"),
        ("delta_cycles", 8, "delta_cycles must be 1, 2 or 4, not 8"),
        ("max_groups", (1 << 20) + 1, "max_groups must be from 1 to 1048576, not 1048577"),
    ],
)
def test_rejects_bad_configs(field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MhaConfig(**{field: value})


def test_rejects_words_of_more_than_a_row():
    with pytest.raises(ValueError, match=r"^dsq\.bus_bits must be at most 2\*head_dim=32, not 64$"):
        geometry(16, 4, 64, 1)
