"""QueryPreparer: geometries, bad configs, and the start of the simulations."""

import re

import pytest

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.mha.query import QueryPreparer


def run(simulator: str, config: AcceleratorConfig, *, queries: int) -> None:
    launch.run(
        QueryPreparer(config),
        name="mha_query",
        tb="cocotb_tests.mha.tb_query",
        parameters={
            "config": config.to_dict(),
            "queries": queries,
            "latency": QueryPreparer.latency(config),
            "query_cycles": QueryPreparer.query_cycles(config),
        },
        simulators=simulator,
    )


def geometry(head_dim: int, lanes: int, q_heads: int) -> AcceleratorConfig:
    return AcceleratorConfig(dsq=DsqConfig(head_dim=head_dim, lanes=lanes, bus_bits=32), mha=MhaConfig(q_heads=q_heads))


@launch.simulators("icarus")
@pytest.mark.parametrize("config", [preset("tiny"), geometry(48, 16, 1)], ids=("tiny", "48"))
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config, queries=6)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, preset("smollm2"), queries=20)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [preset("ulx3s"), preset("dac25"), geometry(80, 4, 4), geometry(128, 64, 2), geometry(16, 16, 8)],
    ids=("ulx3s", "dac25", "80", "wide", "16"),
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, queries=60)


def test_prepares_a_query_of_the_default_model_within_500_cycles():
    assert QueryPreparer.query_cycles(preset("smollm2")) <= 500


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MhaConfig(q_heads=0), "q_heads must be from 1 to 8, not 0"),
        (lambda: MhaConfig(q_heads=9), "q_heads must be from 1 to 8, not 9"),
        (lambda: DsqConfig(head_dim=72), "head_dim must be a multiple of lanes=16, not 72"),
        (lambda: DsqConfig(lanes=2), "lanes must be a power of two from 4 to 64, not 2"),
    ],
    ids=("no heads", "many heads", "part of a beat", "few lanes"),
)
def test_rejects_bad_configs(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
