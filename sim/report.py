"""Pictures of runs on the accelerator: a trace for Perfetto and a page with timeline, roofline and traffic."""

import argparse
import html
import json
import re
import string
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from golden.errors import UserError, main_guard

__all__ = ["Span", "lanes", "main", "page", "trace", "write_report"]

PAGE = Path(__file__).with_name("page")
#: kinds of events, by number
KINDS = ("begin", "end", "wait", "error")
#: events carry so many bits of the time
_TIME = 1 << 32


class Span(NamedTuple):
    """A command: until ``start`` the one before it in its queue was not done, though it had begun."""

    begin: int
    start: int
    end: int
    tag: int


def lanes(run: Mapping[str, Any]) -> dict[str, tuple[list[Span], list[tuple[int, int]]]]:
    """Of each queue the commands, one behind the other, and the times of waiting for a semaphore.

    Commands of a queue end in the order in which they begin. Of lost events neither begin nor end is shown.
    """
    names = list(run["queues"])
    begun: dict[str, deque[tuple[int, int]]] = {name: deque() for name in names}
    made: dict[str, tuple[list[Span], list[tuple[int, int]]]] = {name: ([], []) for name in names}
    waiting: dict[str, int] = {}
    last = rounds = 0
    for time, queue, kind, tag in run["events"]:
        rounds += _TIME if time < last else 0
        last, now = time, time + rounds
        name = queue if isinstance(queue, str) else names[queue]
        what = kind if isinstance(kind, str) else KINDS[kind]
        spans, waits = made[name]
        if what == "wait":
            waiting[name] = now
        elif name in waiting:
            waits.append((waiting.pop(name), now))
        if what == "begin":
            begun[name].append((now, tag))
        elif what == "end":
            while begun[name] and begun[name][0][1] != tag:
                begun[name].popleft()
            if begun[name]:
                begin, _ = begun[name].popleft()
                start = max(begin, spans[-1].end if spans else 0)
                spans.append(Span(begin, start, now, tag))
    return made


def _meaning(run: Mapping[str, Any], tag: int) -> list[Any]:
    """Sub-batch, stage, sequence, head; JSON turns the keys into text."""
    tags = run["tags"]
    found = tags.get(tag, tags.get(str(tag))) if isinstance(tags, Mapping) else tags[tag]
    return list(found) if found is not None else [0, f"tag {tag}", None, None]


def _letter(batch: int) -> str:
    return string.ascii_uppercase[batch] if batch < 26 else str(batch)


def trace(results: Mapping[str, Any]) -> dict[str, Any]:
    """All runs as a trace in Chrome's JSON format, which ui.perfetto.dev opens: a process a run, a thread a queue.

    Times are microseconds of ``clock_mhz``, or cycles where the results do not tell it.
    """
    clock = results.get("clock_mhz") or 1
    events: list[dict[str, Any]] = []

    def times(begin: int, end: int) -> dict[str, float]:
        return {"ts": begin / clock, "dur": (end - begin) / clock}

    for pid, run in enumerate(results["runs"], 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": run["name"]}})
        for number, (name, (spans, waits)) in enumerate(lanes(run).items(), 1):
            place, waiting = ({"pid": pid, "tid": tid} for tid in (2 * number, 2 * number + 1))
            for thread, called in ((place, name), (waiting, f"{name} waits")):
                events.append({"ph": "M", "name": "thread_name", **thread, "args": {"name": called}})
                events.append({"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": thread["tid"]}})
            for begin, start, end, tag in spans:
                batch, stage, sequence, head = _meaning(run, tag)
                told = {"batch": _letter(batch), "sequence": sequence, "head": head, "begin": begin}
                arguments = {key: value for key, value in told.items() if value is not None}
                named = {"name": f"{stage} {_letter(batch)}", "cat": stage}
                events.append({"ph": "X", **named, **place, **times(start, end), "args": arguments})
            for begin, end in waits:
                events.append({"ph": "X", "name": "waits", "cat": "wait", **waiting, **times(begin, end)})
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clock_mhz": str(clock)}}


