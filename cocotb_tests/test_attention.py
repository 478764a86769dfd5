"""`python -m sim.attention`: refused options, and what follows from the counted cycles."""

import pytest

from golden.errors import UserError
from rtl.config import preset
from sim.attention import _figures, _head, main, table


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
    assert _head("14.1") == (14, 1)
    with pytest.raises(UserError):
        _head("14")


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
    assert table(rows[1:])[1].rstrip().endswith("%")
