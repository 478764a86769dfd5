"""The page and the trace of runs: spans from events, numbers by hand, and what a browser makes of the page."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise, product

import pytest

from rtl.control._event_log import EventKind
from sim import report
from sim.report import Span, lanes, page, trace

QUEUES = ("mha", "dsq", "dma", "gemm0", "gemm1")
READ = {"gemm0": 900_000, "gemm1": 900_000, "commands": 30_000}
STAGES = ("qkv", "attention_output", "gate_up", "down")


@dataclass
class Drawing:
    """Events of a made-up run: queues work one behind the other."""

    events: list = field(default_factory=list)
    tags: dict = field(default_factory=dict)
    clock: dict = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))

    def add(self, queue, after, cycles, *tag):
        """A command that waits until ``after``; returns when it is done."""
        number = self.tags.setdefault(tag, len(self.tags))
        begin = max(after, self.clock[queue])
        if begin > self.clock[queue]:
            self.events.append([self.clock[queue], QUEUES.index(queue), 2, number])
        self.events += [[begin, QUEUES.index(queue), 0, number], [begin + cycles, QUEUES.index(queue), 1, number]]
        self.clock[queue] = begin + cycles
        return begin + cycles

    def run(self, name, **more):
        cycles = max(self.clock.values())
        events, tags = sorted(self.events), {str(number): list(tag) for tag, number in self.tags.items()}
        spans = lanes({"queue_names": QUEUES, "events": events, "tags": tags})
        busy = {queue: sum(span.end - span.start for span in own) for queue, (own, _) in spans.items()}
        return {
            "name": name,
            "schedule": name,
            "kv": "dsq+hcap",
            "cycles": cycles,
            "tokens": 48,
            "queues": {q: {"busy": busy[q], "waiting": 0, "idle": cycles - busy[q]} for q in QUEUES},
            "queue_names": list(QUEUES),
            "port": 0.75,
            "bus": 0.6,
            "read_bytes": {**READ, "attention": 2_000_000, "scans ahead": 600_000},
            "write_bytes": {"dma": 20_000, "forks": 0},
            "operations": 48 * 600_000,
            "peak_operations": 1024,
            "peak_bytes": 128,
            "clock_mhz": 250,
            "events": events,
            "tags": tags,
            **more,
        }


def made_up(name, batches, attending=400, **more):
    """Twelve tokens of four sequences in so many sub-batches."""
    drawing, done = Drawing(), [0] * batches
    attended = [0] * batches

    def project(batch, stage, after, cycles):
        return max(drawing.add(f"gemm{n}", after, cycles // batches, batch, stage, None, None) for n in range(2))

    for token in range(13):
        for batch in range(batches):
            if token:
                for stage in STAGES[1:]:
                    attended[batch] = project(batch, stage, attended[batch], 900)
                done[batch] = drawing.add("dma", attended[batch], 60, batch, "store", None, None)
            if token < 12:
                projected = project(batch, "qkv", drawing.add("dma", done[batch], 60, batch, "load", None, None), 700)
                appended = drawing.add("dsq", projected, 90, batch, "append", batch, 0)
                for sequence, head in product(range(4 // batches), range(2)):
                    tag = batch, "attend", 4 // batches * batch + sequence, head
                    attended[batch] = drawing.add("mha", appended, attending, *tag)
    return drawing.run(name, **more)


@pytest.fixture(scope="module")
def results():
    dense = {**READ, "attention": 9_000_000}
    return {
        "preset": "<smollm2>",
        "batch": 4,
        "context": 4096,
        "runs": [
            made_up("serial, dense", 1, attending=1200, read_bytes=dense, operations=48 * 900_000),
            made_up("serial", 1),
            made_up("interleaved", 2),
        ],
    }


class Tree(HTMLParser):
    """Elements of a page: name, classes and attributes, and texts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag, kind):
        return sum(name == tag and kind in (a.get("class") or "").split() for name, a in self.elements)


