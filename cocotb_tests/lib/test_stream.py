"""The stream agents carry words under all stalls, and notice every broken rule, on both simulators."""

import pytest
from amaranth.hdl import signed, unsigned

from cocotb_tests.lib import launch
from cocotb_tests.lib.fifo import FAULTS, Queue, UnknownSource

TB = "cocotb_tests.lib.tb_fifo"


@launch.simulators()
@pytest.mark.parametrize("width", [1, 32, 200])
def test_passes_words_under_all_stalls(simulator, width):
    outcomes = launch.run(
        Queue(unsigned(width), 4),
        name="lib_queue",
        tb=TB,
        parameters={"width": width, "count": 200},
        simulators=simulator,
        tests="passes_words|latency|reset|monitor|timeout",
    )
    assert len(outcomes) == 13


@launch.simulators()
def test_converts_shapes(simulator):
    launch.run(Queue(signed(9), 4), name="lib_queue", tb=TB, simulators=simulator, tests="signed_words")


@launch.simulators()
@pytest.mark.parametrize("fault", FAULTS)
def test_notices_broken_rules(simulator, fault):
    message = {
        "unstable": r"stream o, cycle \d+: payload changed from [01]+ to [01]+ before its transfer",
        "retract": r"stream o, cycle \d+: valid fell before the transfer",
        "drop": r"stream o, cycle \d+: no transfer for 200 cycles, \d+ of 100 done \(valid=0 ready=1\)",
    }[fault]
    with pytest.raises(AssertionError, match=message):
        launch.run(
            Queue(unsigned(8), 4, fault),
            name="lib_queue_broken",
            tb=TB,
            parameters={"width": 8},
            simulators=simulator,
            tests="stalled_output",
        )


@launch.simulators("icarus")  # Verilator has no unknown values
@pytest.mark.parametrize("part", ["valid", "payload", "ready"])
def test_notices_unknown_values(simulator, part, tmp_path):
    source = tmp_path / "unknown.v"
    source.write_text(UnknownSource.VERILOG)
    with pytest.raises(AssertionError, match=rf"stream {'i' if part == 'ready' else 'o'}, cycle \d+: {part} is [01]*X"):
        launch.run(
            UnknownSource(part), name="lib_unknown", tb=TB, simulators=simulator, tests="idle_streams", sources=[source]
        )


@launch.simulators()
def test_streams_stay_cheap(simulator):
    """The limits are a fraction of what an idle machine reaches: they catch work per cycle, not a busy machine."""
    minimum = {"icarus": 3_000, "verilator": 15_000}[simulator]
    launch.run(
        Queue(unsigned(64), 4),
        name="lib_queue",
        tb=TB,
        parameters={"width": 64, "count": 20_000, "minimum": minimum},
        simulators=simulator,
        tests="speed",
    )
