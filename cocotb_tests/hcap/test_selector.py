"""RunSelector: its expressions against golden, bad configs, and the start of the simulations."""

import re

import numpy as np
import pytest
from amaranth.hdl import unsigned

from cocotb_tests.common.test_fixed import evaluate
from cocotb_tests.lib import launch, rng
from golden.hcap.selector import BIN_SHIFT, BINS, select_runs
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.hcap.selector import DISTANCE_BITS, RunSelector, bin_of, is_kept


def run(simulator: str, *, tiles: int) -> None:
    """The hardware is the same for every config."""
    config = AcceleratorConfig()
    launch.run(
        RunSelector(config),
        name="hcap_selector",
        tb="cocotb_tests.hcap.tb_selector",
        parameters={"tiles": tiles, "latency": RunSelector.latency(config)},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_matches_golden_on_a_few_tiles(simulator):
    run(simulator, tiles=8)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, tiles=60)


@pytest.mark.nightly
@launch.simulators("verilator")
def test_matches_golden_on_many_tiles(simulator):
    run(simulator, tiles=400)


def test_gives_a_result_within_four_cycles_more_than_bins():
    assert RunSelector.latency(AcceleratorConfig()) <= BINS + 4


def distances() -> list[int]:
    """Both sides of every bin's edge, random ones, the largest."""
    draw = rng("distances")
    edges = [b << BIN_SHIFT for b in range(1, 2 * BINS)]
    return [0, *(e - 1 for e in edges), *edges, *(draw.getrandbits(DISTANCE_BITS) for _ in range(50)), (1 << 25) - 1]


def test_bins_are_those_of_golden():
    """A lone run of one token is kept by a limit of 0 exactly before its bin: count the probes without tokens there."""
    probes = (np.arange(BINS + 1) << BIN_SHIFT).astype(np.int32)
    lengths = np.array([1] + [0] * len(probes))
    bins = evaluate(bin_of, [unsigned(DISTANCE_BITS)], [(d,) for d in distances()])
    for distance, got in zip(distances(), bins, strict=True):
        row = np.array([distance, *probes], np.int32)
        assert got == select_runs(row, lengths, run_margin=1 << 25, keep_count=0).sum(), distance


@pytest.mark.parametrize("margin", [0, 63, 64, 5000, 23637, (1 << 25) - 1])
def test_kept_runs_are_those_of_golden(margin):
    """Runs of one token each, a limit that falls between bins; `bins_kept` by probes without tokens."""
    row = np.array(distances(), np.int32)
    probes = (np.arange(BINS + 1) << BIN_SHIFT).astype(np.int32)
    for keep in (0, 1, 64, 128, 200, 254, 255, 400, 10_000):
        both, lengths = np.concatenate([row, probes]), np.array([1] * len(row) + [0] * len(probes))
        bins_kept = int(select_runs(both, lengths, run_margin=1 << 25, keep_count=keep)[len(row) :].sum())
        expected = select_runs(row, lengths[: len(row)], run_margin=margin, keep_count=keep)
        shapes = [unsigned(DISTANCE_BITS), unsigned(8), unsigned(DISTANCE_BITS)]
        got = evaluate(is_kept, shapes, [(d, bins_kept, margin) for d in distances()])
        assert got == expected.tolist(), f"keep_count {keep}"


@pytest.mark.parametrize(
    ("config", "field", "value", "message"),
    [
        (MhaConfig, "tile_groups", 48, "tile_groups must be a power of two from 1 to 1024, not 48"),
        (MhaConfig, "tile_groups", 2048, "tile_groups must be a power of two from 1 to 1024, not 2048"),
        (DsqConfig, "group_tokens", 256, "group_tokens must be a power of two from 16 to 128, not 256"),
    ],
)
def test_rejects_bad_configs(config, field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config(**{field: value})
