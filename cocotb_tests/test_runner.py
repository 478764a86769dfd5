"""The command behind `make sim` finds tests by name."""

import pytest

from sim.runner import find_tests, main


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", ["cocotb_tests"]),
        ("lib.stream", ["cocotb_tests/lib/test_stream.py"]),
        ("lib/stream", ["cocotb_tests/lib/test_stream.py"]),
        ("shapes", ["cocotb_tests/lib/test_shapes.py"]),
        ("cocotb_tests/lib/test_stream.py::test_x[1]", ["cocotb_tests/lib/test_stream.py::test_x[1]"]),
    ],
)
def test_finds_tests_by_name(name, found):
    assert find_tests(name) == found


def test_finds_all_tests_of_a_directory():
    assert "cocotb_tests/lib/test_launch.py" in find_tests("lib")
    assert len(find_tests("lib")) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test", "no_such_block"], "error: no test is called 'no_such_block'; the names are "),
        (["--sim", "modelsim"], "error: SIM must be icarus, verilator or both, not 'modelsim'"),
        (["--seed", "seven"], "error: SEED must be an integer, not 'seven'"),
        (["--jobs", "many"], "error: JOBS must be a positive integer, not 'many'"),
    ],
)
def test_rejects_bad_arguments(arguments, message, capsys, monkeypatch):
    for variable in ("SIM", "SEED", "WAVES"):
        monkeypatch.setenv(variable, "")
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(message)
