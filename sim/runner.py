"""Runs the simulator tests of one block, or of all, on the chosen simulators: what `make sim` calls."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cocotb_tests.lib.environment import seed
from sim.simulators import ROOT, selected_simulators

__all__ = ["find_tests", "main"]


def find_tests(name: str) -> list[str]:
    """Return the pytest arguments for a name: none for all tests.

    A name is `dsq.quantizer`, `quantizer`, a directory such as `dsq`, or a pytest path.
    """
    if not name:
        return ["cocotb_tests"]
    if "::" in name or name.endswith(".py"):
        return [name]
    tests = sorted(path.relative_to(ROOT / "cocotb_tests") for path in (ROOT / "cocotb_tests").rglob("test_*.py"))
    names = {".".join((*path.parent.parts, path.stem.removeprefix("test_"))): path for path in tests}
    wanted = name.replace("/", ".").removeprefix("cocotb_tests.")
    found = [path for known, path in names.items() if known == wanted]
    found = found or [path for known, path in names.items() if known.startswith(wanted + ".")]
    found = found or [path for known, path in names.items() if known.split(".")[-1] == wanted]
    if not found:
        raise ValueError(f"no test is called {name!r}; the names are {', '.join(names)}")
    return [str(Path("cocotb_tests") / path) for path in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of `make sim`."""
    parser = argparse.ArgumentParser(
        prog="python -m sim.runner", description="Run the simulator tests of one block, or of all blocks."
    )
    parser.add_argument("--test", default="", help="block such as dsq.quantizer, quantizer or dsq; default: all")
    parser.add_argument("--sim", default="", help="icarus, verilator or both (default)")
    parser.add_argument("--seed", default="", help="integer; default: a random one, printed")
    parser.add_argument("--waves", default="", help="1 writes a wave file for each simulation")
    parser.add_argument("--jobs", default="1", help="number of tests that run at once")
    options = parser.parse_args(arguments)
    for variable, value in (("SIM", options.sim), ("SEED", options.seed), ("WAVES", options.waves)):
        if value:
            os.environ[variable] = value
    try:
        selected_simulators()
        seed()
        tests = find_tests(options.test)
        if not options.jobs.isdecimal() or int(options.jobs) < 1:
            raise ValueError(f"JOBS must be a positive integer, not {options.jobs!r}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pytest", "-m", "not nightly", "-v", *tests]
    if options.jobs != "1":
        command += ["-n", options.jobs]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
