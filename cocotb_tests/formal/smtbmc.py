"""Runs yosys-smtbmc on a component that contains a design and its properties."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib import wiring

from rtl.emit import run_yosys

__all__ = ["prove"]

_SOLVER = "boolector"
#: memories become registers: the small ones of proofs are faster so
_COMMANDS = """\
read_rtlil design.il
hierarchy -top top
proc
flatten
opt -full
memory_map
opt -full
async2sync
chformal -lower
opt -full
dffunmap
opt_clean
write_smt2 -wires design.smt2"""


def prove(component: wiring.Component, *, cycles: int, induction: bool = False) -> None:
    """Prove all assertions of ``component``; raise AssertionError with the solver's report if one can fail.

    Parameters
    ----------
    component : a design with `Assert` and `Assume`; everything it does not drive is free in each cycle
    cycles : from the start, registers at their initial values, that are searched for a counterexample
    induction : also prove that ``cycles`` cycles without a failure, from any state, are followed by another one: the
        assertions then hold for ever
    """
    with tempfile.TemporaryDirectory(prefix="kvo-formal-") as scratch:
        (Path(scratch) / "design.il").write_text(rtlil.convert(component, name="top"))
        run_yosys(_COMMANDS, directory=scratch)
        environment = _with_tools(Path(scratch))
        for extra in ([], ["-i"]) if induction else ([],):
            done = subprocess.run(
                ["yosys-smtbmc", "--noprogress", "-s", _SOLVER, "-t", str(cycles), *extra, "design.smt2"],
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0 or "Status: PASSED" not in done.stdout:
                raise AssertionError(done.stdout[-4000:])


def _with_tools(directory: Path) -> dict[str, str]:
    """The environment with the prover and its solver on PATH: those of the system or, else, of the YoWASP packages."""
    for name in ("yosys-smtbmc", _SOLVER):
        if shutil.which(name) is None:
            tool = Path(sys.executable).parent / f"yowasp-{name}"
            (directory / name).symlink_to(tool)
            # Its first run compiles it, and tells so where the answers are expected.
            subprocess.run([tool, "--help"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return {**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
