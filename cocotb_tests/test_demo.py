"""The demonstration on a random model of a few thousand weights: output, files, what it says when something fails."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import golden.kvo_method
import sim.demo
import sim.demo_attention
import sim.demo_parts
from cocotb_tests.golden import tiny_model
from golden.account import Account
from golden.calibrate import calibration_for
from golden.dsq.record import RecordLayout, pack
from golden.dsq.salient import pick_salient
from golden.heads import model_heads
from golden.mha.core import Fetch
from golden.model import load_model, prefill
from golden.model.attention import causal_attention
from golden.settings import default_settings
from sim.attention import DifferenceError
from sim.demo_attention import (
    KINDS,
    attention_of_newest,
    check_caches,
    fetched_by_newest,
    kinds_of_tokens,
)
from sim.demo_groups import (
    check_heads,
    choose_heads,
    closed_groups,
    golden_record,
    golden_rows,
    row_difference,
    word_difference,
)
from sim.demo_parts import PARTS, counted_parts
from sim.demo_plots import rebuilt_values
from sim.demo_rtl import HardwareError, Rebuilt, Records, hardware_config, preset_name
from sim.simulators import SimulationError

CONTEXT, SCORED, HEADS = 320, 64, 2
GROUPS = 3 * HEADS
SETTINGS = replace(default_settings(), bus_bits=32, tile_groups=4)  # a narrow bus builds fast
WORD_BYTES = 4
OUTPUTS = HEADS * 2 * 3 * 2  # modes, queries, query heads


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return tiny_model.write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def sample(model_file, tmp_path_factory):
    """Model, prefill, calibration and settings; their cache folder serves all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVO_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(sim.demo, "default_settings", lambda: SETTINGS)
        model, settings = load_model(model_file), SETTINGS
        calibration = calibration_for(model, settings, context=512, progress=False)
        yield model, prefill(model, "legal", CONTEXT, progress=False), calibration, settings


@pytest.fixture
def run(model_file, sample, tmp_path, capsys):
    """Run the demonstration in this process; returns exit code, output and errors."""

    def demo(*arguments):
        options = ["--model", str(model_file), "--context", str(CONTEXT), "--scored", str(SCORED)]
        options += ["--heads", str(HEADS), "-o", str(tmp_path / "out"), *arguments]
        with pytest.raises(SystemExit) as end:
            sim.demo.main(options)
        return end.value.code, *capsys.readouterr()

    return demo


def test_hardware_and_golden_agree(run, tmp_path):
    code, output, errors = run()
    assert code == 0, errors
    assert f"Hardware and golden agree on {GROUPS} groups and {OUTPUTS} attention outputs." in output
    assert errors == "", "no progress bars outside a terminal"
    figures = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert [row["method"] for row in figures["rows"]] == list(sim.demo.METHODS)
    own, hardware = figures["rows"][-1], figures["hardware"]
    for printed in (f"{100 * own['read_fraction']:.2f}%", f"{own['kl']:.4f}", f"{own['stored_bits']:.2f}"):
        assert printed in output
    assert sum(own["parts"].values()) == pytest.approx(own["read_fraction"])
    assert {"scan", "k_delta", "v_delta", "int8"} <= set(own["parts"]) <= set(PARTS)
    assert hardware["groups"] == GROUPS
    assert hardware["quantizer"]["words_equal"] == GROUPS * hardware["record_bytes"] // WORD_BYTES
    assert hardware["dequantizer"]["elements_equal"] == GROUPS * 2 * 64 * tiny_model.HEAD_DIM
    assert f"at most {hardware['quantizer']['cycles_most']:,}" in output
    attention = figures["attention"]
    assert hardware["heads"] == [[0, 0], [1, 1]] and attention["outputs_equal"] == OUTPUTS
    seen = [(row["layer"], row["kv_head"], row["mode"], row["context"], row["queries"]) for row in attention["rows"]]
    assert seen == [(n, n, mode, CONTEXT, 3) for n in (0, 1) for mode in ("dense", "kvo")]
    for place, (dense, own) in enumerate(zip(attention["rows"][::2], attention["rows"][1::2], strict=True)):
        assert dense["error"] < own["error"] < 0.5 and own["bytes"] < dense["bytes"]
        assert attention["speedups"][place] == dense["cycles"] / own["cycles"]
        for row in (dense, own):
            assert f"{100 * row['error']:.2f}%" in output and f"{row['cycles']:,.0f}" in output
    for plot in ("traffic", "pareto", "group", "attention"):
        assert (tmp_path / "out" / f"{plot}.png").stat().st_size > 10_000


