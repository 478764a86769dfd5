"""`python -m sim.gemm`: refused options, what follows from its counts, and a small run on the RTL."""

from dataclasses import replace

import numpy as np
import pytest

import sim.gemm
from cocotb_tests.gemm.jobs import random_job
from cocotb_tests.lib import launch
from golden.gemm.core import Command
from rtl.config import GemmConfig, preset
from sim.gemm import (
    DifferenceError,
    Run,
    compared,
    core_cycles,
    core_table,
    extrapolated,
    figures,
    main,
    predicted_cycles,
    shape_table,
    simulate,
    traffic,
    traffic_table,
)

GEMM = GemmConfig()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "cubes"], "--shapes must be some of gemmini, opengemm, smollm2, llama2-7b, or none, not 'cubes'"),
        (["--tables", "x,cores"], "--tables must be some of traffic, cores, or none, not 'x'"),
        (["--shapes", "none", "--tables", "none"], "--shapes and --tables must not both be none"),
        (["--preset", "huge"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
        (["--preset", "tiny"], "the core of preset tiny has other heads than SmolLM2: give --shapes and --tables"),
    ],
)
def test_refuses_impossible_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 64, 64), 64 + 8 * 64 + 32),
        ((1, 8, 8), 1 + 8 + 4),
        ((8, 8, 16), 8 + 8 + 32 + 32),  # the second tile waits for the first one's sums
        ((16, 64, 8), 64 + 64 + 64 + 32),  # the second tile's rows come beside the first one
        ((16, 64, 12), 64 + 4 * 64 + 16),
    ],
)
def test_predicts_what_bounds_each_tile(shape, expected):
    assert predicted_cycles(*shape, GEMM) == expected


def job(rows: int, k: int, columns: int, *, narrow: bool = False):
    made = random_job(np.random.default_rng(1), preset("smollm2"), rows=rows, k=k, columns=columns)
    return replace(made, command=Command(narrow=narrow), rotary=None, residual=None)


COUNTS = {"i_row": 64, "i_weight": 128, "i_column": 16, "i_rotary": 0, "i_residual": 5, "elements": 128, "cycles": 160}


def test_figures_follow_from_the_counts():
    made = figures(COUNTS, Run(labels={}, jobs=[job(8, 64, 16, narrow=True)]), GEMM)
    assert made["utilization"] == 0.8
    assert made["weight_bytes"] == 1024 and made["weights_once"]
    assert made["row_bytes"] == 64 * 8 * 4 and made["residual_bytes"] == 40 and made["written_bytes"] == 256
    assert not figures({**COUNTS, "i_weight": 192}, Run(labels={}, jobs=[job(8, 64, 16)]), GEMM)["weights_once"]


def part(columns: int, cycles: float) -> dict:
    labels = {"group": "llama2-7b", "name": "qkv", "m": 5, "n": 12288, "k": 4096, "part": columns}
    counted = {"row_bytes": 1, "angle_bytes": 2, "weights_once": True, "commands": 1}
    scaled = {"weight_bytes": 4096 * columns, "column_bytes": 7 * columns, "residual_bytes": 0}
    predicted = predicted_cycles(5, 4096, columns, GEMM)
    written = {"written_bytes": 10 * columns, "predicted": predicted, "cycles": cycles * predicted}
    return {**labels, **counted, **scaled, **written}


def test_extrapolates_only_what_is_predicted():
    parts = [part(64, 1.0), part(128, 0.99), part(256, 1.0)]
    (made,) = extrapolated(parts, GEMM)
    assert made["cycles"] == predicted_cycles(5, 4096, 12288, GEMM)
    assert made["weight_bytes"] == 4096 * 12288 and made["written_bytes"] == 122880 and made["row_bytes"] == 1
    with pytest.raises(DifferenceError, match=r"^qkv: cycles are 3\.0% off the prediction$"):
        extrapolated([*parts, part(512, 1.03)], GEMM)
    lines = shape_table([{**made, "group": "llama2-7b"}])
    assert len(lines) == 2 and " yes " in lines[1]


def test_traffic_counts_what_lies_between():
    row = {"group": "smollm2", "name": "qkv", "m": 5, "k": 576, "written_bytes": 9600}
    (made,) = traffic([row, {"name": "down"}], {"smollm2": 768})
    assert (made["norm_pass"], made["qkv_pass"], made["rotary_pass"]) == (5760, 9600, 7680)
    assert made["saved"] == 1 - 9600 / 23040 and made["saved_norm_alone"] == 1 - 9600 / 15360
    assert "58.3%" in traffic_table([made])[1]


def test_cores_share_rows_or_columns():
    assert core_cycles(20, "columns", 16, GEMM) == (20, 192, 0.5)
    assert core_cycles(20, "rows", 16, GEMM) == (5, 768, 1.0)
    assert core_cycles(1, "rows", 4, GEMM) == (1, 768, 0.5)
    rows = [{"batch": 1, "bandwidth": 4, "split": split, "cycles": n} for split, n in (("columns", 10), ("rows", 20))]
    assert core_table(compared(rows))[1].endswith("2.00")


@launch.simulators("verilator")
def test_small_run_equals_golden(simulator, monkeypatch, tmp_path):
    """Two commands, then one whose weights come at a quarter of the rate; then golden is wrong, which is noticed."""
    config = preset("tiny")
    draw = np.random.default_rng(2)
    jobs = [random_job(draw, config, rows=3, k=40, columns=12, **sim.gemm.PLAIN) for _ in range(2)]
    finished: list[int] = []
    runs = [Run(labels={"name": "two"}, jobs=jobs), Run(labels={"name": "slow"}, jobs=jobs[:1], weight_rate=64)]
    two, slow = simulate(config, runs, folder=tmp_path / "good", advance=finished.append)
    assert sum(finished) == 2
    assert two["i_weight"] == 2 * slow["i_weight"] == 2 * 3 * 40 and two["weights_once"]
    assert two["written_bytes"] == 2 * 3 * 12 * 4
    assert slow["cycles"] > 4 * 3 * 40 > two["cycles"] / 2
    jobs[0].golden[0][2, 11] ^= 1
    with pytest.raises(DifferenceError, match=r"^\{'name': 'two'\}, command 0: results, \(\d+, 1\) is "):
        simulate(config, runs[:1], folder=tmp_path / "bad", advance=finished.append)
