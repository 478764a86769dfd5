"""DSQ unit of a board: simulated at its serial line, on a unit without hardware, and synthesized."""

import json
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest

from cocotb_tests.lib import launch
from fpga import build, dsq_selftest
from fpga.client import LinkError
from fpga.dsq_selftest import Plan, prepare, row_words, run
from fpga.dsq_unit import CODES, RESET, V_ROWS, DsqUnit, check_unit, unit_crc
from fpga.host import INFORMATION, MAGIC
from golden.dsq.row_quantizer import quantize_token_rows
from golden.errors import UserError
from rtl.config import DsqConfig, preset
from rtl.link.host_link import LinkConfig

CONFIG = preset("ulx3s")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return prepare(CONFIG, groups=1, heads=2)


def shortened(plan: Plan, tokens: int) -> Plan:
    heads = [replace(head, k_rows=head.k_rows[:tokens], v_rows=head.v_rows[:tokens]) for head in plan.heads]
    return replace(plan, heads=heads)


class FakeUnit:
    """As `fpga.client.Client`, with a unit behind it whose work golden does; word ``flip`` comes out wrong."""

    def __init__(self, flip: int | None = None) -> None:
        self.information = [MAGIC, 12_000_000, 0, unit_crc(CONFIG.dsq)]
        self.rows, self.flip, self.read_words, self.resets = [], flip, 0, 0

    def write(self, address, words, *, fixed=False):
        if address == RESET:
            self.resets += 1
        else:
            assert fixed and self.resets
            self.rows.append((address, np.asarray(words, "<u4").view("<i2")))

    def read(self, address, words, *, fixed=False):
        if address == INFORMATION:
            return np.array(self.information[:words], np.uint32)
        (_, k_row), (v_window, v_row) = self.rows
        assert address == CODES and v_window == V_ROWS and fixed
        self.rows = []
        k_codes, k_scale, v_codes, v_scale = quantize_token_rows(k_row, v_row)
        found = np.concatenate([row_words(k_codes, int(k_scale)), row_words(v_codes, int(v_scale))])
        assert len(found) == words
        if self.flip is not None and 0 <= self.flip - self.read_words < words:
            found[self.flip - self.read_words] ^= 1
        self.read_words += words
        return found


def test_good_unit_passes(plan):
    rows = []
    board, fault = run(FakeUnit(), plan, passed=rows.append)
    assert fault is None and board.clock_hz == 12_000_000
    assert [row.words for row in rows] == [64 * 64] * 2


@pytest.mark.parametrize(
    "flip, where",
    [
        (0, "head 0.0, token 0, K row: 1 of 64 words differ, the first is codes of channels 0 to 3: "),
        (64 * 70 + 37, "head 29.1, token 6, V row: 1 of 64 words differ, the first is scale: "),
    ],
)
def test_wrong_word_is_named(plan, flip, where):
    _, fault = run(FakeUnit(flip), plan, passed=lambda row: None)
    assert fault.startswith(f"dsq: {where}")


def test_unit_that_hangs_is_reported(plan, monkeypatch):
    def hangs(*_, **__):
        raise LinkError("write failed")

    monkeypatch.setattr(dsq_selftest, "_token", hangs)
    assert run(FakeUnit(), plan, passed=lambda row: None)[1] == "dsq: head 0.0, token 0, write failed"


def test_other_boards_are_refused(plan):
    unit = FakeUnit()
    unit.information[3] ^= 1
    with pytest.raises(UserError, match=r"^the board must have a DSQ unit for 64 channels, with CRC "):
        run(unit, plan, passed=lambda row: None)
    unit.information[0] = 1
    with pytest.raises(UserError, match=r"^the port must lead to a KVO board, not to one that answers 0x00000001$"):
        run(unit, plan, passed=lambda row: None)


@pytest.mark.parametrize("name", ["groups", "heads"])
def test_rejects_no_rows(name):
    with pytest.raises(UserError, match=f"^--{name} must be at least 1, not 0$"):
        prepare(CONFIG, **{"groups": 1, "heads": 1, name: 0})


def test_rejects_other_lanes():
    with pytest.raises(ValueError, match=f"^{re.escape('lanes must be 4, not 8')}$"):
        check_unit(DsqConfig(lanes=8))


@launch.simulators("icarus", "verilator")
def test_selftest_passes_through_the_pins(simulator, plan, tmp_path):
    path = tmp_path / "plan"
    path.write_bytes(pickle.dumps(shortened(plan, 2 if simulator == "icarus" else 16)))
    launch.run(
        DsqUnit(CONFIG.dsq, LinkConfig(clock_hz=12_000_000, max_words=64)),
        name="dsq_unit",
        tb="cocotb_tests.fpga.tb_dsq_unit",
        parameters={"plan": str(path)},
        simulators=simulator,
    )


def test_fits_the_icebreaker(monkeypatch, tmp_path):
    """Up to synthesis; what placing and routing makes of it is in the report of the board."""
    monkeypatch.setattr(build, "BUILD", tmp_path)
    figures = tmp_path / "figures.json"
    assert build.main(["--board", "icebreaker", "--synth-only", "--json", str(figures)]) == 0
    report = json.loads(figures.read_text())
    cells = {name: sum(block[name] for block in report["blocks"].values()) for name in report["blocks"]["top"]}
    assert cells["SB_LUT4"] < 5280 and cells["SB_RAM40_4K"] <= 30 and cells["SB_MAC16"] <= 8
