"""SalientPicker: geometries, bad configs, and the start of the simulations."""

import re

import pytest

from cocotb_tests.lib import launch
from rtl.config import DsqConfig
from rtl.dsq.salient import SalientPicker


def run(simulator: str, group_tokens: int, max_salient: int, *, groups: int, real_groups: int = 0) -> None:
    config = DsqConfig(group_tokens=group_tokens, max_salient=max_salient)
    counts = (1, 3, max_salient, group_tokens)
    launch.run(
        SalientPicker(config),
        name="dsq_salient",
        tb="cocotb_tests.dsq.tb_salient",
        parameters={
            "group_tokens": group_tokens,
            "groups": groups,
            "real_groups": real_groups,
            "latency": [(count, SalientPicker.latency(config, count)) for count in counts],
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_matches_golden_in_the_smallest_group(simulator):
    run(simulator, group_tokens=16, max_salient=5, groups=25)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, group_tokens=64, max_salient=16, groups=40, real_groups=27)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(("group_tokens", "max_salient"), [(16, 15), (32, 8), (128, 31)])
def test_matches_golden_in_further_geometries(simulator, group_tokens, max_salient):
    run(simulator, group_tokens, max_salient, groups=150)


def test_picks_13_of_64_within_2500_cycles():
    assert 64 + SalientPicker.latency(DsqConfig(group_tokens=64), 13) <= 2500


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("group_tokens", 48, "group_tokens must be a power of two from 16 to 128, not 48"),
        ("group_tokens", 8, "group_tokens must be a power of two from 16 to 128, not 8"),
        ("max_salient", 64, "max_salient must be from 1 to group_tokens-1=63, not 64"),
        ("max_salient", 0, "max_salient must be from 1 to group_tokens-1=63, not 0"),
    ],
)
def test_rejects_bad_configs(field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**{field: value})
