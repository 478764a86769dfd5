"""The DRAM model: protocol, content, figures of its parts, bandwidth, speed."""

import json
import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES, DramModel
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_parts import PARTS
from cocotb_tests.lib.dram_traffic import DramTraffic

TB = "cocotb_tests.lib.tb_dram"

SMALL = {
    # fits a row of each bank, and rows to miss
    "ddr4-2400": DramConfig(part="ddr4-2400", words=1 << 14),
    "lpddr4-3200": DramConfig(part="lpddr4-3200", data_bits=256, words=1 << 12, latency=7),
    "sdr-133": DramConfig(part="sdr-133", data_bits=32, words=1 << 12),
    "ideal": DramConfig(part="ideal", data_bits=64, words=1 << 12, latency=20),
}


def run(component, config, simulator, tests, **parameters):
    return launch.run(
        component(config),
        name=f"lib_dram_{config.part}",
        tb=TB,
        parameters={"config": asdict(config), **parameters},
        simulators=simulator,
        tests=tests,
        sources=DRAM_SOURCES,
    )


@launch.simulators()
@pytest.mark.parametrize("part", PARTS)
def test_carries_content(simulator, part):
    accesses = {"icarus": 12, "verilator": 60}[simulator]
    run(DramModel, SMALL[part], simulator, "carries|loads_and_dumps|strobes", accesses=accesses)


@launch.simulators()
@pytest.mark.parametrize("part", PARTS)
def test_single_accesses_take_the_figures_of_the_part(simulator, part):
    tests = "ideal_latency" if part == "ideal" else "single_accesses|bursts_follow|refreshes"
    run(DramModel, SMALL[part], simulator, tests)


@launch.simulators()
@pytest.mark.parametrize("part", ["ddr4-2400", "ideal"])
def test_answers_errors_notices_broken_rules_and_survives_a_reset(simulator, part):
    run(DramModel, SMALL[part], simulator, "ids_and_errors|notices|survives")


@launch.simulators()
@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_carries_traffic_of_both_directions(simulator, stall):
    run(DramTraffic, SMALL["sdr-133"], simulator, "traffic_writes", stall=stall)


@launch.simulators("verilator")
def test_stalls_take_their_share(simulator):
    run(DramTraffic, SMALL["ideal"], simulator, "stalls_take")


@launch.simulators("verilator")
def test_loads_megabytes_and_runs_fast(simulator):
    """The limits are a fraction of what an idle machine reaches."""
    run(DramTraffic, FULL["ddr4-2400"], simulator, "loads_and_runs", cycles=200_000, minimum=50_000, seconds=10)


# Traffic: read, write, random, bytes of a request.
KINDS = {
    "sequential reads": (1, 0, 0, 1024),
    "sequential writes": (0, 1, 0, 1024),
    "sequential reads and writes": (1, 1, 0, 1024),
    "random reads of 1024 bytes": (1, 0, 1, 1024),
    "random reads of 64 bytes": (1, 0, 1, 64),
    "random reads of 16 bytes": (1, 0, 1, 16),
}
FULL = {
    "ddr4-2400": DramConfig(part="ddr4-2400", data_bits=512, words=1 << 16),
    "ddr4-2400, narrow bus": DramConfig(part="ddr4-2400", words=1 << 18),
    "lpddr4-3200": DramConfig(part="lpddr4-3200", data_bits=512, words=1 << 16),
    "lpddr4-3200, narrow bus": DramConfig(part="lpddr4-3200", words=1 << 18),
    "sdr-133": DramConfig(part="sdr-133", data_bits=32, words=1 << 20),
    "ideal": DramConfig(part="ideal", words=1 << 16, latency=20),
}
# Least shares of the peak (of the part, or of the bus if that is less), in the order of `KINDS`.
LEAST = {
    "ddr4-2400": (0.95, 0.95, 0.90, 0.80, 0.30),
    "lpddr4-3200": (0.95, 0.93, 0.90, 0.85, 0.25),
    "sdr-133": (0.97, 0.97, 0.90, 0.97, 0.90, 0.80),
    "ideal": (1.0, 1.0, 2.0, 1.0, 1.0, 1.0),
}
QUICK = ("ddr4-2400", "sdr-133")


@launch.simulators("verilator")
@pytest.mark.parametrize(
    "memory", [m if m in QUICK else pytest.param(m, marks=pytest.mark.nightly) for m in FULL]
)
def test_gives_its_bandwidth(simulator, memory, tmp_path):
    """Prints the table of docs/dram.md."""
    file, config = tmp_path / "table.json", FULL[memory]
    kinds = {name: kind for name, kind in KINDS.items() if kind[-1] >= config.word_bytes}
    run(DramTraffic, config, simulator, "gives_its", kinds=kinds, cycles=40_000, file=str(file))
    table = json.loads(file.read_text())
    print(f"{memory}: {config.data_bits} bits at {config.clock:.1f} MHz, {config.ratio:.2f} words per cycle")
    for name in kinds:
        print(f"  {name:30}", *(f"{key} {value:7.2%}" for key, value in table[name].items()))
    for name, least in zip(kinds, LEAST.get(memory, ()), strict=False):
        assert table[name]["useful"] >= least, name
    assert all(row["busy"] <= 1.001 for row in table.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": "ddr9"}, "part must be one of ddr4-2400, lpddr4-3200, sdr-133, ideal, not 'ddr9'"),
        ({"data_bits": 48}, "data_bits must be a power of two from 32 to 512, not 48"),
        ({"words": 0}, "words must be from 1 to what 32 address bits reach, not 0"),
        ({"clock_mhz": 0.0}, "clock_mhz must be above 0, at most 2000, not 0.0"),
        ({"latency": -1}, "latency must be at least 0, not -1"),
        ({"queue": 0}, "queue must be at least 1, not 0"),
        ({"look_ahead": 0}, "look_ahead must be at least 1, not 0"),
        ({"mapping": "bank:row"}, "mapping must be row, then the others of row:bank:column:group, not 'bank:row'"),
        ({"seed": 0}, "seed must be from 1 to 4294967295, not 0"),
    ],
)
def test_rejects_bad_configs(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DramConfig(**changes)


def test_default_clock_is_the_fastest_that_the_part_feeds():
    found = {name: (config.clock, config.ratio) for name, config in FULL.items()}
    assert found["ddr4-2400"] == (300, 1)
    assert found["lpddr4-3200"] == (200, 1)
    assert found["sdr-133"] == pytest.approx((66.667, 1), rel=1e-4)
    assert DramConfig(part="sdr-133", data_bits=128, clock_mhz=50).ratio == pytest.approx(1 / 3, rel=1e-4)