def browse(folder, text, script="", *options):
    """The page after its scripts and ``script`` have run, and what it told the console."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing, which draws the page: run 'make setup' as root, or install it"
    file = folder / "page.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [
        chromium,
        *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", "--window-size=1280,1500"),
        *options,
        file.as_uri(),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return result.stdout, re.findall(r":CONSOLE[:(]\S* ?(.*)", result.stderr)


def drawn_lanes(*events, queues=("mha", "gemm0")):
    return lanes({"queue_names": queues, "events": events, "tags": {}})


def test_commands_follow_each_other():
    """One that begins while another of its queue runs is drawn behind it; waits end with a command."""
    made = drawn_lanes(
        (5, 0, 2, 7),
        (15, 0, 0, 7),
        (17, 0, 0, 8),
        (25, 1, 0, 9),
        (35, 0, 1, 7),
        (50, 0, 1, 8),
        (51, 0, 2, 9),
        (55, 1, 1, 9),
        (65, 0, 3, 9),
    )
    assert made["mha"] == ([Span(10, 10, 30, 7), Span(12, 30, 45, 8)], [(0, 10), (46, 60)])
    assert made["gemm0"] == ([Span(20, 20, 50, 9)], [])
    assert drawn_lanes() == {"mha": ([], []), "gemm0": ([], [])}


def test_lost_events_take_no_others_along():
    events = [(0, 0, 0, 5), (2, 0, 0, 6), (9, 0, 1, 6), (10, 0, 1, 4), (11, 0, 0, 7), (12, 0, 1, 7)]
    assert drawn_lanes(*events)["mha"][0] == [Span(2, 2, 9, 6), Span(11, 11, 12, 7)]


def test_times_go_on_beyond_32_bits():
    events = [(2**32 - 5, 0, 0, 1), (3, 0, 1, 1), (8, 0, 0, 2), (9, 0, 1, 2)]
    assert [(span.start, span.end) for span in drawn_lanes(*events)["mha"][0]] == [(0, 8), (13, 14)]


def test_kinds_are_those_of_the_hardware():
    assert [kind.name.lower() for kind in EventKind] == list(report.KINDS)
    assert [kind.value for kind in EventKind] == [0, 1, 2, 3]


def test_trace_has_all_commands(results):
    made = json.loads(json.dumps(trace(results)))
    names = {e["args"]["name"] for e in made["traceEvents"] if e["name"] == "process_name"}
    assert names == {"serial, dense", "serial", "interleaved"}
    spans = [e for e in made["traceEvents"] if e["ph"] == "X" and e["pid"] == 3 and e["cat"] != "wait"]
    assert len(spans) == sum(kind == 1 for _, _, kind, _ in results["runs"][2]["events"])
    attend = next(e for e in spans if e["cat"] == "attend")
    assert attend["name"] == "attend A" and attend["args"]["sequence"] == attend["args"]["head"] == 0
    assert attend["dur"] == 400 / 250
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    own = defaultdict(list)
    for e in made["traceEvents"]:
        if e["ph"] == "X":
            own[threads[e["pid"], e["tid"]].split()[0], e["pid"], e["tid"]].append((e["ts"], e["dur"]))
    assert {name for name, _, _ in own} == set(QUEUES)
    assert all(a[0] + a[1] <= b[0] + 1e-6 for times in own.values() for a, b in pairwise(sorted(times)))


def test_page_needs_nothing_else(results):
    text = page(results)
    tree = Tree(text)
    assert not {name for _, attributes in tree.elements for name in attributes} & {"src", "href"}
    assert set(re.findall(r"\w+://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "url(" not in text and "<smollm2>" not in text


def test_browser_draws_the_page(results, tmp_path):
    text, console = browse(tmp_path, page(results), "", "--dump-dom")
    assert console == []
    tree = Tree(text)
    assert tree.count("rect", "lane") == len(QUEUES) and tree.count("circle", "point") == 3
    assert tree.count("rect", "span") > 100 and tree.count("line", "waits") > 10
    assert tree.count("rect", "bytes") == 4 + 5 + 5
    assert tree.count("polyline", "roof") == 1
    drawn = {attributes.get("data-batch") for name, attributes in tree.elements if name == "rect"} - {None}
    assert drawn == {"0"}
    texts = set(tree.texts)
    assert {"serial, dense", "interleaved", "mha", "gemm1", "operations per byte", "batch A"} <= texts
    first, last = results["runs"][0], results["runs"][2]
    assert {f"{first['cycles']:,}", f"{first['cycles'] / last['cycles']:.2f}x", "60.0%", "75.0%"} <= texts
    assert "1.00x" in texts and "0.410x" in texts and "dma (written)" in texts and "forks (written)" not in texts


def test_browser_reacts(results, tmp_path):
    """Another run, zoom by buttons, keys and wheel, moving, tips, and the other theme."""
    script = """{
    const told = [], count = (what) => document.querySelectorAll(what).length;
    const ticks = () => [...document.querySelectorAll("#timeline .tick")].map((tick) => tick.textContent).join(" ");
    const place = document.getElementById("timeline");
    document.querySelectorAll("#choice button")[2].click();
    told.push(new Set([...document.querySelectorAll("#timeline .span")].map((span) => span.dataset.batch)).size);
    const all = ticks();
    for (const act of [
      () => document.getElementById("zoom-in").click(),
      () => place.dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true})),
      () => place.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true})),
      () => place.dispatchEvent(new WheelEvent("wheel", {ctrlKey: true, deltaY: -1, clientX: 600, bubbles: true})),
      () => place.dispatchEvent(new MouseEvent("dblclick", {clientX: 500, bubbles: true})),
    ]) { const before = ticks(); act(); told.push(ticks() !== before); }
    told.push(count("#timeline .inside") > 0);
    const tip = document.getElementById("tip"), move = new PointerEvent("pointermove", {clientX: 300, clientY: 300});
    document.querySelector("#timeline .span").dispatchEvent(move);
    told.push(!tip.hidden && tip.textContent.includes("cycles"));
    document.getElementById("zoom-all").click();
    told.push(ticks() === all);
    const before = document.documentElement.dataset.theme;
    document.getElementById("theme").click();
    told.push(document.documentElement.dataset.theme !== before);
    document.body.dataset.told = JSON.stringify(told);
    }"""
    text, console = browse(tmp_path, page(results), script, "--dump-dom")
    assert console == []
    told = next(attributes["data-told"] for name, attributes in Tree(text).elements if name == "body")
    assert json.loads(told) == [2] + [True] * 9


def test_browser_takes_a_run_without_events(results, tmp_path):
    bare = {**results["runs"][0], "events": [], "events_lost": True}
    text, console = browse(tmp_path, page({**results, "runs": [bare]}), "", "--dump-dom")
    tree = Tree(text)
    assert console == [] and tree.count("rect", "lane") == len(QUEUES) and tree.count("rect", "span") == 4
    assert "hidden" not in next(attributes for _, attributes in tree.elements if attributes.get("id") == "lost")


def test_console_of_a_broken_page_is_noticed(results, tmp_path):
    _, console = browse(tmp_path, page(results).replace("startTimeline();", "startTimeLine();"), "", "--dump-dom")
    assert len(console) == 1 and "startTimeLine is not defined" in console[0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_is_not_empty(results, tmp_path, theme):
    """In each theme the page is drawn in its own colours."""
    picture = tmp_path / f"{theme}.png"
    text = page(results).replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    browse(tmp_path, text, "", f"--screenshot={picture}")
    from matplotlib.image import imread

    pixels = imread(picture)[..., :3]
    colours = {tuple((pixel * 255).round().astype(int)) for pixel in pixels[::7, ::7].reshape(-1, 3)}
    assert len(colours) > 12
    assert (pixels.mean() > 0.8) == (theme == "light") and (pixels.mean() < 0.3) == (theme == "dark")


def run_main(*arguments):
    with pytest.raises(SystemExit) as caught:
        report.main([str(argument) for argument in arguments])
    return caught.value.code


def test_command_writes_both(results, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results))
    made = tmp_path / "report.html", tmp_path / "trace.json"
    assert run_main(tmp_path / "results.json", "--html", made[0], "--trace", made[1]) == 0
    assert made[0].read_text() == page(results)
    assert json.loads(made[1].read_text()) == json.loads(json.dumps(trace(results)))


def test_command_refuses_what_is_no_result(results, tmp_path, capsys):
    (tmp_path / "bad.json").write_text("[1]")
    (tmp_path / "good.json").write_text(json.dumps(results))
    for arguments, message in (
        ([tmp_path / "good.json"], "give --html, --trace or both"),
        ([tmp_path / "none.json", "--html", tmp_path / "a"], "cannot read"),
        ([tmp_path / "bad.json", "--html", tmp_path / "a"], "holds no results of runs"),
        ([tmp_path / "good.json", "--html", tmp_path / "none" / "a"], "cannot write"),
    ):
        assert run_main(*arguments) == 2
        assert message in capsys.readouterr().err
