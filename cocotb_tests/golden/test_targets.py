"""The figures that the project promises for the default settings, measured anew: long, part of ``make nightly``."""

import json
import math
import subprocess
import sys

import pytest


@pytest.mark.nightly
def test_default_settings_meet_the_targets(tmp_path):
    """Three texts, 4,096 tokens, 512 scored each: traffic, divergence and perplexity."""
    output = tmp_path / "rows.json"
    command = [sys.executable, "-m", "golden.evaluate", "--method", "kvo", "--context", "4096", "--scored", "512"]
    subprocess.run([*command, "--json", str(output)], check=True)
    rows = json.loads(output.read_text())
    assert sorted(row["text"] for row in rows) == ["legal", "prose", "tech"]
    mean = {name: sum(row[name] for row in rows) / 3 for name in ("read_fraction", "kl")}
    loss = sum(math.log(row["ppl"] / row["ppl_reference"]) for row in rows) / 3
    assert mean["read_fraction"] <= 0.0807
    assert mean["kl"] <= 0.022
    assert math.exp(loss) <= 1.027
