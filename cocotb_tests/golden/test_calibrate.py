"""Calibration: fixed-point borders, best steps, the file, and a tiny model from end to end."""

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.tiny_model import HEAD_DIM, KV_HEADS, LAYERS, write_tiny_model
from golden.calibrate import (
    ModelCalibration,
    _best_steps,
    _shape_and_norm,
    calibrate,
    calibration_for,
    fixed_rows,
    to_fixed,
)
from golden.dsq.compressor import encode_deltas
from golden.dsq.dequantizer import decode_deltas
from golden.dsq.scale import split_scale
from golden.errors import UserError
from golden.model import load_model, prefill
from golden.settings import KvoSettings

SETTINGS = KvoSettings(salient_tokens=8, delta_bits=4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A tiny model and the prefill of 384 random tokens, in a cache of their own."""
    folder = tmp_path_factory.mktemp("calibrate")
    write_tiny_model(folder / "tiny.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVO_CACHE", str(folder / "cache"))
        model = load_model(folder / "tiny.gguf")
        tokens = generator("tokens").integers(0, 256, 385)
        yield model, prefill(model, tokens, 384, progress=False)


@given(st.floats(-10, 10), st.integers(0, 20))
def test_fixed_point_is_half_up_and_saturates(x, bits):
    exact = np.floor(x * 2.0**bits + 0.5)
    assert to_fixed(np.array([x]), bits)[0] == min(max(exact, -32768), 32767)


def test_fixed_point_by_hand():
    made = to_fixed(np.array([0.5, -0.5, 0.25, 1.49, 40000, -40000, 0]), 0)
    assert made.tolist() == [1, 0, 0, 1, 32767, -32768, 0]
    assert to_fixed(np.array([1.5, -2.25], np.float32), 4).tolist() == [24, -36]


@pytest.mark.parametrize(("bits", "best"), [(2, 0.996), (4, 0.335)])
def test_best_step_of_gaussian_differences(bits, best):
    """Max's uniform quantizer, for channels of any size."""
    size = np.array([0.5, 1, 300])
    step = _best_steps(generator("gaussian").normal(0, size, (20000, 3)), bits)
    assert (np.abs(step / size / best - 1) < 0.06).all()


@pytest.mark.parametrize("bits", [2, 4])
def test_shape_and_norm_give_each_channel_its_best_step(bits):
    """The group scale times the shape is the step that loses least, whatever the size of the group."""
    draw = generator("shape", bits)
    size = np.array([1, 2, 0.5, 1, 3, 1, 1, 0.25])
    groups = [np.floor(draw.normal(0, 1, (51, 8)) * size * 500 * gain) for gain in draw.uniform(0.3, 3, 200)]
    shape, norm = _shape_and_norm([g.astype(np.int64) for g in groups], bits)
    assert shape.min() >= 1 and shape.max() <= 4095 and 1 <= norm < 1 << 20
    assert abs(shape.mean() - 256) < 2
    lost = np.zeros(3)
    for group in groups[:40]:
        difference = group.astype(np.int64)
        scale, _ = encode_deltas(difference, shape, norm, delta_bits=bits)
        significand, exponent = split_scale(scale)
        for i, gain in enumerate((0.7, 1, 1.4)):
            step = significand * 2.0 ** (exponent - 11) * shape / 256 * gain
            level = np.minimum(np.floor(np.abs(difference) / step) + 0.5, (1 << (bits - 1)) - 0.5)
            lost[i] += ((np.abs(difference) - level * step) ** 2).sum()
    assert lost[1] < lost[0] and lost[1] < lost[2]
    codes = encode_deltas(groups[0].astype(np.int64), shape, norm, delta_bits=bits)[1]
    assert len(np.unique(decode_deltas(codes, delta_bits=bits))) == 1 << bits


def test_constant_and_zero_channels_have_the_smallest_shape():
    difference = generator("dead channel").integers(-500, 500, (51, 16))
    difference[:, 3] = 0
    shape, norm = _shape_and_norm([difference], 2)
    assert shape[3] == 1 and shape.max() <= 4095 and norm >= 1
    shape, norm = _shape_and_norm([np.zeros((51, 16), np.int64)], 2)
    assert (shape == shape[0]).all() and 1 <= norm < 1 << 20


def test_calibrates_every_head_of_a_model(sample):
    model, cache = sample
    made = calibrate(model, cache, SETTINGS, progress=False)
    for field in fields(ModelCalibration):
        if field.name != "delta_bits":
            assert getattr(made, field.name).shape[:2] == (LAYERS, KV_HEADS), field.name
    for layer in range(LAYERS):
        for h in range(KV_HEADS):
            c = made.head(layer, h)
            for shape in (c.k_shape, c.v_shape):
                assert shape.shape == (HEAD_DIM,) and shape.min() >= 1 and shape.max() <= 4095
            assert 1 <= c.k_norm < 1 << 20 and 1 <= c.v_norm < 1 << 20
            k, v = cache.k[layer, h].astype(float), cache.v[layer, h].astype(float)
            for rows, x in zip(fixed_rows(made, layer, h, k, v), (k, v), strict=True):
                peak = np.abs(rows.astype(int)).max()
                assert 4096 <= peak <= 16384  # headroom of one bit, and less than another one lost
                assert np.abs(rows).max() == np.abs(rows.ravel()[np.abs(x).argmax()])
            mean = (v * 2.0 ** made.v_fraction[layer, h])[64:].mean(axis=0)
            assert np.abs(c.v_mean - mean).max() < 8  # means of INT8 rows


def test_calibration_of_all_salient_groups_needs_no_deltas(sample):
    model, cache = sample
    made = calibrate(model, cache, replace(SETTINGS, salient_tokens=64), progress=False)
    assert not made.k_shape.any() and not made.k_norm.any() and made.v_mean.any()


def test_rejects_samples_of_too_few_groups(sample):
    model, cache = sample
    short = replace(cache, k=cache.k[:, :, :192], v=cache.v[:, :, :192])
    with pytest.raises(UserError, match=r"^calibration needs at least 256 tokens, the sample has 192$"):
        calibrate(model, short, SETTINGS, progress=False)


def test_file_round_trip(sample, tmp_path):
    model, cache = sample
    made = calibrate(model, cache, SETTINGS, progress=False)
    path = tmp_path / "deep" / "er" / "calibration.npz"
    made.save(path)
    back = ModelCalibration.load(path)
    for field in fields(ModelCalibration):
        np.testing.assert_array_equal(getattr(back, field.name), getattr(made, field.name), err_msg=field.name)
    assert [p.name for p in path.parent.iterdir()] == ["calibration.npz"]


def test_rejects_files_that_are_no_calibration(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, something=1)
    with pytest.raises(UserError, match=r"^'.*other\.npz' is no calibration of format \d+: make it again$"):
        ModelCalibration.load(path)
    path.write_bytes(b"text")
    with pytest.raises(UserError, match=r"^cannot read calibration '.*other\.npz': .+$"):
        ModelCalibration.load(path)
    with pytest.raises(UserError, match=r"^cannot read calibration '.*absent\.npz': .*No such file.*$"):
        ModelCalibration.load(tmp_path / "absent.npz")


def test_is_made_once_for_each_setting(sample, monkeypatch):
    model, cache = sample
    tokens = np.asarray(cache.tokens)
    first = calibration_for(model, SETTINGS, context=384, text=tokens.tolist(), progress=False)
    monkeypatch.setattr("golden.calibrate.calibrate", lambda *_, **__: pytest.fail("made again"))
    again = calibration_for(model, SETTINGS, context=384, text=tokens.tolist(), progress=False)
    np.testing.assert_array_equal(first.k_shape, again.k_shape)
    monkeypatch.undo()
    other = calibration_for(model, replace(SETTINGS, delta_bits=2), context=384, text=tokens.tolist(), progress=False)
    assert other.delta_bits == 2 and (other.k_norm != first.k_norm).any()


def test_command_writes_the_file_and_says_so(tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "tiny.gguf")
    (tmp_path / "text.txt").write_text("".join(chr(97 + i * i % 23) for i in range(400)))
    monkeypatch.setenv("KVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))

    def run(context: int, output: str) -> subprocess.CompletedProcess[str]:
        arguments = f"--model tiny.gguf --text text.txt --context {context} -o {output}".split()
        command = [sys.executable, "-m", "golden.calibrate", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run(320, "made.npz")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^calibrated 2 layers x 2 KV heads -> made\.npz$", done.stdout, re.MULTILINE)
    assert ModelCalibration.load(tmp_path / "made.npz").k_shape.shape == (2, 2, 16)
    failed = run(128, "never.npz")
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    assert failed.stderr.strip().splitlines()[-1] == "error: calibration needs at least 256 tokens, the sample has 128"