def _busy(run: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Mean share of busy cycles of some queues."""
    counted = [run["queues"][name] for name in names if run["queues"][name]]
    if not counted:
        return None
    return sum(queue["busy"] for queue in counted) / (len(counted) * max(run["cycles"], 1))


def _drawn(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the page has of a run."""
    own = lanes(run)
    used = sorted({span.tag for spans, _ in own.values() for span in spans})
    places = {tag: n for n, tag in enumerate(used)}
    cores = [name for name in own if name.startswith("gemm")]
    dram = run.get("dram_busy")
    return {
        "name": run["name"],
        "config": {name: str(value) for name, value in run.get("config", {}).items()},
        "cycles": run["cycles"],
        "tokens": run["tokens"],
        "operations": run.get("operations"),
        "roof": run.get("roof"),
        "bytes": _families(run["bytes"]),
        "total_bytes": sum(run["bytes"].values()),
        "use": {
            "mha": _busy(run, [name for name in own if name == "mha"]),
            "gemm": _busy(run, cores),
            "dram": None if dram is None else dram / max(run["cycles"], 1),
        },
        "tags": [_meaning(run, tag) for tag in used],
        "lanes": [
            {
                "name": name,
                "busy": _busy(run, [name]),
                "spans": [[start, end, places[tag], begin] for begin, start, end, tag in spans],
                "waits": [list(wait) for wait in waits],
            }
            for name, (spans, waits) in own.items()
        ],
    }


def _families(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of requesters that differ in their number alone are added."""
    made: Counter[str] = Counter()
    for name, size in sizes.items():
        made[name.rstrip(string.digits + " ")] += size
    return dict(made)


def page(results: Mapping[str, Any]) -> str:
    """One HTML page that needs nothing else: runs, timeline, roofline, bytes by requester.

    results: ``title``, ``clock_mhz`` (optional) and ``runs``, each of them with

    - ``name``, ``config`` (what distinguishes it, name to value), ``cycles``, ``tokens``;
    - ``queues``: name to ``busy``, ``waiting``, ``idle`` cycles (or nothing), in the order of their numbers;
    - ``events``: ``[time, queue, kind, tag]`` in their order, queue and kind by number or name, see `KINDS`;
    - ``tags``: tag to ``[sub_batch, stage, sequence, head]``, the latter two None where it serves several;
    - ``bytes``: requester to bytes; ``dram_busy``: cycles in which memory moved data (optional);
    - ``operations``: multiply-accumulates, and ``roof``: ``operations`` and ``bytes`` a cycle at most (both optional).
    """
    runs = [_drawn(run) for run in results["runs"]]
    totals: Counter[str] = Counter()
    for run in runs:
        totals.update(run["bytes"])
    batches = max((tag[0] for run in runs for tag in run["tags"]), default=0)
    drawn = {
        "runs": runs,
        "requesters": [name for name, _ in totals.most_common()],
        "letters": [_letter(batch) for batch in range(batches + 1)],
    }
    parts = {
        "title": html.escape(str(results.get("title", "Runs on the accelerator"))),
        "style": (PAGE / "report.css").read_text(encoding="utf-8").rstrip(),
        "script": (PAGE / "report.js").read_text(encoding="utf-8").rstrip(),
        # Nothing in it may end the element.
        "data": json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], (PAGE / "report.html").read_text(encoding="utf-8"))


def write_report(results: Mapping[str, Any], *, html: Path | None = None, trace_file: Path | None = None) -> None:
    """Write the page and the trace; `UserError` when one cannot be written."""
    for path, make in ((html, page), (trace_file, lambda given: json.dumps(trace(given)))):
        if path is None:
            continue
        try:
            path.write_text(make(results), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.report",
        description="Draws the runs in a file of results: one HTML page with timeline, roofline and bytes by "
        "requester, and a trace that ui.perfetto.dev opens.",
    )
    made.add_argument("results", type=Path, help="file of results (JSON)")
    made.add_argument("--html", type=Path, metavar="FILE", help="write the page")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write the trace")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    if args.html is None and args.trace is None:
        raise UserError("give --html, --trace or both")
    try:
        results = json.loads(args.results.read_text(encoding="utf-8"))
        write_report(results, html=args.html, trace_file=args.trace)
    except OSError as error:
        raise UserError(f"cannot read {args.results}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{args.results} holds no results of runs: {error!r}") from error
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
