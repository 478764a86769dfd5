"""Reader and writer on one port, with the AXI4 memory of cocotbext-axi, which was written independently."""

from dataclasses import asdict

import pytest

from cocotb_tests.cache.axi_pair import AxiPair
from cocotb_tests.lib import launch
from rtl.cache.axi import AxiConfig


def run(simulator: str, **values: object) -> None:
    config = AxiConfig(addr_bits=20, depths=(48, 32, 32), **values)
    launch.run(
        AxiPair(config),
        name="cache_axi_pair",
        tb="cocotb_tests.cache.tb_axi_peer",
        parameters={"config": asdict(config)},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_cocotbext_memory_agrees_with_narrow_words(simulator):
    run(simulator, data_bits=32, max_burst=5)


@launch.simulators("verilator")
@pytest.mark.parametrize("data_bits", [32, 128, 512])
def test_cocotbext_memory_agrees(simulator, data_bits):
    run(simulator, data_bits=data_bits, max_burst=16)
