"""`python -m sim.bench`: refused options, what follows from its counts, a real layer on the RTL."""

import json

import pytest

from golden.model import load_model
from rtl.config import preset
from sim.bench import Kind, main, simulate, sized, table
from sim.report import write_html, write_trace


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch must be at least 1, not 0"),
        (["--batch", "257"], "--batch must be at most 256, not 257"),
        (["--context", "0"], "--context must be at least 1, not 0"),
        (["--steps", "-1"], "--steps must be at least 1, not -1"),
        (["--sub-batches", "0"], "--sub-batches must be at least 1, not 0"),
        (["--layers", "30"], "--layers must be from 0 to 29, not 30"),
        (["--preset", "huge"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
        (["--preset", "tiny"], "gemm.max_k must be at least 1536 for this model, not 96"),
        (["--clock", "0"], "--clock must be above 0, at most 2000, not 0.0"),
        (["--latency", "-1"], "--latency must be at least 0, not -1"),
        (["--context", "100000"], "--context and --steps must be at most 32768 tokens together, not 100001"),
        (["--model", "none.gguf"], "cannot read the model none.gguf: No such file or directory"),
        (
            ["--kv", "dense", "dsq", "dsq+hcap"],
            "--schedule must have one value, or 3 as another option has, not 2",
        ),
    ],
)
def test_refuses_impossible_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_refuses_files_in_missing_directories(capsys, tmp_path):
    path = tmp_path / "none" / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["--html", str(path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: cannot write {path}: there is no directory {path.parent}\n"


KINDS = [
    Kind(schedule="serial", kv="dense16", fusion="off"),
    Kind(schedule="interleaved", kv="dsq+hcap", fusion="on"),
]


@pytest.mark.nightly
def test_real_layer(tmp_path):
    """Layer 0 of SmolLM2, three sequences of which one closes a group that makes a record; bits are golden's."""
    model = load_model()
    config = sized(preset("smollm2"), model, 3, 192, KINDS)
    dram = {"part": "ddr4-2400", "clock_mhz": None, "latency": 20}
    rows = simulate(config, model, 0, KINDS, (127, 70, 3), steps=1, sub_batches=2, dram=dram, folder=tmp_path / "run")
    dense, kvo = rows
    assert dense["tokens"] == kvo["tokens"] == 3
    weights = 960 * 576 + 576 * 576 + 3 * 576 * 1536
    for row, times in ((dense, 1), (kvo, 2)):  # once for each sub-batch
        read = sum(row["read_bytes"][f"gemm{n}"] for n in range(4))
        assert times * weights < read < 1.06 * times * weights
        assert 0 < row["port"] < 1 and 0 < row["bus"] < 1 and not row["events_lost"]
        assert {event[2] for event in row["events"]} <= {0, 1, 2}
    assert kvo["read_bytes"]["groups"] > 0 and dense["read_bytes"]["groups"] == 0
    lines = table(rows)
    assert len(lines) == 3 + 2 * 5 and lines[1].endswith(" 1.00x")
    record = {"preset": "smollm2", "config": config.to_dict(), "batch": 3, "context": 127, "steps": 1, "runs": rows}
    write_html(record, tmp_path / "report.html")
    write_trace(record, tmp_path / "trace.json")
    assert "<html" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())
