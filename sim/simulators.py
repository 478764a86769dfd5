"""Builds Verilog with Icarus Verilog or Verilator and runs cocotb modules on it."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from cocotb_tools.runner import get_runner

__all__ = [
    "ROOT",
    "SIMULATORS",
    "WAVE_FILES",
    "SimulationError",
    "build",
    "build_fingerprint",
    "selected_simulators",
    "simulate",
    "waves_wanted",
]

ROOT = Path(__file__).resolve().parent.parent
SIMULATORS = ("icarus", "verilator")
# Verilator would need the headers of lz4 and zlib for FST.
WAVE_FILES = {"icarus": "dump.fst", "verilator": "dump.vcd"}
TIMESCALE = ("1ns", "1ps")

# -g2005: with -g2012 Icarus 11 never triggers the `always @*` blocks that yosys writes, and signals stay X.
ICARUS_ARGUMENTS = ["-g2005"]
VERILATOR_ARGUMENTS = [
    "-Wno-fatal",  # lint of generated text has no reader; errors still end the build
    "-fno-merge-cond-motion",  # this optimization takes minutes on wide arrays
    "--output-split",
    "5000",
    "--output-split-cfuncs",
    "500",
]
# What Verilator and the compiler write on the way to the executable: near 200 MB for a build of the accelerator.
VERILATOR_INTERMEDIATES = frozenset((".a", ".cpp", ".d", ".gch", ".h", ".mk", ".o"))
DUMP_MODULE = """\
module kvo_dump;
  initial begin
    $dumpfile("dump.fst");
    $dumpvars(0, {toplevel});
  end
endmodule
"""


class SimulationError(RuntimeError):
    """A build or a run ended without results; the message holds the end of its log."""


def selected_simulators() -> tuple[str, ...]:
    """Return the simulators that the environment variable SIM asks for: one of them, or both by default."""
    choice = os.environ.get("SIM", "").strip() or "both"
    if choice == "both":
        return SIMULATORS
    if choice not in SIMULATORS:
        raise ValueError(f"SIM must be icarus, verilator or both, not {choice!r}")
    return (choice,)


def waves_wanted() -> bool:
    """Tell whether the environment variable WAVES asks for wave files."""
    return os.environ.get("WAVES", "").strip().lower() not in ("", "0", "no", "false")


def build_fingerprint(simulator: str) -> str:
    """Return what, beside the Verilog text, decides the outcome of a build."""
    tool = version("verilator") if simulator == "verilator" else ""
    return repr((simulator, tool, version("cocotb"), ICARUS_ARGUMENTS, VERILATOR_ARGUMENTS))


@contextmanager
def _environment() -> Iterator[None]:
    """Set what the simulators and their builds need; restores the environment afterwards."""
    saved = dict(os.environ)
    os.environ["PATH"] = f"{ROOT / 'sim' / 'bin'}{os.pathsep}{saved.get('PATH', os.defpath)}"
    os.environ["KVO_PYTHON"] = sys.executable
    # The wheel's build settings for precompiled headers are empty; without this, larger designs fail to link. Also
    # replaces the settings of a make that called us.
    os.environ["MAKEFLAGS"] = f"-j{os.cpu_count() or 1} CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O2"
    if shutil.which("ccache"):
        os.environ["OBJCACHE"] = "ccache"
    # cocotb lets this variable override what its caller says.
    os.environ.pop("WAVES", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, so that parallel test processes do not build the same thing at once."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(sources: Sequence[Path], *, toplevel: str, simulator: str, directory: Path, waves: bool = False) -> None:
    """Build `sources` in `directory`, unless that has been done; the directory's name must depend on their content."""
    stamp = directory / ".built"
    with _locked(directory):
        if stamp.exists():
            return
        runner = _runner(simulator)
        log = directory / "build.log"
        files, arguments = list(sources), list(VERILATOR_ARGUMENTS)
        if simulator == "icarus":
            arguments = list(ICARUS_ARGUMENTS)
            if waves:
                (directory / "kvo_dump.v").write_text(DUMP_MODULE.format(toplevel=toplevel))
                files.append(directory / "kvo_dump.v")
                arguments += ["-s", "kvo_dump"]
        try:
            with _environment():
                runner.build(
                    sources=files,
                    hdl_toplevel=toplevel,
                    build_dir=directory,
                    build_args=arguments,
                    always=True,
                    timescale=TIMESCALE,
                    waves=waves and simulator == "verilator",
                    log_file=log,
                )
        except (RuntimeError, SystemExit) as error:
            raise SimulationError(f"{simulator} could not build {toplevel}: {error}\n{_tail(log)}") from None
        for file in directory.iterdir():
            if simulator == "verilator" and file.suffix in VERILATOR_INTERMEDIATES:
                file.unlink()
        stamp.touch()


def simulate(
    module: str,
    *,
    toplevel: str,
    simulator: str,
    build_directory: Path,
    run_directory: Path,
    results: Path,
    environment: dict[str, str],
    seed: int,
    test_filter: str | None = None,
    waves: bool = False,
) -> Path:
    """Run the cocotb tests of `module` on a finished build; returns the log. Results go to `results` as JUnit XML."""
    runner = _runner(simulator)
    run_directory.mkdir(parents=True, exist_ok=True)
    log = run_directory / "run.log"
    results.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _environment():
            runner.test(
                test_module=module,
                hdl_toplevel=toplevel,
                hdl_toplevel_lang="verilog",
                build_dir=build_directory,
                test_dir=run_directory,
                results_xml=str(results.resolve()),
                extra_env=environment,
                seed=seed,
                test_filter=test_filter,
                waves=waves,
                test_args=["--trace-file", WAVE_FILES[simulator]] if waves and simulator == "verilator" else [],
                log_file=log,
            )
    except (RuntimeError, SystemExit) as error:
        # Failing tests end here too; the caller reads them from the results.
        if not results.exists():
            raise SimulationError(f"{simulator} ended without results: {error}\n{_tail(log)}") from None
    return log


def _runner(simulator: str):
    tool = {"icarus": "iverilog", "verilator": "g++"}[simulator]
    if shutil.which(tool) is None:
        raise SimulationError(f"{tool} is missing, which {simulator} needs: run 'make setup'")
    runner = get_runner(simulator)
    runner.log.setLevel("CRITICAL")
    return runner


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
