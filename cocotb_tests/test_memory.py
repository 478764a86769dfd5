"""`python -m sim.memory`: refused options, and what follows from its counts."""

import pytest

from cocotb_tests.cache.system import dram_config
from rtl.config import preset
from sim.memory import RUNS, figures, main, sized, table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "x"], "a head must be LAYER.KV_HEAD, such as 14.1, not 'x'"),
        (["--context", "128"], "--context must be at least 192, so that there are records, not 128"),
        (["--context", "40000"], "a context must be from 2 to 32768 tokens, not 40000"),
        (["--queries", "2"], "--queries must be from 3 to the tokens of the last group, not 2 at 4096"),
        (["--clock", "0"], "clock_mhz must be above 0, at most 2000, not 0.0"),
        (["--latency", "-1"], "latency must be at least 0, not -1"),
        (["--preset", "huge"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
    ],
)
def test_refuses_impossible_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


COUNTS = {
    "context": 4096,
    "attention": 0,
    "prefetched": 0,
    "gemm": 0,
    "busy": 500,
    "row_hits": 90,
    "row_misses": 6,
    "row_opens": 4,
    "read_bytes": 16000,
}


def test_figures_follow_from_the_counts():
    config = sized(preset("smollm2"), 4096, 3)
    counted = [
        {**COUNTS, "run": "stream", "cycles": 1000, "gemm": 1000},
        {**COUNTS, "run": "kvo", "cycles": 1000.0, "attention": 900, "read_bytes": 28800},
        {**COUNTS, "run": "dense", "cycles": 4000.0, "attention": 4000},
    ]
    made = figures(counted, config, dram_config(config))
    assert [row["port"] for row in made] == [1.0, 0.9, 1.0]
    assert made[1]["of_stream"] == 0.9 and made[1]["hits"] == 0.9 and made[1]["padding"] == 2.0
    lines = table(made)
    assert len(lines) == 4 and lines[2].endswith("0.250") and lines[3].endswith("1.000")
    assert {row["run"] for row in made} <= set(RUNS)


@pytest.mark.parametrize("context", [192, 4096, 32768])
def test_memory_has_room_for_both_caches(context):
    config = sized(preset("smollm2"), context, 3)
    assert min(config.cache.record_pages, config.cache.block_pages, config.mha.max_groups) >= context // 64
