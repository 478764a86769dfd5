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

__all__ = ["Span", "lanes", "main", "page", "trace", "write_html", "write_trace"]

PAGE = Path(__file__).with_name("page")
#: kinds of events, by number: `EventKind` in `rtl.control._event_log`
KINDS = ("begin", "end", "wait", "error")
#: members of a run that are shown as its settings
SETTINGS = ("schedule", "kv", "fusion", "layer", "part", "clock_mhz")
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

    Times count from the first event. Commands of a queue end in the order in which they begin; of lost events neither
    begin nor end is shown.
    """
    names = run["queue_names"]
    begun: dict[str, deque[tuple[int, int]]] = {name: deque() for name in names}
    made: dict[str, tuple[list[Span], list[tuple[int, int]]]] = {name: ([], []) for name in names}
    waiting: dict[str, int] = {}
    last = first = run["events"][0][0] if run["events"] else 0
    rounds = 0
    for time, queue, kind, tag in run["events"]:
        rounds += _TIME if time < last else 0
        last, now = time, time + rounds - first
        name, what = names[queue], KINDS[kind]
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
    """Sub-batch, stage, sequence, head."""
    return list(run["tags"].get(str(tag), (0, f"tag {tag}", None, None)))


def _letter(batch: int) -> str:
    return string.ascii_uppercase[batch] if batch < 26 else str(batch)


def trace(results: Mapping[str, Any]) -> dict[str, Any]:
    """All runs as a trace in Chrome's JSON format, which ui.perfetto.dev opens: a process a run, a thread a queue.

    Times are in microseconds.
    """
    events: list[dict[str, Any]] = []

    def times(begin: int, end: int) -> dict[str, float]:
        return {"ts": begin / run["clock_mhz"], "dur": (end - begin) / run["clock_mhz"]}

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
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _busy(run: Mapping[str, Any], names: Sequence[str]) -> float:
    """Mean share of busy cycles of some queues."""
    return sum(run["queues"][name]["busy"] for name in names) / (len(names) * run["cycles"])


def _requesters(run: Mapping[str, Any]) -> dict[str, int]:
    """Bytes read and written by requester; of those that differ in their number alone together."""
    made: Counter[str] = Counter()
    for sizes, kind in ((run["read_bytes"], ""), (run["write_bytes"], " (written)")):
        for name, size in sizes.items():
            made[name.rstrip(string.digits) + kind] += size
    return dict(made)


def _drawn(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the page has of a run."""
    own, sizes = lanes(run), _requesters(run)
    used = sorted({span.tag for spans, _ in own.values() for span in spans})
    places = {tag: n for n, tag in enumerate(used)}
    return {
        "name": run["name"],
        "config": {name: str(run[name]) for name in SETTINGS if name in run},
        "cycles": run["cycles"],
        "tokens": run["tokens"],
        "operations": run["operations"],
        "roof": {"operations": run["peak_operations"], "bytes": run["peak_bytes"]},
        "bytes": sizes,
        "total_bytes": sum(sizes.values()),
        "lost": run.get("events_lost", False),
        "use": {
            "mha": _busy(run, ["mha"]),
            "gemm": _busy(run, [name for name in own if name.startswith("gemm")]),
            "port": run["port"],
            "dram": run["bus"],
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


def page(results: Mapping[str, Any]) -> str:
    """One HTML page that needs nothing else: runs, timeline, roofline, bytes by requester.

    results: ``runs``, as `sim.bench.figures` makes them, ``batch``, ``context`` and ``preset``.
    """
    runs = [_drawn(run) for run in results["runs"]]
    totals: Counter[str] = Counter()
    for run in runs:
        totals.update(run["bytes"])
    batches = max((tag[0] for run in runs for tag in run["tags"]), default=0)
    drawn = {
        "runs": runs,
        "requesters": [name for name, size in totals.most_common() if size],
        "letters": [_letter(batch) for batch in range(batches + 1)],
    }
    title = f"Decoding on {results['preset']}: batch of {results['batch']}, {results['context']:,} tokens of context"
    parts = {
        "title": html.escape(title),
        "style": (PAGE / "report.css").read_text(encoding="utf-8").rstrip(),
        "script": (PAGE / "report.js").read_text(encoding="utf-8").rstrip(),
        # Nothing in it may end the element.
        "data": json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], (PAGE / "report.html").read_text(encoding="utf-8"))


def write_html(results: Mapping[str, Any], path: Path) -> None:
    """Write the page; raises `OSError` when that is impossible."""
    path.write_text(page(results), encoding="utf-8")


def write_trace(results: Mapping[str, Any], path: Path) -> None:
    """Write the trace; raises `OSError` when that is impossible."""
    path.write_text(json.dumps(trace(results)), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m sim.report",
        description="Draws the runs in a file of results: one HTML page with timeline, roofline and bytes by "
        "requester, and a trace that ui.perfetto.dev opens.",
    )
    made.add_argument("results", type=Path, help="what sim.bench has written with --json")
    made.add_argument("--html", type=Path, metavar="FILE", help="write the page")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write the trace")
    return made


def _verb(error: OSError, results: Path) -> str:
    return "read" if error.filename == str(results) else "write"


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parser().parse_args(arguments)
    if args.html is None and args.trace is None:
        raise UserError("give --html, --trace or both")
    try:
        results = json.loads(args.results.read_text(encoding="utf-8"))
        if args.html:
            write_html(results, args.html)
        if args.trace:
            write_trace(results, args.trace)
    except OSError as error:
        raise UserError(f"cannot {_verb(error, args.results)} {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{args.results} holds no results of runs: {error!r}") from error
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
