"""ScoreArray: geometries, bad configs, multipliers, and the start of the simulations."""

import re

import pytest

from cocotb_tests.lib import launch
from fpga.synth import synthesize
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.emit import verilog
from rtl.mha.scores import ScoreArray

TAG_BITS = 16


def run(simulator: str, config: AcceleratorConfig, *, rows: int) -> None:
    launch.run(
        ScoreArray(config, TAG_BITS),
        name="mha_scores",
        tb="cocotb_tests.mha.tb_scores",
        parameters={
            "config": config.to_dict(),
            "tag_bits": TAG_BITS,
            "rows": rows,
            "latency": ScoreArray.latency(config),
        },
        simulators=simulator,
    )


def geometry(head_dim: int, lanes: int, bus_bits: int, q_heads: int, delta_bits: int) -> AcceleratorConfig:
    dsq = DsqConfig(head_dim=head_dim, lanes=lanes, bus_bits=bus_bits, delta_bits=delta_bits)
    return AcceleratorConfig(dsq=dsq, mha=MhaConfig(q_heads=q_heads))


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config",
    [
        preset("tiny"),
        geometry(48, 16, 32, 1, 4),
        pytest.param(geometry(80, 16, 64, 1, 2), marks=pytest.mark.nightly),
    ],
    ids=("tiny", "48", "80"),
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config, rows=60)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, preset("smollm2"), rows=400)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [preset("ulx3s"), preset("dac25"), geometry(80, 16, 128, 4, 4), geometry(96, 32, 128, 8, 2)],
    ids=("ulx3s", "dac25", "80", "96"),
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, rows=400)


def test_deltas_take_no_multipliers():
    """Those there are belong to the nibble lanes and, two a head, to the scales."""
    config = preset("tiny")
    cells, _ = synthesize(verilog(ScoreArray(config, TAG_BITS)), "top")
    assert cells["MULT18X18D"] == config.mha.q_heads * (config.dsq.bus_bits // 4 + 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MhaConfig(q_heads=0), "q_heads must be from 1 to 8, not 0"),
        (lambda: MhaConfig(q_heads=9), "q_heads must be from 1 to 8, not 9"),
        (
            lambda: AcceleratorConfig(dsq=DsqConfig(head_dim=48, bus_bits=128)),
            "dsq.bus_bits must be at most 2*head_dim=96, not 128",
        ),
    ],
    ids=("no heads", "many heads", "wide bus"),
)
def test_rejects_bad_configs(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