@pytest.fixture
def perfect_blocks(monkeypatch):
    """Golden in place of the simulated quantizer and dequantizer, and one method alone."""

    def compress(groups, config, settings, record_bytes, folder, advance):
        records = [golden_record(group, settings) for group in groups]
        advance(len(groups))
        return Records(records=records, cycles_first=5, cycles=np.full(len(groups) - 1, 4), seconds=0.1)

    def rebuild(groups, records, config, settings, folder, advance):
        rows = [golden_rows(record, group, settings) for record, group in zip(records, groups, strict=True)]
        return Rebuilt(rows=np.stack(rows), cycles=np.full(len(groups), 3), seconds=0.1)

    monkeypatch.setattr(sim.demo, "compress", compress)
    monkeypatch.setattr(sim.demo, "rebuild", rebuild)
    monkeypatch.setattr(sim.demo, "METHODS", ("kvo",))


@pytest.fixture
def perfect_hardware(perfect_blocks, monkeypatch):
    """Golden in place of the attention core too, whose memory must hold golden's records."""

    def simulate(config, heads, modes, *, records, latency, folder, advance):
        rows = []
        for head in heads:
            layout = sim.demo.record_layout(config, SETTINGS)
            expected = [pack(group, layout) for group in head.state.closed]
            np.testing.assert_array_equal(records[head.layer, head.kv_head], expected)
            for mode, cycles in zip(modes, (4500.0, 1500.0), strict=True):
                shares = {"bytes": 4 * cycles, "read_fraction": cycles / 9000, "utilization": 1.0, "error": 0.0625}
                which = {"layer": head.layer, "kv_head": head.kv_head, "mode": mode, "queries": 3}
                rows.append({**which, "cycles": cycles, **shares})
                advance(1)
        return rows

    monkeypatch.setattr(sim.demo_attention, "simulate", simulate)


def test_one_head_is_enough(run, perfect_hardware):
    code, output, errors = run("--heads", "1", "--context", "192")
    assert code == 0, errors
    assert "Hardware and golden agree on 1 group and 12 attention outputs." in output
    assert "0.0   kvo      1,500    6,000   16.67%       100.0%   6.25%         0.333" in output
    assert "                3.0 times fewer cycles than dense INT8; " in output


def test_wrong_record_word_is_named(run, perfect_hardware, monkeypatch):
    def other(group, settings):
        record = golden_record(group, settings)
        record[9] ^= 0x10 if (group.layer, group.number) == (1, 1) else 0
        return record

    monkeypatch.setattr(sim.demo, "golden_record", other)
    code, output, errors = run()
    assert code == 1
    assert re.fullmatch(
        r"error: the quantizer differs from golden in layer 1, KV head 1, group 1: "
        r"word 2 of the record is 0x[0-9a-f]{8}, golden 0x[0-9a-f]{8}\n",
        errors,
    )
    assert "agree" not in output


def test_wrong_element_is_named(run, perfect_hardware, monkeypatch):
    def other(record, group, settings):
        rows = golden_rows(record, group, settings)
        rows[1, 5, 7] += group.number == 2
        return rows

    monkeypatch.setattr(sim.demo, "golden_rows", other)
    code, output, errors = run()
    assert code == 1
    assert re.fullmatch(
        r"error: the dequantizer differs from golden in layer 0, KV head 0, group 2: "
        r"V row 5, channel 7 is -?\d+, golden -?\d+\n",
        errors,
    )
    assert "agree" not in output


