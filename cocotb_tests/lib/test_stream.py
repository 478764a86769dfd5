"""The stream library does what it says, on both simulators."""

import pytest
from amaranth.hdl import unsigned

from cocotb_tests.lib import launch
from cocotb_tests.lib.fifo import Queue


@launch.simulators()
@pytest.mark.parametrize("width", [1, 32, 200])
def test_passes_words_under_all_stalls(simulator, width):
    launch.run(
        Queue(unsigned(width), 4),
        name="lib_queue",
        tb="cocotb_tests.lib.tb_fifo",
        parameters={"width": width, "count": 200},
        simulators=simulator,
    )
