"""AxiWriter: golden's own properties, geometries, and the start of the simulations."""

from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from golden.cache.axi import OKAY, SLVERR
from golden.cache.axi_writer import merge, write
from rtl.cache.axi import AxiConfig
from rtl.cache.axi_writer import AxiWriter


def run(simulator: str, *, rounds: int, tests: str | None = None, **values: object) -> None:
    config = AxiConfig(**values)
    launch.run(
        AxiWriter(config),
        name="cache_axi_writer",
        tb="cocotb_tests.cache.tb_axi_writer",
        parameters={
            "config": asdict(config),
            "rounds": rounds,
            "address_latency": AxiWriter.ADDRESS_LATENCY,
            "word_latency": AxiWriter.WORD_LATENCY,
            "answer_latency": AxiWriter.ANSWER_LATENCY,
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
        depths=(2 * max_burst + 2,) * 3,
        tests="corner|stalls|latency|after_reset|turns|faults",
    )


@launch.simulators("verilator")
@pytest.mark.parametrize("data_bits, max_burst, ports", [(32, 256, 3), (128, 16, 5), (512, 50, 3)])
def test_matches_golden(simulator, data_bits, max_burst, ports):
    run(
        simulator,
        rounds=64 // max_burst or 1,
        data_bits=data_bits,
        max_burst=max_burst,
        depths=(2 * max_burst,) * ports,
    )


@launch.simulators("verilator")
def test_matches_golden_with_single_bursts(simulator):
    """One burst under way, of one word, in the smallest buffers, one of two ports or the only one."""
    tests = "corner|stalls|bursts_under_way|after_reset"
    for depths in ((1, 3), (2,)):
        run(simulator, rounds=3, max_burst=1, outstanding=1, depths=depths, tests=tests)


def test_strobes_choose_bytes():
    assert merge(0x11223344, 0xAABBCCDD, 0b0101, word_bytes=4) == 0x11BB33DD


def test_refused_bursts_change_nothing_and_fail_their_request():
    """12 words in bursts of 4, the second of which is refused."""
    memory: dict[int, int] = {}
    words = [(value, 0xF) for value in range(100, 112)]
    response = {4: SLVERR}
    arguments = {"max_burst": 4, "word_bytes": 4, "response": lambda word: response.get(word, OKAY)}
    assert write(memory, 0, words, False, **arguments)
    assert memory == {word: 100 + word for word in (0, 1, 2, 3, 8, 9, 10, 11)}
    assert not write(memory, 5, words[:3], False, **arguments)
    assert write(memory, 20, words, True, **arguments) and 20 not in memory
