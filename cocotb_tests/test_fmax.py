"""Place and route of the PE array: what is placed, the kept report, mistakes."""

import json
import re

import pytest

from fpga import fmax
from fpga.synth import RESULTS, cells_of
from golden.errors import UserError
from rtl.config import preset
from rtl.gemm.array import PeArray


def test_multipliers_are_dsp_blocks_with_their_registers(tmp_path):
    config = preset("tiny").gemm
    netlist = tmp_path / "netlist.json"
    cells = cells_of(fmax.synthesize_array(PeArray(config), config, netlist))
    blocks = [
        cell
        for cell in json.loads(netlist.read_text())["modules"]["top"]["cells"].values()
        if cell["type"] == "MULT18X18D"
    ]
    assert cells["MULT18X18D"] == len(blocks) == config.rows * config.columns
    for block in blocks:
        assert {block["parameters"][f"REG_{name}_CLK"] for name in ("INPUTA", "INPUTB", "OUTPUT")} == {"CLK0"}
    # Sums, their copies and a row of them take most of the registers; products would take 160 more.
    sums = (2 * len(blocks) + config.columns) * config.acc_bits
    assert sums < cells["TRELLIS_FF"] < sums + len(blocks) * (config.act_bits + 8)


def test_kept_report_belongs_to_the_array_of_today():
    report = json.loads((RESULTS / "gemm-array-85f.json").read_text())
    config = preset("smollm2").gemm
    assert report["config"] == fmax.array_sizes(config)
    assert (config.rows, config.columns, config.act_bits) == (8, 8, 12)
    assert report["array"]["MULT18X18D"] == 64
    assert report["seeds"]
    for placed in report["seeds"].values():
        assert placed["fmax_mhz"] >= 100
        assert placed["MULT18X18D"] == 64


@pytest.mark.nightly
def test_places_and_routes(tmp_path, capsys):
    target = tmp_path / "report.json"
    assert fmax.main(["--preset", "tiny", "--seeds", "4", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert report["config"] == fmax.array_sizes(preset("tiny").gemm)
    placed = report["seeds"]["4"]
    assert placed["fmax_mhz"] > 100 and placed["MULT18X18D"] == 8
    assert f"seed 4: {placed['fmax_mhz']} MHz" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1,x"], "seeds must be numbers with commas between them, not '1,x'"),
        (["--preset", "huge"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
        (["--target", "fast"], "argument --target: invalid float value: 'fast' (see --help)"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        fmax.main(arguments)
