"""RowQuantizer: geometries, bad configs, what its arithmetic relies on, and the start of the simulations."""

import re

import numpy as np
import pytest

from cocotb_tests.lib import launch
from golden.dsq.row_quantizer import RECIPROCAL, RECIPROCAL_BITS
from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS, ceil_scale, split_scale
from golden.fixed import half_up
from rtl.config import DsqConfig
from rtl.dsq.row_quantizer import RowQuantizer


def run(simulator: str, head_dim: int, lanes: int, *, rows: int, real_groups: int = 0) -> None:
    config = DsqConfig(head_dim=head_dim, lanes=lanes)
    launch.run(
        RowQuantizer(config),
        name="dsq_row_quantizer",
        tb="cocotb_tests.dsq.tb_row_quantizer",
        parameters={
            "head_dim": head_dim,
            "lanes": lanes,
            "rows": rows,
            "real_groups": real_groups,
            "latency": [RowQuantizer.latency(config, rotate=flag) for flag in (False, True)],
            "row_cycles": [RowQuantizer.row_cycles(config, rotate=flag) for flag in (False, True)],
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(("head_dim", "lanes"), [(16, 4), (48, 16)])
def test_matches_golden_in_small_geometries(simulator, head_dim, lanes):
    run(simulator, head_dim, lanes, rows=20)


@launch.simulators("verilator")
@pytest.mark.parametrize(("head_dim", "lanes"), [(16, 16), (64, 16), (96, 32)])
def test_matches_golden(simulator, head_dim, lanes):
    run(simulator, head_dim, lanes, rows=60, real_groups=27 if head_dim == 64 else 0)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(("head_dim", "lanes"), [(16, 8), (32, 32), (64, 64), (80, 4), (80, 16), (128, 8), (128, 64)])
def test_matches_golden_in_further_geometries(simulator, head_dim, lanes):
    run(simulator, head_dim, lanes, rows=300)


def test_takes_at_most_36_cycles_a_row():
    config = DsqConfig(head_dim=64, lanes=16)
    assert max(RowQuantizer.row_cycles(config, rotate=flag) for flag in (False, True)) <= 36


def test_codes_stay_within_127_without_a_clamp():
    """The datapath leaves golden's clamp out: for every peak the largest code is at most 127, with either sign."""
    peak = np.arange((1 << 15) + 1)
    significand, exponent = split_scale(ceil_scale(peak))
    for sign in (1, -1):
        codes = half_up(sign * peak * RECIPROCAL[significand - 8], exponent + RECIPROCAL_BITS - SCALE_BIAS)
        assert np.abs(codes).max() == 127
    assert exponent.max() == MAX_EXPONENT
    assert exponent[1:].min() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lanes": 12}, "lanes must be a power of two from 4 to 64, not 12"),
        ({"lanes": 2}, "lanes must be a power of two from 4 to 64, not 2"),
        ({"lanes": 128, "head_dim": 128}, "lanes must be a power of two from 4 to 64, not 128"),
        ({"head_dim": 8, "lanes": 4}, "head_dim must be from 16 to 128, not 8"),
        ({"head_dim": 144, "lanes": 16}, "head_dim must be from 16 to 128, not 144"),
        ({"head_dim": 72, "lanes": 16}, "head_dim must be a multiple of lanes=16, not 72"),
    ],
)
def test_rejects_bad_configs(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**fields)
