"""Epilogue: geometries, bad configs, what its widths rely on, and the start of the simulations."""

import re

import numpy as np
import pytest
from amaranth.hdl import unsigned

from cocotb_tests.lib import launch
from golden.gemm.epilogue import SIGMOID
from golden.gemm.prologue import FACTOR_FRACTION_BITS
from rtl.config import GemmConfig, preset
from rtl.gemm.epilogue import Epilogue


def run(simulator: str, config: GemmConfig, tag_bits: int, *, beats: int, real_beats: int = 0) -> None:
    launch.run(
        Epilogue(config, unsigned(tag_bits)),
        name="gemm_epilogue",
        tb="cocotb_tests.gemm.tb_epilogue",
        parameters={
            "pairs": config.pairs,
            "act_bits": config.act_bits,
            "acc_bits": config.acc_bits,
            "tag_bits": tag_bits,
            "beats": beats,
            "real_beats": real_beats,
            "latency": Epilogue.latency(config),
        },
        simulators=simulator,
    )


def sized(act_bits: int, max_k: int, pairs: int) -> GemmConfig:
    return GemmConfig(columns=2 * pairs, act_bits=act_bits, max_k=max_k, act_words=max_k, pairs=pairs)


@launch.simulators("icarus")
@pytest.mark.parametrize(("config", "tag_bits"), [(sized(8, 1, 1), 1), (sized(11, 96, 2), 5)])
def test_matches_golden_in_small_geometries(simulator, config, tag_bits):
    run(simulator, config, tag_bits, beats=60)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, preset("smollm2").gemm, 32, beats=1000, real_beats=300)


@launch.simulators("verilator")
def test_matches_golden_with_the_longest_sums(simulator):
    run(simulator, sized(16, 1 << 16, 2), 7, beats=500)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("config", [sized(8, 2, 1), sized(9, 11, 4), preset("ulx3s").gemm, preset("llama2-7b").gemm])
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, 20, beats=1500)


@pytest.mark.parametrize("acc_bits", [15, 18, 30, 39])
def test_scaled_sums_need_one_bit_more(acc_bits):
    """The stage that keeps them drops what is above."""
    top, factor = 1 << acc_bits - 1, (1 << 16) - 1
    ends = [(total * factor + (1 << FACTOR_FRACTION_BITS - 1)) >> FACTOR_FRACTION_BITS for total in (-top, top - 1)]
    assert -(1 << acc_bits) <= ends[0] < ends[1] < 1 << acc_bits


def test_entries_of_the_table_fit():
    """Sigmoids above one half in 16 bits, their steps in 11."""
    assert 0 == SIGMOID[0] - (1 << 15) <= SIGMOID.max() - (1 << 15) == 1 << 15
    assert 0 <= np.diff(SIGMOID).min() <= np.diff(SIGMOID).max() < 1 << 11


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": 0}, "pairs must be a power of two that divides columns/2=4, not 0"),
        ({"pairs": 3}, "pairs must be a power of two that divides columns/2=4, not 3"),
        ({"pairs": 8}, "pairs must be a power of two that divides columns/2=4, not 8"),
        ({"columns": 7}, "columns must be an even number from 2 to 64, not 7"),
        ({"act_bits": 17}, "act_bits must be from 8 to 16, not 17"),
    ],
)
def test_rejects_bad_configs(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GemmConfig(**changes)
