"""Counters: the start of the simulations."""

import pytest

from cocotb_tests.lib import launch
from rtl.control._counters import Counters


@launch.simulators()
@pytest.mark.parametrize("count", [1, 5, 35])
def test_counters(simulator, count):
    launch.run(
        Counters(count),
        name="control_counters",
        tb="cocotb_tests.control.tb_counters",
        parameters={"count": count, "cycles": 2000},
        simulators=simulator,
    )
