"""StreamingSoftmax: geometries, bad configs, what its widths rely on, and the start of the simulations."""

import re

import pytest
from amaranth.hdl import unsigned

from cocotb_tests.lib import launch
from golden.mha.scores import SCORE_BITS, SCORE_FRACTION_BITS
from golden.mha.softmax import EXP2
from rtl.config import AcceleratorConfig, MhaConfig
from rtl.mha.softmax import StreamingSoftmax


def run(simulator: str, q_heads: int, tag_bits: int, *, rows: int) -> None:
    config = AcceleratorConfig(mha=MhaConfig(q_heads=q_heads))
    launch.run(
        StreamingSoftmax(config, unsigned(tag_bits)),
        name="mha_softmax",
        tb="cocotb_tests.mha.tb_softmax",
        parameters={
            "q_heads": q_heads,
            "tag_bits": tag_bits,
            "rows": rows,
            "latency": StreamingSoftmax.latency(config),
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(("q_heads", "tag_bits"), [(1, 1), (2, 5)])
def test_matches_golden_in_small_geometries(simulator, q_heads, tag_bits):
    run(simulator, q_heads, tag_bits, rows=20)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, q_heads=3, tag_bits=8, rows=80)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(("q_heads", "tag_bits"), [(1, 32), (5, 3), (8, 24)])
def test_matches_golden_in_further_geometries(simulator, q_heads, tag_bits):
    run(simulator, q_heads, tag_bits, rows=300)


def test_own_maximum_of_every_score_fits_its_bits():
    """Scores are sums of three saturated ones; the maximum of a row without tokens lies below all others."""
    most, least = 3 * ((1 << (SCORE_BITS - 1)) - 1), 3 * (-1 << (SCORE_BITS - 1))
    assert -(1 << 25) <= least < most < 1 << 25
    assert -(1 << 18) < (least >> SCORE_FRACTION_BITS) + 1 < (most >> SCORE_FRACTION_BITS) + 1 < 1 << 18


def test_entries_of_the_table_fit_a_weight():
    assert 1 << 15 <= EXP2.min() <= EXP2.max() < 1 << 16


@pytest.mark.parametrize(("value", "message"), [(n, f"q_heads must be from 1 to 8, not {n}") for n in (0, 9, -1)])
def test_rejects_bad_configs(value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MhaConfig(q_heads=value)
