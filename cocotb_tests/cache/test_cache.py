"""KvCache: attention through the page table, writes, forks, faults, on timed memories."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from cocotb_tests.cache.system import System, dram_config
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from golden.cache.cache import MemoryMap
from rtl.config import AcceleratorConfig, CacheConfig, DsqConfig, MhaConfig, preset
from rtl.top import CachedAttention

ODD = AcceleratorConfig(
    dsq=DsqConfig(head_dim=48, group_tokens=32, max_salient=6, delta_bits=4, lanes=4, bus_bits=64),
    mha=MhaConfig(q_heads=3, tile_groups=4, max_groups=16),
    cache=CacheConfig(
        addr_bits=20,
        max_sequences=3,
        streams=2,
        record_pages=16,
        block_pages=8,
        max_burst=5,
        outstanding=3,
        read_ports=1,
        l1_words=16,
        l2_words=64,
    ),
)


def run(config: AcceleratorConfig, simulator: str, dram: dict, tests: str | None = None) -> None:
    launch.run(
        System(CachedAttention(config), dram_config(config, **dram)),
        name="cache_system",
        tb="cocotb_tests.cache.tb_cache",
        parameters={**asdict(config), "dram": dram, "resets": 4},
        simulators=simulator,
        tests=tests,
        sources=DRAM_SOURCES,
    )


@launch.simulators()
def test_smallest_geometry(simulator):
    quick = "attention_reads_pages$|bytes_at|forks|memory_errors|records_count|bad_writes"
    run(preset("tiny"), simulator, {"part": "ideal", "latency": 6}, quick if simulator == "icarus" else None)


@launch.simulators("verilator")
@pytest.mark.parametrize("part", ["ddr4-2400", pytest.param("sdr-133", marks=pytest.mark.nightly)])
def test_odd_geometry_on_timed_memory(simulator, part):
    run(ODD, simulator, {"part": part})


SMALL_POOLS = replace(
    preset("tiny"), cache=replace(preset("tiny").cache, record_pages=8, block_pages=8, max_sequences=4)
)


def soak(cycles: int, must: tuple[str, ...], dram: dict) -> None:
    config = SMALL_POOLS
    launch.run(
        System(CachedAttention(config), dram_config(config, **dram)),
        name="cache_soak",
        tb="cocotb_tests.cache.tb_soak",
        parameters={**asdict(config), "dram": dram, "resets": 0, "most_groups": 6, "soak_cycles": cycles, "must": must},
        simulators="verilator",
        tests="lives_long",
        sources=DRAM_SOURCES,
    )


def test_lives_for_a_while():
    soak(150_000, ("queries", "faults", "born", "ends", "reads"), {"part": "sdr-133"})


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["ddr4-2400", "sdr-133"])
def test_lives_for_ten_million_cycles(part):
    must = ("queries", "faults", "born", "refused", "forks", "ends", "resets", "reads")
    soak(5_000_000, must, {"part": part})


MAP = MemoryMap(
    head_dim=64,
    group_tokens=64,
    max_salient=16,
    delta_bits=4,
    bus_bits=128,
    streams=90,
    record_pages=256,
    block_pages=16,
)


def test_pages_do_not_overlap():
    assert MAP.stride(False) == 276 and MAP.stride(True) == 520
    assert MAP.stride(False) * 16 % 64 == 0
    seen = [MAP.offset(False, stream, page) for stream in (0, 1, 89) for page in (0, 1, 255)]
    assert seen == sorted(seen) and min(b - a for a, b in pairwise(seen)) == MAP.stride(False)
    assert seen[-1] + MAP.stride(False) == MAP.pool_words(False)


def test_rejects_pages_and_streams_that_do_not_exist():
    with pytest.raises(ValueError, match=r"^stream must be from 0 to 89, not 90$"):
        MAP.offset(False, 90, 0)
    with pytest.raises(ValueError, match=r"^page must be from 0 to 15, not 16$"):
        MAP.offset(True, 0, 16)
