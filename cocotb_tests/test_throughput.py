"""`python -m sim.throughput`: refused options, its workload and its formula."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sim.throughput
from golden.model import load_model, texts
from sim.compiler import compile_layer
from sim.interpreter import Interpreter
from sim.layer_cycles import Formula, Layer, compared, dense_words, extrapolated, fitted, stages
from sim.llama_shape import HIDDEN, ShapeMaker, patterns, spread
from sim.throughput import accelerator, layer_table, main, query_words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1"], "--batch must be from 2 to 256, not 1"),
        (["--context", "40000"], "--context must be from 65 to 32768, not 40000"),
        (["--heads", "0"], "--heads must be from 1 to 256, not 0"),
        (["--ffn", "40"], "--ffn must be a multiple of 16, not 40"),
        (["--sample", "0"], "--sample must be from 1 to 256, not 0"),
        (["--clock", "0"], "clock_mhz must be above 0, at most 2000, not 0.0"),
        (["--json", "/nowhere/x.json"], "cannot write /nowhere/x.json: there is no directory /nowhere"),
    ],
)
def test_refuses_impossible_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_refuses_other_presets(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--preset", "tiny"])
    assert ended.value.code == 2
    assert "--preset" in capsys.readouterr().err


def test_patterns_are_orthogonal():
    x = patterns(20, np.random.default_rng(1)).astype(np.int64)
    assert np.array_equal(x @ x.T, HIDDEN * np.eye(20, dtype=np.int64))


def test_spreads_pairs():
    assert spread(3, 45) == [0, 15, 30]
    assert spread(4, 2) == [0, 0, 1, 1]


@pytest.fixture(scope="module")
def maker():
    return ShapeMaker(accelerator("llama2-7b"), load_model(None), [3, 30], ffn=64)


def test_projection_gives_the_rows_of_the_new_tokens(maker):
    """INT16 rows of q, k and v, nearly: of K and V within what INT8 codes of them show."""
    batch = maker.make([95, 127], 1, kv="dsq+hcap", fused=True)
    assert [[state.tokens for state in heads] for heads in batch.decoder.sequences] == [[95, 95], [127, 127]]
    assert [len(heads[0].closed) for heads in batch.decoder.sequences] == [0, 0]
    step = batch.decoder.step(range(2), batch.x[0], batch.positions[0])
    rows = step.qkv.reshape(2, 3, 2, 128)
    for i, context in enumerate((95, 127)):
        state, query = maker.query(texts.names()[i], context, 1)
        got = rows[i, 0, 1].astype(float)
        assert np.abs(got - query).max() < 0.02 * np.abs(query).max()
        assert np.abs(state.k_codes[-1].astype(int) - batch.decoder.sequences[i][1].k_codes[-1]).max() <= 2
    assert 0.05 < np.abs(step.out).mean() / np.abs(batch.x[0]).mean() < 20


def test_unfused_layer_is_nearly_the_same(maker):
    outs = []
    for fused in (True, False):
        batch = maker.make([95], 1, kv="dense", fused=fused)
        outs.append(batch.decoder.step(range(1), batch.x[0], batch.positions[0]).out.astype(float))
    assert np.abs(outs[0] - outs[1]).max() < 0.05 * np.abs(outs[0]).max()


def test_contexts_of_several_texts_begin_with_whole_groups(maker):
    samples = maker.samples("tech", 8193)
    assert len(samples) == 2
    assert maker.first(samples, 8193) == 8128
    assert maker.first(samples[-1:], 100) == 0


def test_counts_words_of_int8_tokens(maker):
    """What golden reads of a cache of INT8 tokens; padded rows are twice as many words, scales are not."""
    config = maker.config
    batch = maker.make([95], 1, kv="dense", fused=True)
    fetch = batch.decoder.step(range(1), batch.x[0], batch.positions[0]).fetches[0][0]
    for padded in (False, True):
        counted = query_words(config, maker.settings, fetch, padded=padded)
        assert counted == dense_words(config, 96, padded=padded) == 2 * (2 + 1 + 96 * 4 * (1 + padded))


FORMULA = Formula(
    spacing=1.1,
    project=100,
    command=60,
    append=40,
    close=500,
    query={"dense16": (100, 1.1), "dense": (100, 1.1), "dsq+hcap": (300, 1.3)},
)
CONFIG = accelerator("llama2-7b")


def layer(**changes) -> Layer:
    given = {"heads": 2, "ffn": 256, "batch": 20, "kv": "dsq+hcap", "fused": True, "words": 40 * 3000.0}
    return Layer(**{**given, **changes})


def test_counts_what_a_layer_does():
    made = list(stages(CONFIG, layer()))
    kinds = ["dma", "project", "append", "attend", "project", "project", "project", "dma"]
    assert [stage.kind for stage in made] == kinds
    words = sum(stage.words for stage in made if stage.kind == "project")
    columns = 3 * 256 + HIDDEN + 2 * 256 + HIDDEN
    assert words == (HIDDEN * (3 * 256 + 256 + 3 * 256) + 8 * columns) / 32
    assert made[0].words == 20 * HIDDEN * 4 / 32
    # 256 columns on each of three cores, two tiles of rows; their rows come over one port of the scratchpad.
    assert made[1].array == pytest.approx(16 * 2 * HIDDEN + 3 * 16 * 256, rel=0.001)
    closing = [stage for stage in stages(CONFIG, layer(closes=3)) if stage.kind == "close"]
    assert [stage.commands for stage in closing] == [6]


def test_counts_passes_of_their_own():
    assert [stage.kind for stage in stages(CONFIG, layer(fused=False))].count("pass") == 3
    # 20 tokens have 20 * 22016 / 64 blocks of gate and up, more than there are magnitudes for.
    kinds = [stage.kind for stage in stages(CONFIG, layer(fused=False, heads=32, ffn=11008))]
    assert kinds.count("pass") == 2 + -(-20 * 22016 // 64 // (CONFIG.control.scratch_rows - 40))


def test_weights_set_the_pace_when_they_come_slowly():
    """With one tile of rows four cores could take twice as many weights as the bus gives."""
    one = layer(batch=10, heads=32, ffn=11008)
    words = sum(stage.words for stage in stages(CONFIG, one) if stage.kind == "project")
    fast, slow = (Formula(spacing=spacing).parts(CONFIG, one)["project"] for spacing in (1.0, 2.0))
    assert fast == pytest.approx(words, rel=0.02)
    assert slow == pytest.approx(2 * words, rel=0.02)


def test_weights_that_are_read_ahead_are_not_read_twice():
    parts = Formula(spacing=1.0, query={"dsq+hcap": (0, 1)}).parts(CONFIG, layer(heads=32, batch=10))
    words = sum(stage.words for stage in stages(CONFIG, layer(heads=32, batch=10)))
    assert sum(parts.values()) == pytest.approx(words, rel=0.02)
    assert parts["attend"] == 40 * 3000 + 4 * 4 * HIDDEN / 2


def test_schedules_of_the_formula():
    light = layer(words=40 * 30.0)
    assert FORMULA.serial(CONFIG, light) == sum(FORMULA.parts(CONFIG, light).values())
    # Weights are read for each sub-batch, which attention of so few words cannot make up for.
    assert FORMULA.interleaved(CONFIG, light) > FORMULA.serial(CONFIG, light)
    # Attention that leaves the bus idle most of the time can.
    slow = replace(FORMULA, query={"dsq+hcap": (300, 3.0)})
    heavy = layer(words=40 * 30000.0, batch=32)
    assert slow.interleaved(CONFIG, heavy) < slow.serial(CONFIG, heavy)


def row(given: Layer, formula: Formula = FORMULA, schedule: str = "serial", factor: float = 1.0) -> dict:
    """As if the formula were the hardware."""
    parts = {kind: factor * cycles for kind, cycles in formula.parts(CONFIG, given).items()}
    cycles = round(factor * formula.cycles(CONFIG, given, schedule))
    return {"name": str(given.words), "schedule": schedule, "layer": vars(given), "cycles": cycles, "spans": parts}


LAYERS = [
    layer(words=4e5),
    layer(words=1e5, batch=2, closes=2),
    layer(words=9e5, batch=4, ffn=1024),
    layer(words=2e6, kv="dense", fused=False),
    layer(words=3e4, kv="dense", batch=1),
]


def test_finds_the_constants_again():
    found = fitted(CONFIG, [row(given) for given in LAYERS])
    assert (found.append, found.close) == (pytest.approx(40), pytest.approx(500))
    assert found.query["dense"] == pytest.approx((100, 1.1), rel=0.2)
    errors = [entry["error"] for entry in compared(CONFIG, found, [row(given) for given in LAYERS])]
    assert max(map(abs, errors)) < 0.005


def test_extrapolates_ratios():
    made = extrapolated(CONFIG, FORMULA, heads=32, ffn=11008, batch=20, tokens=32736, words=30000.0)
    assert [(entry["kv"], entry["fusion"]) for entry in made] == [
        ("dense16", "off"),
        ("dense", "off"),
        ("dense", "on"),
        ("dsq+hcap", "on"),
    ]
    assert made[0]["over_dense16"] == made[1]["over_dense"] == 1
    last = made[-1]
    assert last["over_dense16"] == made[0]["cycles"] / last["cycles"]
    assert last["cycles"] == min(last["schedules"].values()) == last["schedules"][last["schedule"]]
    bytes_of_weights = (HIDDEN * 4 * HIDDEN + 3 * HIDDEN * 11008) / 1e6
    assert last["bytes"] / 1e6 == pytest.approx(640 * 30000 * 32 / 1e6 + bytes_of_weights, rel=0.01)
    lines = layer_table(made)
    assert len(lines) == 5 and lines[-1].startswith(f"{last['schedule']}, dsq+hcap, fusion on")


@pytest.mark.parametrize(("factor", "code"), [(1.015, 0), (1.03, 1)])
def test_extrapolates_only_what_agrees(capsys, monkeypatch, tmp_path, factor, code):
    """Checks that are further off than the tolerance end the run, before anything is extrapolated."""
    monkeypatch.setattr(sim.throughput, "FITS", range(len(LAYERS)))
    monkeypatch.setattr(sim.throughput, "sampled_words", lambda *_, **__: [20000, 30000])
    rows = [*(row(given) for given in LAYERS), row(layer(words=5e5), factor=factor)]
    monkeypatch.setattr(sim.throughput, "CHECKS", [None])
    monkeypatch.setattr(sim.throughput, "simulate", lambda *_, **__: rows)
    with pytest.raises(SystemExit) as ended:
        main(["--json", str(tmp_path / "out.json")])
    assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    assert ("error: hardware and formula differ: 500000.0: -" in said.err) == bool(code)
    assert ("extrapolated" in said.out) != bool(code)
    if not code:
        record = json.loads((tmp_path / "out.json").read_text())
        assert record["sampled_words"] == [20000, 30000] and len(record["extrapolated"]) == 4


def test_program_does_what_golden_does(maker):
    """Compiled and carried out with golden functions: the workload is an ordinary layer."""
    batch = maker.make([159, 127], 1, kv="dsq+hcap", fused=True)
    program = compile_layer(maker.config, batch.decoder, batch.x, positions=batch.positions, schedule="serial")
    out = Interpreter(program, batch.decoder, seed=1).run()
    step = batch.decoder.step(range(2), batch.x[0], batch.positions[0])
    assert np.array_equal(out[0], step.out)
