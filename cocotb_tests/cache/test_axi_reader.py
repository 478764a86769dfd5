"""AxiReader: geometries, bad configs, and the start of the simulations."""

from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.cache.axi import AxiConfig
from rtl.cache.axi_reader import AxiReader


def run(simulator: str, *, rounds: int, tests: str | None = None, **values: object) -> None:
    config = AxiConfig(**values)
    launch.run(
        AxiReader(config),
        name="cache_axi_reader",
        tb="cocotb_tests.cache.tb_axi_reader",
        parameters={
            "config": asdict(config),
            "rounds": rounds,
            "address_latency": AxiReader.ADDRESS_LATENCY,
            "word_latency": AxiReader.WORD_LATENCY,
            "bad_latency": AxiReader.BAD_LATENCY,
        },
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("data_bits, max_burst", [(32, 3), (512, 16)])
def test_matches_golden_in_small_geometries(simulator, data_bits, max_burst):
    run(
        simulator,
        rounds=1,
        data_bits=data_bits,
        max_burst=max_burst,
        addr_bits=24,
        outstanding=9,
        depths=(2 * max_burst + 16,) * 3,
        tests="corner|stalls|latency|after_reset|counts|faults",
    )


@launch.simulators("verilator")
@pytest.mark.parametrize("data_bits, max_burst, ports", [(32, 256, 4), (128, 16, 6), (512, 100, 3)])
def test_matches_golden(simulator, data_bits, max_burst, ports):
    run(
        simulator,
        rounds=64 // max_burst or 1,
        data_bits=data_bits,
        max_burst=max_burst,
        depths=(2 * max_burst + 16,) * ports,
        tests="corner|stalls|latency|bursts_under_way|slow|faults|counts|after_reset",
    )


@launch.simulators("verilator")
def test_matches_golden_with_single_bursts(simulator):
    """One burst under way, of one word, in the smallest buffers."""
    tests = "corner|stalls|bursts_under_way|after_reset"
    run(simulator, rounds=3, max_burst=1, outstanding=1, depths=(1, 2, 3), tests=tests)


@launch.simulators("verilator")
def test_attention_comes_first_and_gemm_gets_its_share(simulator):
    """Attention has room for more bursts than may be under way, so it asks all the time."""
    run(simulator, rounds=0, outstanding=4, depths=(128, 32, 32, 32, 32), tests="gets_its_share")
