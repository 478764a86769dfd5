"""Progress of a simulation, which its test bench keeps in a file."""

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

__all__ = ["watch"]

POLL_SECONDS = 0.2


def watch(run: Callable[[], object], progress: Path, advance: Callable[[int], object]) -> None:
    """Call ``run`` without what it prints; ``advance(n)`` whenever the number in the file ``progress`` has grown by n.

    Raises what ``run`` raises.
    """
    finished = 0
    with ThreadPoolExecutor(1) as worker, redirect_stdout(io.StringIO()):
        job = worker.submit(run)
        while not job.done():
            time.sleep(POLL_SECONDS)
            finished = _advance(progress, finished, advance)
        _advance(progress, finished, advance)
    job.result()


def _advance(progress: Path, before: int, advance: Callable[[int], object]) -> int:
    """Report what has been finished since ``before``; returns how many there are now."""
    try:
        now = int(progress.read_text())
    except (FileNotFoundError, ValueError):  # not begun, or just being written
        return before
    advance(now - before)
    return now
