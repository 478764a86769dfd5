"""MassBank: golden against the cache's state, geometries, and the start of the simulations."""

import numpy as np
import pytest

from cocotb_tests.golden.draws import calibration, generator
from cocotb_tests.lib import launch
from golden.hcap.mass_bank import add_masses
from golden.settings import KvoSettings
from golden.state import HeadState
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.hcap.mass_bank import MassBank


def run(simulator: str, max_groups: int, group_tokens: int, *, jobs: int) -> None:
    dsq = DsqConfig(head_dim=16, lanes=4, bus_bits=32, max_salient=1, group_tokens=group_tokens)
    launch.run(
        MassBank(AcceleratorConfig(dsq=dsq, mha=MhaConfig(max_groups=max_groups))),
        name="hcap_mass_bank",
        tb="cocotb_tests.hcap.tb_mass_bank",
        parameters={"max_groups": max_groups, "group_tokens": group_tokens, "jobs": jobs},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("max_groups", [1, 21])
def test_matches_golden_in_small_geometries(simulator, max_groups):
    run(simulator, max_groups, 16, jobs=8)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, 512, 64, jobs=30)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(("max_groups", "group_tokens"), [(64, 128), (300, 16)])
def test_matches_golden_in_further_geometries(simulator, max_groups, group_tokens):
    run(simulator, max_groups, group_tokens, jobs=200)


def test_golden_is_what_the_cache_observes():
    """Masses of compressed groups, and of the tokens in the waiting and the open group."""
    draw = generator("observe")
    n, records, tokens = 16, 3, 21
    settings = KvoSettings(group_tokens=n, salient_tokens=4)
    state = HeadState(settings, calibration(draw, 16))
    state.recent = recent = draw.integers(0, 1000, records + 2)
    state.mass = votes = draw.integers(0, 1000, tokens)
    group_mass, token_mass = draw.integers(0, 1 << 18, records), draw.integers(0, 1 << 18, tokens)
    group = np.arange(tokens + records) >= tokens
    index = np.concatenate([np.arange(tokens), np.arange(records)])
    entries = group, index, np.concatenate([token_mass, group_mass])
    made = add_masses(recent.copy(), votes.copy(), *entries, first=records, group_tokens=n)
    state.observe(group_mass, token_mass)
    np.testing.assert_array_equal(made[0], state.recent)
    np.testing.assert_array_equal(made[1], state.mass)
