"""Settings that hold for all tests: one seed per session, shown at its start."""

import os

import pytest

from cocotb_tests.lib.environment import seed
from sim.simulators import selected_simulators


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed before worker processes start, so that all of them inherit it."""
    try:
        os.environ["SEED"] = str(seed())
        selected_simulators()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> str:
    """Tell how to repeat this session."""
    return f"simulators: {', '.join(selected_simulators())}; seed: {seed()} (repeat with SEED={seed()})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat the seed at the end, where it is read after a failure."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"seed: {seed()} (repeat with SEED={seed()})")