def test_changed_record_in_memory_changes_what_the_core_gives(run, perfect_blocks, monkeypatch):
    """Simulates the core: its memory holds the records that it is given, and a difference is one sentence."""
    simulate = sim.demo_attention.simulate

    def other(config, heads, modes, *, records, **more):
        changed = {head: own.copy() for head, own in records.items()}
        changed[1, 1][0, sim.demo.record_layout(config, SETTINGS).v_salient.offset] ^= 0x40
        return simulate(config, heads, modes, records=changed, **more)

    monkeypatch.setattr(sim.demo_attention, "simulate", other)
    code, output, errors = run()
    assert code == 1
    assert re.fullmatch(
        r"error: the attention core differs from golden in layer 1, KV head 1, mode kvo, query 0: "
        r"query head 0, output channel 0 is -?\d+, golden -?\d+",
        errors.splitlines()[-1],
    ), errors
    assert "agree" not in output


def test_cache_with_other_records_is_noticed(sample):
    model, cache, calibration, settings = sample
    wanted = choose_heads(model.config, HEADS)
    heads = list(model_heads(model, cache, calibration, settings, wanted, context=CONTEXT, count=3))
    groups = closed_groups(cache, calibration, settings, wanted)
    layout = sim.demo.record_layout(hardware_config(model.config, CONTEXT, settings), settings)
    records = [golden_record(group, settings) for group in groups]
    check_caches(heads, groups, records, layout)
    records[4][8] ^= 1
    with pytest.raises(
        DifferenceError,
        match=r"^the quantizer differs from the cache that golden attends to in layer 1, KV head 1, group 1: word 2 ",
    ):
        check_caches(heads, groups, records, layout)


@pytest.mark.parametrize(
    "fault, sentence",
    [
        (AssertionError("stream o: no transfer"), "the attention core did not finish: stream o: no transfer"),
        (SimulationError("no compiler"), "the attention core could not be simulated: no compiler"),
    ],
)
def test_core_that_gives_nothing_is_reported(run, perfect_hardware, monkeypatch, fault, sentence):
    def fail(*_, **__):
        raise fault

    monkeypatch.setattr(sim.demo_attention, "simulate", fail)
    code, output, errors = run()
    assert (code, errors) == (1, f"error: {sentence}\n")
    assert "agree" not in output


def test_hardware_that_hangs_is_reported(run, perfect_hardware, monkeypatch):
    def hang(*_):
        raise HardwareError("the quantizer did not finish: stream o, cycle 9: no transfer")

    monkeypatch.setattr(sim.demo, "compress", hang)
    code, output, errors = run()
    assert code == 1
    assert errors == "error: the quantizer did not finish: stream o, cycle 9: no transfer\n"
    assert "agree" not in output


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--context", "100"], "the context must be a multiple of 64 tokens, not 100"),
        (["--scored", "65"], "the number of scored tokens must be a multiple of 64, not 65"),
        (["--heads", "0"], "the number of heads must be from 1 to 2, not 0"),
        (["--heads", "3"], "the number of heads must be from 1 to 2, not 3"),
        (["--context", "128"], "a context of 128 tokens has no compressed group: more than 128 are needed"),
        (
            ["--context", "1024"],
            "a context of 1024 tokens is not possible: a multiple of 64 up to the model's 512 is needed",
        ),
    ],
)
def test_rejects_impossible_options(run, arguments, sentence):
    code, _, errors = run(*arguments)
    assert (code, errors) == (2, f"error: {sentence}\n")


@pytest.mark.parametrize("arguments", [["--text", "no-such-text"], ["--model", "no-such.gguf"]])
def test_rejects_missing_files(run, arguments):
    code, _, errors = run(*arguments)
    assert code == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1 and arguments[1] in errors


