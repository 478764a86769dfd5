"""Prologue: geometries, rows of a real model, and the start of the simulations."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cocotb_tests.gemm.projections import real_projections
from cocotb_tests.lib import launch
from golden.gemm.prologue import Norm
from rtl.config import GemmConfig, preset
from rtl.gemm.prologue import Prologue


def run(
    simulator: str, config: GemmConfig, *, commands: int, powers: int, corner_k: int, real: Path | None = None
) -> None:
    launch.run(
        Prologue(config),
        name="gemm_prologue",
        tb="cocotb_tests.gemm.tb_prologue",
        parameters={
            "config": asdict(config),
            "commands": commands,
            "powers": powers,
            "corner_k": corner_k,
            "latency": Prologue.latency,
            "factor_latency": Prologue.factor_latency(config),
            "root_cycles": [Prologue.root_cycles(config, layer=norm == Norm.LAYER) for norm in Norm],
            "real": real and str(real),
        },
        simulators=simulator,
    )


def geometry(act_bits: int, max_k: int, row_lanes: int) -> GemmConfig:
    return GemmConfig(act_bits=act_bits, max_k=max_k, act_words=max_k, row_lanes=row_lanes)


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config", [geometry(8, 1, 1), preset("tiny").gemm, geometry(9, 37, 4)], ids=("smallest", "tiny", "37")
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config, commands=24, powers=20, corner_k=10)


@launch.simulators("verilator")
def test_matches_golden(simulator, tmp_path):
    """The default geometry, also on inputs of every projection of three layers of the embedded model."""
    config = preset("smollm2").gemm
    arrays = {}
    for n, real in enumerate(real_projections((0, 14, 29), 16)):
        arrays |= {f"x_{n}": real.x.astype(np.int32), f"command_{n}": [real.command.norm, real.command.epsilon]}
    assert len(arrays) == 2 * 12
    np.savez(tmp_path / "real.npz", **arrays)
    run(simulator, config, commands=40, powers=300, corner_k=70, real=tmp_path / "real.npz")


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [preset("ulx3s").gemm, preset("llama2-7b").gemm, geometry(16, 1 << 16, 64), geometry(14, 1023, 32)],
    ids=("ulx3s", "llama2-7b", "widest", "1023"),
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, commands=100, powers=600, corner_k=300)


def test_finds_roots_of_the_default_model_while_the_next_row_comes_in():
    config = preset("smollm2").gemm
    assert Prologue.root_cycles(config, layer=False, k=576) + 1 <= 576 // config.row_lanes
    assert Prologue.root_cycles(config, layer=True, k=768) + 1 <= 768 // config.row_lanes


@pytest.mark.parametrize("act_bits", [8, 12, 16])
@pytest.mark.parametrize("max_k", [1, 576, 1 << 16])
def test_longest_root_is_that_of_the_longest_row(act_bits, max_k):
    config = geometry(act_bits, max_k, 1)
    for layer in (False, True):
        bounds = [Prologue.root_cycles(config, layer=layer, k=k) for k in (1, max_k)]
        assert bounds[0] <= bounds[1] == Prologue.root_cycles(config, layer=layer)
