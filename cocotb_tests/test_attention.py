"""`python -m sim.attention`: refused options, what follows from the counted cycles, what ends without rows."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sim.attention
from cocotb_tests.lib import launch
from golden.errors import UserError
from rtl.config import preset
from sim.attention import DifferenceError, _figures, main, simulate, table
from sim.workloads import head_named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "x"], "a head must be LAYER.KV_HEAD, such as 14.1, not 'x'"),
        (["--heads", "30.0"], "a head must lie within 0.0 and 29.2, not 30.0"),
        (["--heads", "0.3"], "a head must lie within 0.0 and 29.2, not 0.3"),
        (["--context", "1"], "a context must be from 2 to 32768 tokens, not 1"),
        (["--context", "40000"], "a context must be from 2 to 32768 tokens, not 40000"),
        (["--context", "130"], "--queries must be at most the tokens of the last group, not 5 at 130"),
        (["--queries", "2"], "--queries must be at least 3, --latency at least 1"),
        (["--latency", "0"], "--queries must be at least 3, --latency at least 1"),
        (["--preset", "huge"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
    ],
)
def test_refuses_impossible_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_heads_are_read():
    assert head_named("14.1") == (14, 1)
    with pytest.raises(UserError):
        head_named("14")


ROW = {
    "context": 1024,
    "layer": 3,
    "kv_head": 1,
    "cycles": 1000.0,
    "busy": 800.0,
    "stalled": 50.0,
    "waiting": 100.0,
    "idle": 50.0,
    "words": 810.0,
    "bytes": 12960.0,
    "k_words": 500.0,
    "v_words": 280.0,
    "none_words": 30.0,
    "error": 0.0625,
}


def test_figures_follow_from_the_counts():
    made = _figures({**ROW, "mode": "kvo"}, preset("smollm2"))
    assert made["utilization"] == 0.8
    assert made["when_fed"] == 800 / 900
    assert made["read_fraction"] == 12960 / (1024 * 64 * 4)


def test_table_has_ratios_to_the_dense_mode():
    rows = [_figures({**ROW, "mode": "dense", "cycles": 4000.0}, preset("smollm2"))]
    rows += [_figures({**ROW, "mode": "kvo"}, preset("smollm2"))]
    lines = table(rows)
    assert len(lines) == 3 and lines[1].endswith("1.000") and lines[2].endswith("0.250")
    assert {len(line) for line in lines} == {len(lines[0])}
    assert table(rows[1:])[1].rstrip().endswith("6.25%")


def run(monkeypatch, folder, bench, **more):
    """`simulate` with ``bench(folder)`` in place of the simulated one."""
    monkeypatch.setattr(launch, "run", lambda *_, parameters, **__: bench(Path(parameters["folder"])))
    monkeypatch.setattr(sim.attention, "MhaCore", lambda config: None)
    heads = [SimpleNamespace(layer=3, kv_head=1)]
    return simulate(preset("smollm2"), heads, ("kvo",), latency=1, folder=folder, advance=print, **more)


def test_bench_gets_heads_and_records(monkeypatch, tmp_path):
    records = np.arange(32, dtype=np.uint8).reshape(2, 16)

    def bench(folder):
        ((head, modes),) = pickle.loads((folder / "heads.pkl").read_bytes())
        assert (head.layer, head.kv_head, modes) == (3, 1, ["kvo"])
        with np.load(folder / "records.npz") as arrays:
            assert list(arrays) == ["3.1"]
            np.testing.assert_array_equal(arrays["3.1"], records)
        raise AssertionError("seen")

    with pytest.raises(AssertionError, match=r"^seen$"):
        run(monkeypatch, tmp_path / "new", bench, records={(3, 1): records})


def test_difference_is_told_apart_from_a_core_that_hangs(monkeypatch, tmp_path):
    def differ(folder):
        (folder / "difference").write_text("query 1: status is 1, golden 0")
        raise AssertionError("attends on verilator: a traceback")

    def hang(folder):
        raise AssertionError("attends on verilator: stream o: no transfer")

    with pytest.raises(DifferenceError, match=r"^query 1: status is 1, golden 0$"):
        run(monkeypatch, tmp_path, differ)
    with pytest.raises(AssertionError, match="no transfer"):
        run(monkeypatch, tmp_path, hang)