def test_rejects_an_output_that_is_a_file(run, tmp_path):
    (tmp_path / "file").touch()
    code, _, errors = run("-o", str(tmp_path / "file"))
    assert (code, errors) == (2, f"error: cannot make the folder {tmp_path / 'file'}: File exists\n")


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("HEAD_DIM", 8, "head_dim must be from 16 to 128, not 8"),
        ("Q_HEADS", 18, "q_heads must be from 1 to 8, not 9"),
    ],
)
def test_rejects_a_model_that_the_hardware_cannot_serve(run, tmp_path, monkeypatch, name, value, sentence):
    monkeypatch.setattr(tiny_model, name, value)
    file = tiny_model.write_tiny_model(tmp_path / "other.gguf")
    code, output, errors = run("--model", str(file))
    assert code == 2
    assert errors == f"error: the hardware cannot be built for tiny: {sentence}\n"
    assert output == "", "nothing is done before"


def test_heads_are_spread():
    config = load_model().config
    assert choose_heads(config, 1) == [(0, 0)]
    assert choose_heads(config, 3) == [(0, 0), (14, 1), (29, 2)]
    assert choose_heads(config, 30) == [(layer, layer % 3) for layer in range(30)]


def test_all_closed_groups_of_the_heads_are_taken(sample):
    model, cache, calibration, settings = sample
    check_heads(model.config, CONTEXT, settings, HEADS)
    groups = closed_groups(cache, calibration, settings, [(0, 0), (1, 1)])
    assert [(group.layer, group.kv_head, group.number) for group in groups] == [
        (head, head, number) for head in (0, 1) for number in range(3)
    ]
    assert [group.load_calibration for group in groups] == [True, False, False] * 2


def test_group_carries_what_the_cache_holds(sample):
    _, cache, calibration, settings = sample
    group = closed_groups(cache, calibration, settings, [(1, 1)])[-1]
    i, span = (1, 1), slice(128, 192)
    exact = np.asarray(cache.k[i][span], np.float64) * 2.0 ** calibration.k_fraction[i]
    assert np.abs(group.k_rows - exact).max() < 1
    votes = np.asarray(cache.block_mass[1, 1, 2:4, span], np.float64)
    assert group.mass.tolist() == np.floor(votes * 65536 + 0.5).sum(axis=0).tolist()


def test_rebuilt_values_are_those_of_the_model(sample):
    """Order, rotation and fixed point are undone: salient tokens come back almost exactly, others roughly."""
    _, cache, calibration, settings = sample
    heads = [(layer, h) for layer in range(2) for h in range(2)]
    for group in closed_groups(cache, calibration, settings, heads):
        i, span = (group.layer, group.kv_head), slice(group.number * 64, group.number * 64 + 64)
        rows = golden_rows(golden_record(group, settings), group, settings)
        values = rebuilt_values(rows, group, calibration, settings)
        for exact, rebuilt in zip((cache.k[i][span], cache.v[i][span]), values, strict=True):
            error = np.linalg.norm(rebuilt - exact, axis=1) / np.linalg.norm(exact, axis=1)
            assert np.sort(error)[settings.salient_tokens - 1] < 0.02
            assert np.median(error) < 0.5


def test_first_difference_is_named(sample):
    _, cache, calibration, settings = sample
    groups = closed_groups(cache, calibration, settings, [(0, 1)])[1:]
    records = [golden_record(group, settings) for group in groups]
    assert word_difference(groups, records, records, 32) is None
    wrong = [records[0], records[1].copy()]
    wrong[1][4] ^= 1
    sentence = word_difference(groups, wrong, records, 32)
    assert sentence.startswith(f"{groups[1]}: word 1 of the record is 0x")
    short = [records[0][:-WORD_BYTES], records[1]]
    words = len(records[0]) // WORD_BYTES
    assert word_difference(groups, short, records, 32) == (
        f"{groups[0]}: the record has {words - 1} words, golden {words}"
    )
    rows = [golden_rows(record, group, settings) for record, group in zip(records, groups, strict=True)]
    assert row_difference(groups, rows, rows) is None
    other = [rows[0], rows[1].copy()]
    other[1][0, 63, 15] = ~rows[1][0, 63, 15]
    assert row_difference(groups, other, rows) == (
        f"{groups[1]}: K row 63, channel 15 is {~rows[1][0, 63, 15]}, golden {rows[1][0, 63, 15]}"
    )


