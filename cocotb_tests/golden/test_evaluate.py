"""The evaluation's account, scoring, command lines, plot and search, on a tiny random model."""

import json
import random
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from cocotb_tests.golden.tiny_model import write_tiny_model
from golden import evaluate, tune
from golden.account import Account, check_bursts
from golden.errors import UserError
from golden.model import load_model, prefill
from golden.peers import METHODS, make_peer
from golden.plots import pareto_front
from golden.scoring import Reference, score, steps
from golden.settings import KvoSettings

ALL = [*METHODS, "kvo-dsq", "kvo"]
KNOWN = ", ".join([*ALL, *evaluate.INTEGER_METHODS])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, two texts, and a cache of its own."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_tiny_model(folder / "tiny.gguf")
    words = random.Random(3)
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text("".join(words.choice("abcdefgh \n") for _ in range(600)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVO_CACHE", str(folder / "cache"))
        yield folder


def run(main, *arguments) -> int:
    """Exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def run_evaluate(place, *arguments) -> int:
    """Exit code of an evaluation of the tiny model, 256 tokens of which 128 scored unless `arguments` say otherwise."""
    common = ["--model", place / "tiny.gguf", "--context", 256, "--scored", 128, "--quiet"]
    return run(evaluate.main, *common, *arguments)


def test_account_adds_pieces_and_rounds_them_to_bursts():
    account = Account(bursts=(64, 32))
    account.fetch(100, 3, 10)
    account.fetch(np.array([256, 257, 0]), 2, np.array([0, 1, 0]))
    account.fetch_bursts(300, 40, {32: 2, 64: 1})
    assert account.read_bits == 300 + 2 * (256 + 257) + 300
    assert account.metadata_bits_read == 30 + 2 + 40
    assert account.burst_bytes == {32: 3 * 32 + 2 * (32 + 64) + 64, 64: 3 * 64 + 2 * (64 + 64) + 64}
    account.offer(10, 2, 8)
    assert account.full_bits == (11 + 12) * 8 * 16
    account.store(100, 20)
    account.stored_elements = 40
    assert (account.stored_bits_per_element, account.metadata_bits_per_element) == (2.5, 0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda account: account.fetch(-1),
        lambda account: account.fetch(8, 1, 9),
        lambda account: account.fetch_bursts(257, 0, {32: 1, 64: 1}),
        lambda account: account.fetch_bursts(8, 9, {32: 1, 64: 1}),
        lambda account: account.store(8, 9),
    ],
)
def test_account_refuses_contradictions(call):
    account = Account()
    with pytest.raises(ValueError, match="bits"):
        call(account)
    assert account == Account()


@pytest.mark.parametrize("bursts", [(), (0,), (48,), (8192,), (-32,)])
def test_impossible_bursts_are_refused(bursts):
    with pytest.raises(UserError):
        check_bursts(bursts)


def test_fp16_scores_as_the_reference(place):
    model = load_model(place / "tiny.gguf")
    reference = Reference.of(model, prefill(model, place / "one.txt", 256, progress=False), 128)
    calls = []
    outcome = score(model, make_peer("fp16"), reference, (32,), lambda: calls.append(1))
    assert outcome.kl.max() < 1e-4 and outcome.top1.all()
    assert outcome.ppl == pytest.approx(outcome.ppl_reference, rel=1e-3)
    assert outcome.account.read_fraction == 1 and outcome.account.stored_bits_per_element == 16
    assert len(calls) == steps(model, 128)


def test_reference_matches_the_model(place):
    model = load_model(place / "tiny.gguf")
    sample = prefill(model, place / "one.txt", 256, progress=False)
    reference = Reference.of(model, sample, 64)
    logits = model.forward(sample.tokens[:-1])[-64:].astype(np.float64)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(64), sample.tokens[-64:]]
    assert np.allclose(reference.nll, expected, atol=1e-4)


class Blind:
    """A method whose attention is zero everywhere and that fetches one bit a query and stores three a layer."""

    name = "blind"

    def open(self, geometry, layer, k, v, block_mass):
        assert k.shape == v.shape == (2, 128, 16) and block_mass.shape == (2, 2, 128)
        return self

    def attend(self, q, k, v, account):
        account.fetch(1, q.shape[1])
        return np.zeros_like(q)

    def stored(self, account):
        account.store(3, 1)


def test_scores_match_their_definitions(place):
    model = load_model(place / "tiny.gguf")
    sample = prefill(model, place / "one.txt", 256, progress=False)
    outcome = score(model, Blind(), Reference.of(model, sample, 128), (32,))

    def log_softmax(logits):
        logits = logits.astype(np.float64)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    x = model.embed(sample.tokens[128:256])
    for layer in range(model.config.layers):
        x = model.finish(layer, x, np.zeros((4, 128, 16), np.float32))
    expected, got = log_softmax(model.forward(sample.tokens[:-1])[128:]), log_softmax(model.logits(x))
    assert np.allclose(outcome.kl, (np.exp(expected) * (expected - got)).sum(axis=1), atol=1e-4)
    assert outcome.kl.mean() > 0.1
    assert np.array_equal(outcome.top1, expected.argmax(axis=1) == got.argmax(axis=1))
    assert outcome.ppl == pytest.approx(np.exp(-got[np.arange(128), sample.tokens[129:]].mean()), rel=1e-4)
    account, layers = outcome.account, model.config.layers
    assert (account.read_bits, account.burst_bytes) == (128 * layers, {32: 32 * 128 * layers})
    assert account.full_bits == layers * sum(range(129, 257)) * 64 * 16
    assert (account.stored_bits, account.stored_metadata_bits) == (3 * layers, layers)
    assert account.stored_elements == layers * 256 * 64


def test_all_methods_rows_table_and_plot(place, capsys):
    out, plot = place / "all.json", place / "all.png"
    texts = f"{place / 'one.txt'},{place / 'two.txt'}"
    assert run_evaluate(place, "--text", texts, "--burst", "16,64", "--json", out, "--plot", plot) == 0
    rows = json.loads(out.read_text())
    assert [(row["method"], row["text"]) for row in rows] == [(m, t) for t in texts.split(",") for m in ALL]
    for row in rows:
        numbers = ["stored_bits", "metadata_bits", "read_fraction", "read_fraction_16", "read_fraction_64", "ppl"]
        numbers += ["ppl_reference", "kl", "top1", "seconds", "metadata_read_fraction", "ppl_change_error"]
        assert all(isinstance(row[key], float) and np.isfinite(row[key]) for key in numbers)
        assert (row["context"], row["scored"], row["model"]) == (256, 128, "tiny")
        assert 0 <= row["metadata_bits"] < row["stored_bits"] <= 17 and 0 <= row["top1"] <= 1
        assert 0 < row["read_fraction"] <= row["read_fraction_16"] <= row["read_fraction_64"] < 1.3
        assert isinstance(row["settings"], dict) and row["kl"] > -1e-6
    assert rows[ALL.index("kvo")]["settings"]["prune"] is True
    assert rows[ALL.index("kvo-dsq")]["settings"]["prune"] is False
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    heads = next(line for line in printed if line.startswith("method"))
    assert "16 B" in heads and "one.txt" in heads and "two.txt" in heads
    assert [line.split()[0] for line in printed[-len(ALL) :]] == ALL


def test_table_shows_means(capsys):
    common = {"method": "m", "stored_bits": 2, "metadata_bits": 1, "read_fraction": 0.1, "read_fraction_32": 0.2}
    rows = [
        {**common, "text": "a", "ppl": 11, "ppl_reference": 10, "kl": 0.1, "top1": 1, "seconds": 2},
        {**common, "text": "b", "ppl": 10, "ppl_reference": 11, "kl": 0.3, "top1": 0.5, "seconds": 3},
    ]
    heads, line = (line.split() for line in evaluate.table(rows).splitlines())
    assert heads == ["method", "stored", "meta", "read", "32", "B", "a", "b", "ppl", "mean", "KL", "top-1", "seconds"]
    assert line == ["m", "2.00", "1.000", "10.00%", "20.00%", "+10.00%", "-9.09%", "+0.00%", "0.20000", "0.750", "5"]


def test_resume_takes_over_finished_rows(place, monkeypatch):
    out, scored = place / "resume.json", []
    real = evaluate.score
    monkeypatch.setattr(evaluate, "score", lambda *args: scored.append(args[1].name) or real(*args))
    common = ["--text", place / "one.txt", "--json", out]
    assert run_evaluate(place, *common, "--method", "fp16,int8") == 0
    before = json.loads(out.read_text())
    assert run_evaluate(place, *common, "--method", "int8,int4", "--resume") == 0
    assert scored == ["fp16", "int8", "int4"]
    assert json.loads(out.read_text())[0] == before[1]
    # Other bursts, other settings and another number of scored tokens are other work.
    assert run_evaluate(place, *common, "--method", "int8,int4", "--resume", "--burst", "64") == 0
    assert run_evaluate(place, *common, "--method", "int8:", "--resume", "--scored", "64") != 0
    assert run_evaluate(place, *common, "--method", "int8", "--resume", "--scored", "64", "--burst", "64") == 0
    assert scored[3:] == ["int8", "int4", "int8"]


def test_interrupted_run_keeps_the_rows_before(place, monkeypatch):
    out, real = place / "interrupted.json", evaluate.score

    def interrupted(model, method, *others):
        if method.name == "int8":
            raise KeyboardInterrupt
        return real(model, method, *others)

    monkeypatch.setattr(evaluate, "score", interrupted)
    assert run_evaluate(place, "--text", place / "one.txt", "--method", "fp16,int8", "--json", out) == 130
    assert [row["method"] for row in json.loads(out.read_text())] == ["fp16"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--method", "fp16,kivi"], f"unknown method 'kivi': there are all, {KNOWN}"),
        (["--method", ","], f"no method given: there are all, {KNOWN}"),
        (["--method", "quest:page=7"], "method 'quest:page=7' is not possible: page must be a divisor of 64, not 7"),
        (
            ["--method", "kvo:group_tokens=32"],
            "group_tokens must be 64 or 128 to score with a language model, not 32",
        ),
        (
            ["--method", "kvo-dsq:group_tokens=128", "--scored", "64"],
            "context less scored tokens must be a multiple of group_tokens=128, not 192",
        ),
        (["--method", "kvo:prune=maybe"], "prune of method 'kvo' must be a value of type bool, not 'maybe'"),
        (["--context", "100"], "the context must be a multiple of 64 tokens, not 100"),
        (["--context", "-64"], "the context must be a multiple of 64 tokens, not -64"),
        (["--scored", "100"], "the number of scored tokens must be a multiple of 64, not 100"),
        (["--scored", "256"], "the number of scored tokens must be below the context of 256, not 256"),
        (["--burst", "32,x"], "--burst takes sizes in bytes separated by commas, not '32,x'"),
        (["--burst", "48"], "a burst size must be a power of two from 1 to 4096 bytes, not 48"),
        (["--resume"], "--resume needs the file that --json names"),
        (["--json", "missing/out.json"], "cannot write missing/out.json: the folder missing does not exist"),
        (["--plot", "out.txt"], "a plot's name must end in .png, .svg, .pdf, not 'out.txt'"),
    ],
)
def test_impossible_command_lines_take_one_sentence(place, capsys, arguments, message):
    assert run_evaluate(place, "--text", place / "one.txt", *arguments) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_groups_of_two_blocks_are_scored(place):
    out, method = place / "wide.json", "kvo:group_tokens=128"
    arguments = ["--text", place / "one.txt", "--context", 512, "--method", method, "--json", out]
    assert run_evaluate(place, *arguments) == 0
    (row,) = json.loads(out.read_text())
    assert row["settings"]["group_tokens"] == 128 and 0 < row["read_fraction"] < 0.5


def test_short_texts_and_long_contexts_take_one_sentence(place, capsys):
    assert run_evaluate(place, "--text", place / "one.txt", "--method", "fp16", "--context", "1024") == 2
    assert run_evaluate(place, "--text", place / "one.txt", "--method", "fp16", "--context", "4096") == 2
    assert run_evaluate(place, "--text", place / "none.txt", "--method", "fp16") == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_broken_file_is_not_resumed_from(place, capsys):
    for text in ("[{]", '{"method": "fp16"}'):
        (place / "broken.json").write_text(text)
        assert run_evaluate(place, "--method", "fp16", "--json", place / "broken.json", "--resume") == 2
        assert "cannot resume from" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["golden.evaluate", "golden.tune"])
def test_help_names_every_option(module):
    shown = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True).stdout
    parser = (evaluate if module == "golden.evaluate" else tune).parser()
    assert all(option in shown for action in parser._actions for option in action.option_strings)
    assert all(action.help for action in parser._actions)


def test_pareto_front():
    points = {"a": (1.0, 0.1), "b": (0.5, 0.2), "c": (0.6, 0.3), "d": (0.1, 0.9), "e": (0.1, 0.8)}
    assert pareto_front(points) == ["e", "b", "a"]


def test_search_space_is_possible():
    fields = asdict(KvoSettings())
    for name, values in tune.SPACE.items():
        assert name in fields and list(values) == sorted(set(values))
        for value in values:
            KvoSettings(**{**fields, name: value})


def test_neighbours_change_one_or_two_fields():
    start = KvoSettings()
    for settings, _ in zip(tune.neighbours(start, random.Random(1)), range(200), strict=False):
        changed = [name for name, value in asdict(settings).items() if value != getattr(start, name)]
        assert len(changed) <= 2
        assert all(getattr(settings, name) in tune.SPACE[name] for name in changed)


def test_search_improves_within_the_limit():
    def run(settings: KvoSettings) -> tune.Trial:
        read = 0.02 + 0.1 * settings.keep_fraction + 0.004 * settings.value_margin
        loss = 0.01 + 0.1 * (settings.keep_fraction - 0.3) ** 2 + (settings.value_margin - 12) ** 2 / 1000
        return {"settings": asdict(settings), "kl": loss, "read": read}

    trials: list[tune.Trial] = []
    tune.search(run, KvoSettings(), trials, limit=0.08, proceed=lambda: len(trials) < 150)
    best = tune.best_trial(trials, 0.08)
    assert trials[0]["settings"] == asdict(KvoSettings())
    assert best is not None and best["read"] <= 0.08 and best["kl"] < 0.7 * trials[0]["kl"]
    assert len({json.dumps(trial["settings"]) for trial in trials}) == len(trials) == 150
    more = trials[:20]
    tune.search(run, KvoSettings(), more, limit=0.08, proceed=lambda: len(more) < 25)
    assert more[:20] == trials[:20] and len(more) == 25


def test_merit_punishes_traffic_above_the_limit():
    within, above = {"kl": 0.02, "read": 0.08}, {"kl": 0.015, "read": 0.09}
    assert tune.merit(within, 0.08) == 0.02 and tune.merit(above, 0.08) > 0.02
    assert tune.best_trial([above], 0.08) is None and tune.best_trial([above, within], 0.08) is within


def run_tune(place, *arguments) -> int:
    """Exit code of a search on the tiny model."""
    common = ["--model", place / "tiny.gguf", "--context", 256, "--scored", 64, "--quiet", "--limit", 1, "--windows", 2]
    files = ["-o", place / "tune" / "best.toml", "--log", place / "tune" / "log.jsonl"]
    return run(tune.main, *common, *files, *arguments)


def test_tune_writes_settings_and_goes_on_from_its_log(place, capsys):
    log = place / "tune" / "log.jsonl"
    assert run_tune(place, "--budget", "0.02") == 0
    first = log.read_text().splitlines()
    log.write_text("\n".join([*first, '{"cut off']))
    assert run_tune(place, "--budget", "0.02") == 0
    lines = log.read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    assert lines[: len(first)] == first and len(lines) > len(first)
    assert len({json.dumps(trial["settings"]) for trial in trials}) == len(trials)
    best = KvoSettings.from_toml(place / "tune" / "best.toml")
    assert asdict(best) == min(trials, key=lambda trial: trial["kl"])["settings"]
    assert f"{len(trials)} trials in" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--measure", "word"], "--measure must be 'exact' or a burst size in bytes, not 'word'"),
        (["--budget", "0"], "--windows, --limit and --budget must be above 0"),
        (["--scored", "65"], "the number of scored tokens must be a multiple of 64, not 65"),
        (["--budget", "0.001", "--limit", "0.001"], "none of 1 trials stays within 0.1% of FP16 traffic: run on"),
    ],
)
def test_impossible_searches_take_one_sentence(place, capsys, arguments, message):
    log = ["--log", place / "refused.jsonl"]
    assert run_tune(place, *log, *arguments) == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_search_refuses_groups_that_are_no_whole_blocks(place, capsys):
    (place / "start.toml").write_text("group_tokens = 96")
    assert run_tune(place, "--start", place / "start.toml") == 2
    message = "group_tokens must be 64 or 128 to score with a language model, not 96"
    assert capsys.readouterr().err == f"error: {message}\n"
