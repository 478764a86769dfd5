"""PeArray: geometries, real projections, and the start of the simulations."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cocotb_tests.gemm.projections import real_projections
from cocotb_tests.lib import launch
from golden.gemm.array import accumulator_bits, multiply
from golden.gemm.prologue import prepare_rows
from rtl.config import GemmConfig
from rtl.gemm.array import PeArray


def run(simulator: str, config: GemmConfig, *, tiles: int, real: Path | None = None) -> None:
    launch.run(
        PeArray(config),
        name="gemm_array",
        tb="cocotb_tests.gemm.tb_array",
        parameters={
            "config": asdict(config),
            "tiles": tiles,
            "latency": PeArray.latency,
            "real": real and str(real),
        },
        simulators=simulator,
    )


def geometry(rows: int, columns: int, act_bits: int, max_k: int, pairs: int) -> GemmConfig:
    return GemmConfig(rows=rows, columns=columns, act_bits=act_bits, max_k=max_k, act_words=max_k, pairs=pairs)


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config", [geometry(1, 2, 8, 40, 1), geometry(3, 6, 9, 37, 1), geometry(2, 4, 16, 64, 2)], ids=("1x2", "3x6", "2x4")
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config, tiles=40)


@launch.simulators("verilator")
def test_matches_golden(simulator, tmp_path):
    """The default geometry, also on a tile of every projection of three layers of the embedded model."""
    config = GemmConfig()
    arrays = {}
    for n, real in enumerate(real_projections((0, 14, 29), config.rows)):
        command = real.command
        rows = prepare_rows(real.x, act_bits=config.act_bits, norm=command.norm, epsilon=command.epsilon)
        arrays |= {f"codes_{n}": rows.codes, f"weights_{n}": real.projection.weights[: config.columns]}
    assert len(arrays) == 2 * 12
    np.savez(tmp_path / "real.npz", **arrays)
    run(simulator, config, tiles=300, real=tmp_path / "real.npz")


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        geometry(16, 16, 12, 11008, 2),
        geometry(4, 4, 12, 1536, 1),
        geometry(5, 12, 14, 300, 2),
        geometry(3, 8, 8, 99, 4),
    ],
    ids=("16x16", "4x4", "5x12", "3x8"),
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, tiles=400)


@pytest.mark.parametrize("k", [1, 2, 3, 64, 65, 576, 65536])
def test_accumulator_holds_all_sums(k):
    """The widest sums of so many steps fit, and a bit less would not do."""
    for act_bits in (8, 12, 16):
        bits = accumulator_bits(act_bits, k)
        codes = np.full((1, k), -(1 << (act_bits - 1)))
        least, most = (int(multiply(codes, np.full((1, k), w, np.int8))[0, 0]) for w in (127, -127))
        assert -(1 << (bits - 1)) <= least and most < 1 << (bits - 1)
        assert most >= 1 << (bits - 3)