def test_kinds_that_do_not_add_up_are_noticed(monkeypatch):
    monkeypatch.setattr(sim.demo_parts, "add_fetch", lambda account, fetch, layout: account.fetch(bits=8))
    fetch = Fetch(
        scanned=np.ones(1, bool),
        lower=np.ones((1, 1, 8), bool),
        k_delta=np.ones((1, 1, 56), bool),
        v_salient=np.ones((1, 1, 8), bool),
        v_delta=np.ones((1, 1, 56), bool),
        v_int8=np.ones((1, 1), bool),
    )
    with counted_parts(), pytest.raises(RuntimeError, match="do not add up to 8 bits"):
        golden.kvo_method.add_fetch(Account(), fetch, RecordLayout(salient_tokens=8))


def test_default_geometry_is_a_preset():
    config = load_model().config
    made = hardware_config(config, 4096, default_settings())
    assert preset_name(made) == "smollm2"
    longer = hardware_config(config, 40_000, default_settings())
    assert longer.mha.max_groups == 625 and preset_name(longer) is None


@pytest.fixture(scope="module")
def head(sample):
    """A head of the random model with three queries, the open group not full."""
    model, cache, calibration, settings = sample
    (made,) = model_heads(model, cache, calibration, settings, [(1, 0)], context=300, count=3)
    return made


def test_picture_has_what_was_read_of_each_token(head, sample):
    """Against loops over the tokens, for a random choice of what was read."""
    _, cache, _, settings = sample
    random, groups = np.random.default_rng(5), len(head.state.closed)
    salient, others = settings.salient_tokens, 64 - settings.salient_tokens
    draws = {name: random.random((1, groups, n)) < 0.5 for name, n in (("lower", salient), ("k_delta", others))}
    fetch = Fetch(
        scanned=np.array([True, False, True]),
        **draws,
        v_salient=draws["lower"] & (random.random((1, groups, salient)) < 0.5),
        v_delta=draws["k_delta"] & (random.random((1, groups, others)) < 0.5),
        v_int8=random.random((1, 108)) < 0.5,
    )
    kinds = [KINDS[kind] for kind in kinds_of_tokens(head, fetch)]
    assert len(kinds) == 300 and set(kinds) == set(KINDS)
    for number, group in enumerate(closed_groups(cache, sample[2], settings, [(1, 0)])):
        bases = pick_salient(
            group.mass, number == 0, salient_tokens=salient, sink_tokens=settings.sink_tokens
        ).tolist()
        for token, kind in enumerate(kinds[64 * number : 64 * number + 64]):
            if not fetch.scanned[number]:
                assert kind == "group not scanned"
            elif token in bases:
                place = 0, number, bases.index(token)
                read = "all of K" if fetch.lower[place] else "upper nibbles of K"
                assert kind == f"base, {'K and V' if fetch.v_salient[place] else read}"
            else:
                place = 0, number, head.state.closed[number].order.tolist().index(token) - salient
                wanted = "K and V" if fetch.v_delta[place] else "upper two bits of K"
                assert kind == f"delta, {wanted if fetch.k_delta[place] else 'not read'}"
    assert kinds[192:] == [f"INT8, {'K and V' if both else 'K'}" for both in fetch.v_int8[0]]


def test_picture_has_the_fetch_of_the_newest_query(head):
    before = head.state.mass.copy()
    fetch = fetched_by_newest(head)
    assert fetch.v_int8.shape == (1, 108) and fetch.v_int8[0, -1]
    np.testing.assert_array_equal(head.state.mass, before, err_msg="the cache stays as it was")
    assert len(kinds_of_tokens(head, fetch)) == 300


def test_picture_has_the_largest_attention_of_the_query_heads(head):
    each = [attention_of_newest(replace(head, q=head.q[place : place + 1])) for place in range(2)]
    for place, weights in enumerate(each):
        exact = causal_attention(head.q[place : place + 1], head.k[None], head.v[None])[0, -1]
        np.testing.assert_allclose(weights @ head.v, exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(attention_of_newest(head), np.maximum(*each))
