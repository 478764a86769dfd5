"""ScaleDivider: widths, bad widths and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.dsq.scale import DividerConfig, ScaleDivider


def run(simulator: str, numerator_bits: int, denominator_bits: int) -> None:
    config = DividerConfig(numerator_bits=numerator_bits, denominator_bits=denominator_bits)
    launch.run(
        ScaleDivider(config),
        name="dsq_scale",
        tb="cocotb_tests.dsq.tb_scale",
        parameters={**asdict(config), "latency": ScaleDivider.latency(config)},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(("numerator_bits", "denominator_bits"), [(9, 20), (43, 1), (1, 1)])
def test_matches_golden_in_small_geometries(simulator, numerator_bits, denominator_bits):
    run(simulator, numerator_bits, denominator_bits)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, 36, 26)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"numerator_bits": 0, "denominator_bits": 8}, "numerator_bits must be at least 1, not 0"),
        ({"numerator_bits": 8, "denominator_bits": -1}, "denominator_bits must be at least 1, not -1"),
    ],
)
def test_rejects_bad_configs(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DividerConfig(**fields)
