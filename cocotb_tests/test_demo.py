"""The demonstration on a random model of a few thousand weights: output, files, what it says when something fails."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import golden.kvo_method
import sim.demo
import sim.demo_parts
from cocotb_tests.golden import tiny_model
from golden.account import Account
from golden.calibrate import calibration_for
from golden.dsq.record import RecordLayout
from golden.mha.core import Fetch
from golden.model import load_model, prefill
from golden.settings import default_settings
from sim.demo_groups import check_count, choose, golden_record, golden_rows, row_difference, word_difference
from sim.demo_parts import PARTS, counted_parts
from sim.demo_plots import rebuilt_values
from sim.demo_rtl import HardwareError, Rebuilt, Records, hardware_config, preset_name

CONTEXT, SCORED, GROUPS = 320, 64, 4
SETTINGS = replace(default_settings(), bus_bits=32)  # a narrow bus builds fast
WORD_BYTES = 4


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
        options += ["--groups", str(GROUPS), "-o", str(tmp_path / "out"), *arguments]
        with pytest.raises(SystemExit) as end:
            sim.demo.main(options)
        return end.value.code, *capsys.readouterr()

    return demo


def test_hardware_and_golden_agree(run, tmp_path):
    code, output, errors = run()
    assert code == 0, errors
    assert f"Hardware and golden agree on {GROUPS} groups." in output
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
    for plot in ("traffic", "pareto", "group"):
        assert (tmp_path / "out" / f"{plot}.png").stat().st_size > 10_000


@pytest.fixture
def perfect_hardware(monkeypatch):
    """Golden in place of the simulated hardware, and one method alone."""

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


def test_one_group_is_enough(run, perfect_hardware):
    code, output, errors = run("--groups", "1")
    assert code == 0, errors
    assert "Hardware and golden agree on 1 group." in output


def test_wrong_record_word_is_named(run, perfect_hardware, monkeypatch):
    def other(group, settings):
        record = golden_record(group, settings)
        record[9] ^= 0x10 if group.kv_head == 1 else 0
        return record

    monkeypatch.setattr(sim.demo, "golden_record", other)
    code, output, errors = run()
    assert code == 1
    assert re.fullmatch(
        r"error: the quantizer differs from golden in layer 0, KV head 1, group 0: "
        r"word 2 of the record is 0x[0-9a-f]{8}, golden 0x[0-9a-f]{8}\n",
        errors,
    )
    assert "agree" not in output


def test_wrong_element_is_named(run, perfect_hardware, monkeypatch):
    def other(record, group, settings):
        rows = golden_rows(record, group, settings)
        rows[1, 5, 7] += group.layer == 1
        return rows

    monkeypatch.setattr(sim.demo, "golden_rows", other)
    code, output, errors = run()
    assert code == 1
    assert re.fullmatch(
        r"error: the dequantizer differs from golden in layer 1, KV head 0, group 0: "
        r"V row 5, channel 7 is -?\d+, golden -?\d+\n",
        errors,
    )
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
        (["--groups", "0"], "the number of groups must be from 1 to 16 with 320 tokens, not 0"),
        (["--groups", "17"], "the number of groups must be from 1 to 16 with 320 tokens, not 17"),
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


def test_rejects_a_model_that_the_hardware_cannot_serve(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_model, "HEAD_DIM", 8)
    file = tiny_model.write_tiny_model(tmp_path / "narrow.gguf")
    code, _, errors = run("--model", str(file))
    assert code == 2
    assert errors == "error: the hardware cannot be built for tiny: head_dim must be from 16 to 128, not 8\n"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16])
def test_groups_are_spread(sample, count):
    model, cache, calibration, settings = sample
    groups = choose(model.config, cache, calibration, settings, count)
    assert len({str(group) for group in groups}) == len(groups) == count
    heads = [(group.layer, group.kv_head) for group in groups]
    assert heads == sorted(heads), "groups of a head follow each other"
    assert len(set(heads)) == min(count, 4)
    assert [group.load_calibration for group in groups] == [
        place == 0 or heads[place - 1] != head for place, head in enumerate(heads)
    ]
    if count > 4:
        assert {group.number for group in groups} >= {0, 3}, "the first and the last closed group"


def test_group_carries_what_the_cache_holds(sample):
    model, cache, calibration, settings = sample
    group = choose(model.config, cache, calibration, settings, 16)[-1]
    assert (group.layer, group.kv_head, group.number) == (1, 1, 3)
    i, span = (1, 1), slice(192, 256)
    exact = np.asarray(cache.k[i][span], np.float64) * 2.0 ** calibration.k_fraction[i]
    assert np.abs(group.k_rows - exact).max() < 1
    votes = np.asarray(cache.block_mass[1, 1, 3:5, span], np.float64).sum(axis=0)
    assert np.abs(group.mass / 65536 - votes).max() < 1e-3


def test_count_is_checked_before_any_work(sample):
    model, _, _, settings = sample
    check_count(model.config, CONTEXT, settings, 16)


def test_rebuilt_values_are_those_of_the_model(sample):
    """Order, rotation and fixed point are undone: salient tokens come back almost exactly, others roughly."""
    model, cache, calibration, settings = sample
    for group in choose(model.config, cache, calibration, settings, 16):
        i, span = (group.layer, group.kv_head), slice(group.number * 64, group.number * 64 + 64)
        rows = golden_rows(golden_record(group, settings), group, settings)
        values = rebuilt_values(rows, group, calibration, settings)
        for exact, rebuilt in zip((cache.k[i][span], cache.v[i][span]), values, strict=True):
            error = np.linalg.norm(rebuilt - exact, axis=1) / np.linalg.norm(exact, axis=1)
            assert np.sort(error)[settings.salient_tokens - 1] < 0.02
            assert np.median(error) < 0.5


def test_first_difference_is_named(sample):
    model, cache, calibration, settings = sample
    groups = choose(model.config, cache, calibration, settings, 2)
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
    assert preset_name(hardware_config(config, default_settings())) == "smollm2"
