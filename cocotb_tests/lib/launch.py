"""Runs a cocotb module on an Amaranth component: emission, build, simulation and the verdict. For pytest files."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from amaranth.lib import wiring

from cocotb_tests.lib.environment import PARAMETERS_VARIABLE, seed
from rtl.emit import verilog
from sim.simulators import (
    ROOT,
    SIMULATORS,
    WAVE_FILES,
    build,
    build_fingerprint,
    selected_simulators,
    simulate,
    waves_wanted,
)

__all__ = ["Outcome", "run", "simulators"]

BUILD = ROOT / "build"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One cocotb test on one simulator."""

    simulator: str
    test: str
    failure: str | None
    seconds: float
    sim_ns: float


def simulators(*names: str) -> pytest.MarkDecorator:
    """Mark a test to run once per simulator, named in its argument `simulator`.

    These are the given ones (both by default), as far as the environment variable SIM selects them.
    """
    unknown = set(names) - set(SIMULATORS)
    if unknown:
        raise ValueError(f"simulators are {', '.join(SIMULATORS)}, not {', '.join(sorted(unknown))}")
    return pytest.mark.parametrize("simulator", [s for s in selected_simulators() if s in (names or SIMULATORS)])


def run(
    component: wiring.Component,
    *,
    name: str,
    tb: str,
    parameters: dict[str, Any] | None = None,
    simulators: str | Sequence[str] | None = None,
    tests: str | None = None,
    sources: Sequence[Path] = (),
) -> list[Outcome]:
    """Run the cocotb tests in module `tb` on `component`; raise AssertionError with the messages of those that fail.

    Parameters
    ----------
    component : the design; emitted as a module called `top`
    name : names the build directory and the results, such as `dsq_quantizer`
    tb : cocotb module, such as `cocotb_tests.dsq.tb_quantizer`
    parameters : a JSON-able dictionary, which `cocotb_tests.lib.params()` returns inside the simulation
    simulators : one or several of `icarus`, `verilator`; those that the variable SIM selects by default
    tests : regular expression that selects cocotb tests by name; all by default
    sources : further Verilog files
    """
    if simulators is None:
        simulators = selected_simulators()
    elif isinstance(simulators, str):
        simulators = [simulators]
    text = verilog(component, name="top")
    outcomes = []
    for simulator in simulators:
        outcomes += _run_one(text, name, tb, parameters or {}, simulator, tests, sources)
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise AssertionError("\n\n".join(f"{o.test} on {o.simulator}: {o.failure}" for o in failed))
    return outcomes


def _run_one(
    text: str,
    name: str,
    tb: str,
    parameters: dict[str, Any],
    simulator: str,
    tests: str | None,
    sources: Sequence[Path],
) -> list[Outcome]:
    waves = waves_wanted()
    content = [text, build_fingerprint(simulator), *(path.read_text() for path in sources)]
    directory = BUILD / "sim" / f"{name}-{_digest(*content)}" / (simulator + ("-waves" if waves else ""))
    directory.mkdir(parents=True, exist_ok=True)
    design = directory / "top.v"
    if not design.exists():
        scratch = directory / f"top.v.{os.getpid()}"
        scratch.write_text(text)
        scratch.replace(design)
    build([*sources, design], toplevel="top", simulator=simulator, directory=directory, waves=waves)

    encoded = json.dumps(parameters, sort_keys=True)
    case = _digest(tb, encoded, str(tests), os.environ.get("PYTEST_CURRENT_TEST", ""))
    run_directory = directory / f"run-{case}"
    results = BUILD / "junit" / f"{name}-{simulator}-{case}.xml"
    print(f"{name} on {simulator}: seed {seed()}, parameters {encoded}")
    if node := os.environ.get("PYTEST_CURRENT_TEST"):
        print(f"reproduce: make sim SIM={simulator} SEED={seed()} TEST='{re.sub(r' [(][a-z]+[)]$', '', node)}'")
    log = simulate(
        tb,
        toplevel="top",
        simulator=simulator,
        build_directory=directory,
        run_directory=run_directory,
        results=results,
        environment={
            PARAMETERS_VARIABLE: encoded,
            "KVO_SIMULATOR": simulator,
            "PYTHONHASHSEED": "0",
            "SEED": str(seed()),
            "COCOTB_LOG_LEVEL": os.environ.get("COCOTB_LOG_LEVEL", "INFO"),
            "COCOTB_ANSI_OUTPUT": "0",
        },
        seed=seed(),
        test_filter=tests,
        waves=waves,
    )
    if waves:
        print(f"waves: {(run_directory / WAVE_FILES[simulator]).relative_to(ROOT)}")
    outcomes = _read_results(results, simulator)
    if not outcomes:
        raise AssertionError(f"{tb} has no test{f' that matches {tests!r}' if tests else ''}; log: {log}")
    if any(outcome.failure is not None for outcome in outcomes):
        print(f"log: {log.relative_to(ROOT)}", file=sys.stderr)
    return outcomes


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _read_results(path: Path, simulator: str) -> list[Outcome]:
    outcomes = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            continue
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        failure = None
        if problem is not None:
            failure = "\n".join(part.strip() for part in (problem.get("message"), problem.text) if part)
            failure = failure or "failed without a message"
        outcomes.append(
            Outcome(
                simulator=simulator,
                test=case.get("name", "?"),
                failure=failure,
                seconds=float(case.get("time", 0)),
                sim_ns=float(case.get("sim_time_ns", 0)),
            )
        )
    return outcomes
