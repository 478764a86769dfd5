"""The launcher reports what went wrong, and says how to repeat it."""

import pytest
from amaranth.hdl import unsigned

from cocotb_tests.lib import launch
from cocotb_tests.lib.environment import seed
from cocotb_tests.lib.fifo import Queue
from sim.simulators import SimulationError, selected_simulators

TB = "cocotb_tests.lib.tb_fifo"


def _run(**changes):
    arguments = {"name": "lib_queue", "tb": TB, "simulators": "icarus", "parameters": {"width": 8, "count": 20}}
    return launch.run(Queue(unsigned(8), 4), **(arguments | changes))


@launch.simulators("icarus")
def test_prints_how_to_repeat_the_run(simulator, capsys):
    _run(tests="monitor")
    assert f"make sim SIM=icarus SEED={seed()} TEST='cocotb_tests/lib/test_launch.py::" in capsys.readouterr().out


@launch.simulators("icarus")
def test_rejects_selection_without_tests(simulator):
    with pytest.raises(AssertionError, match=r"tb_fifo has no test that matches 'nothing_like_this'"):
        _run(tests="nothing_like_this")


@launch.simulators("icarus")
def test_reports_test_bench_that_does_not_import(simulator):
    with pytest.raises(SimulationError, match=r"(?s)icarus ended without results.*No module named"):
        _run(tb="cocotb_tests.lib.tb_missing")


@launch.simulators()
def test_reports_verilog_that_does_not_build(simulator, tmp_path):
    source = tmp_path / "broken.v"
    source.write_text("module broken (; endmodule\n")
    with pytest.raises(SimulationError, match=rf"(?s){simulator} could not build top: .*broken.v:1"):
        _run(sources=[source], simulators=simulator)


@launch.simulators("icarus")
def test_writes_waves(simulator, monkeypatch, capsys):
    monkeypatch.setenv("WAVES", "1")
    _run(tests="monitor")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("waves: "))
    path = launch.ROOT / line.removeprefix("waves: ")
    assert path.stat().st_size > 0


def test_rejects_unknown_simulator(monkeypatch):
    monkeypatch.setenv("SIM", "modelsim")
    with pytest.raises(ValueError, match=r"^SIM must be icarus, verilator or both, not 'modelsim'$"):
        selected_simulators()
    with pytest.raises(ValueError, match=r"^simulators are icarus, verilator, not modelsim$"):
        launch.simulators("modelsim")
