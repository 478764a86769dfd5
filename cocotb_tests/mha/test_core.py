"""MhaCore: geometries, bad configs, and the start of the simulations."""

import re
from dataclasses import asdict, replace

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.mha.core import MhaCore

SMALL = r"matches_golden_(on_corner|under|in_dense).*"


def run(simulator: str, config: AcceleratorConfig, tests: str | None = None, **parameters: object) -> None:
    launch.run(
        MhaCore(config),
        name="mha_core",
        tb="cocotb_tests.mha.tb_core",
        parameters={
            **asdict(config),
            "reset_waits": [20, 200, 700, 1500],
            "throughput_groups": 20,
            "throughput": 0.5,
            **parameters,
        },
        simulators=simulator,
        tests=tests,
    )


def odd(q_heads: int, delta_bits: int) -> AcceleratorConfig:
    """Rows of a part of a word: 48 channels on a 64-bit bus take one and a half words of two bits a channel.

    A word of V deltas takes two cycles.
    """
    return AcceleratorConfig(
        dsq=DsqConfig(
            head_dim=48, group_tokens=32, max_salient=7, delta_bits=delta_bits, lanes=16, bus_bits=64
        ),
        mha=MhaConfig(q_heads=q_heads, tile_groups=2, max_groups=40, delta_cycles=2),
    )


@launch.simulators("icarus")
def test_matches_golden_tiny(simulator):
    run(simulator, preset("tiny"), SMALL)


@launch.simulators("verilator")
def test_matches_golden_with_odd_rows(simulator):
    run(simulator, odd(q_heads=1, delta_bits=4), throughput=0.28)  # tiles of two groups: finding the limit takes longer


@launch.simulators("verilator")
def test_matches_golden_on_real_heads(simulator):
    """Nine heads over depth, two contexts; the long ones are nightly."""
    heads = [(0, 0), (3, 1), (7, 2), (11, 0), (14, 1), (18, 2), (22, 0), (26, 1), (29, 2)]
    real = [(130, heads, True), (1024, heads, False), (4096, [(14, 1)], False)]
    run(simulator, preset("smollm2"), real=real, throughput_groups=12)


@pytest.mark.nightly
@launch.simulators("verilator")
def test_matches_golden_on_long_real_heads(simulator):
    heads = [(0, 0), (3, 1), (7, 2), (11, 0), (14, 1), (18, 2), (22, 0), (26, 1), (29, 2)]
    run(simulator, preset("smollm2"), "matches_golden_on_real.*", real=[(4096, heads, True), (8192, heads, False)])


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["ulx3s", "llama2-7b", "dac25"])
def test_matches_golden_in_presets(simulator, name):
    run(simulator, preset(name), throughput_groups=8)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(("q_heads", "group_tokens"), [(4, 16), (8, 128)])
def test_matches_golden_in_further_geometries(simulator, q_heads, group_tokens):
    base = odd(q_heads=q_heads, delta_bits=2)
    config = replace(base, dsq=replace(base.dsq, head_dim=80, bus_bits=128, group_tokens=group_tokens, max_salient=15))
    run(simulator, config, SMALL)


@pytest.mark.nightly
@launch.simulators("verilator")
def test_keeps_many_groups(simulator):
    """A million groups take 17 GB to write the Verilog of their memory; numbers of 20 bits have a test of their own."""
    config = replace(preset("tiny"), mha=MhaConfig(q_heads=1, tile_groups=4, max_groups=1 << 14))
    run(simulator, config, "group_numbers.*|matches_golden_under.*")


def test_rejects_a_bus_wider_than_a_delta_row():
    message = "dsq.bus_bits must be at most 2*head_dim=32, not 64"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AcceleratorConfig(dsq=DsqConfig(head_dim=16, lanes=4, bus_bits=64))
