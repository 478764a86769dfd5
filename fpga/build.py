"""From a board's name to its bitstream and figures: `python -m fpga.build --board ulx3s-85f`."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpga import tools
from fpga.boards import Board, board_named, board_names
from fpga.synth import RESULTS, write_report
from fpga.tools import Run
from golden.errors import UserError, main_guard
from rtl.build import CommandParser, fix_hashes
from rtl.config import preset
from rtl.emit import YOSYS_DRIVER

__all__ = ["BUILD", "bitstream_of", "chosen", "main"]

BUILD = Path(__file__).resolve().parent.parent / "build" / "fpga"
NAME = "top"
#: cells that are counted: what nextpnr calls them, and what we do
_CELLS = {
    "ecp5": {"LUT4": "TRELLIS_COMB", "FF": "TRELLIS_FF", "MULT18X18D": "MULT18X18D", "DP16KD": "DP16KD"},
    "ice40": {"LC": "ICESTORM_LC", "RAM": "ICESTORM_RAM", "DSP": "ICESTORM_DSP", "SPRAM": "ICESTORM_SPRAM"},
}
#: of yosys' statistics, by block
_SYNTHESIZED = {
    "ecp5": ("LUT4", "CCU2C", "TRELLIS_DPR16X4", "TRELLIS_FF", "MULT18X18D", "DP16KD"),
    "ice40": ("SB_LUT4", "SB_CARRY", "SB_DFF", "SB_RAM40_4K", "SB_MAC16", "SB_SPRAM256KA"),
}
#: options of yosys' synthesis: ECP5's multipliers are blocks without asking; its tables are mapped in two rounds, for
#: wires of 1.5 ns, which are what a full device has; tables of five inputs and more would tie others to their place
_SYNTHESIS = {"ecp5": "-nowidelut -run begin:map_luts", "ice40": "-dsp"}
_ROUND = "&dch,-C,500;&if,-W,1500;&mfs"
_MAPPING = {
    "ecp5": (
        f"abc9 -W 1500 -maxlut 4 -script +&scorr;&sweep;&dc2;{_ROUND};{_ROUND}",
        "clean",
        f"synth_ecp5 -nowidelut -top {NAME} -run map_cells:",
    ),
    "ice40": (),
}
_SUFFIX = {"ecp5": "bit", "ice40": "bin"}


def chosen(board_name: str, preset_name: str | None) -> Board:
    """A board, with another preset than its own if one is given; raises `UserError` where there is no such thing."""
    board = board_named(board_name)
    if preset_name is None or preset_name == board.preset:
        return board
    preset(preset_name)
    return replace(board, name=f"{board.name}-{preset_name}", preset=preset_name)


def bitstream_of(board: Board) -> Path:
    """Where the bitstream of a board is, once it has been built."""
    return BUILD / board.name / f"{board.name}.{_SUFFIX[_family(board)]}"


def _family(board: Board) -> str:
    return "ice40" if "iCE40" in board.platform().device else "ecp5"


def _prepare(board: Board, directory: Path) -> None:
    """Write what the tools read: Verilog, RTLIL, the yosys script and the pins."""
    directory.mkdir(parents=True, exist_ok=True)
    top = board.top(board)
    plan = board.platform().build(
        top,
        name=NAME,
        do_build=False,
        script_after_read="\n".join(getattr(top, "COMMANDS", ())),
        script_after_synth="\n".join([*_MAPPING[_family(board)], "tee -q -o stat.json stat -json"]),
        synth_opts=_SYNTHESIS[_family(board)],
    )
    plan.extract(str(directory))


def _synthesize(family: str, directory: Path) -> tuple[Run, dict[str, Any]]:
    """Netlist and statistics."""
    if shutil.which("yosys"):
        command = [tools.program("yosys"), f"{NAME}.ys"]
    else:  # the library in the wheel is faster than what runs in a virtual machine
        command = [sys.executable, "-c", YOSYS_DRIVER, f"{NAME}.ys"]
    run = tools.run(command, directory, directory / "yosys.log")
    statistics = json.loads((directory / "stat.json").read_text())
    return run, statistics


def _blocks(family: str, statistics: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Cells of each block that kept its boundary, those of blocks within it not counted."""
    blocks = {}
    for name, module in statistics["modules"].items():
        types = module["num_cells_by_type"].items()  # iCE40's flip-flops and memories end in what clocks them
        cells = {cell: sum(n for kind, n in types if kind.startswith(cell)) for cell in _SYNTHESIZED[family]}
        if any(cells.values()):
            blocks[re.sub(r"\W+", "_", name.lstrip("\\"))] = cells
    return blocks


def _nextpnr(board: Board, family: str, seed: int, directory: Path) -> list[str]:
    platform = board.platform()
    command = [tools.program(f"nextpnr-{family}"), "--json", f"{NAME}.json", "--seed", str(seed)]
    command += ["--report", f"report-{seed}.json", "--timing-allow-fail"]
    if family == "ecp5":
        command += [platform._nextpnr_device_options[platform.device]]
        command += ["--package", platform._nextpnr_package_options[platform.package].upper()]
        command += ["--speed", str(platform.speed), "--lpf", f"{NAME}.lpf", "--textcfg", f"{NAME}-{seed}.config"]
        command += ["--placer", "static", "--router", "router2"]  # docs/decisions/0016-placement.md
    else:
        command += ["--up5k", "--package", platform.package.lower()]
        command += ["--pcf", f"{NAME}.pcf", "--asc", f"{NAME}-{seed}.config", "--freq", str(board.clock_hz / 1e6)]
    return command


def _place(board: Board, family: str, seed: int, directory: Path, limit: float) -> dict[str, Any] | None:
    """Place and route with a seed: clock rates in MHz, cells, time and memory; None if that takes too many seconds."""
    log = directory / f"nextpnr-{seed}.log"
    try:
        run = tools.run(_nextpnr(board, family, seed, directory), directory, log, limit)
    except tools.TooLongError as error:
        print(f"seed {seed}: {error}", flush=True)
        return None
    report = json.loads((directory / f"report-{seed}.json").read_text())
    return {
        "fmax_mhz": {_plain(name): round(clock["achieved"], 2) for name, clock in report["fmax"].items()},
        "wanted_mhz": {_plain(name): round(clock["constraint"], 2) for name, clock in report["fmax"].items()},
        "cells": {
            name: {"used": cell["used"], "of": cell["available"]}
            for name, cell in ((name, report["utilization"][theirs]) for name, theirs in _CELLS[family].items())
        },
        **run.report(),
    }


def _plain(clock: str) -> str:
    return re.sub(r"^\$glbnet\$", "", clock)


def _slack(placed: dict[str, Any]) -> float:
    """By how much the worst clock is faster than it must be."""
    return min(placed["fmax_mhz"][name] / wanted for name, wanted in placed["wanted_mhz"].items())


def _pack(board: Board, family: str, seed: int, directory: Path) -> Path:
    target = bitstream_of(board)
    config = f"{NAME}-{seed}.config"
    if family == "ecp5":
        command = [tools.program("ecppack"), "--compress", "--input", config, "--bit", target.name]
    else:
        command = [tools.program("icepack"), config, target.name]
    tools.run(command, directory, directory / "pack.log")
    return target


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m fpga.build",
        description="Synthesize, place and route the design of a board, and write its bitstream and figures.",
        epilog="With several seeds the fastest result becomes the bitstream. The largest boards take more than an hour "
        "a seed with the tools of the Python packages; installed ones (yosys, nextpnr) are used when there are any.",
    )
    parser.add_argument("--list", action="store_true", help="print the boards, build nothing")
    parser.add_argument("--board", metavar="NAME", help=f"one of {', '.join(board_names())}")
    parser.add_argument("--preset", metavar="NAME", help="of the accelerator, in place of the board's own")
    parser.add_argument("--seeds", metavar="N,...", default="1", help="seeds of the placement (1)")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="seeds that are placed at once (1)")
    parser.add_argument(
        "--hours", metavar="N", type=float, default=2.0, help="after which a seed is given up, not being routed (2)"
    )
    parser.add_argument("--synth-only", action="store_true", help="stop after synthesis, write the cells alone")
    parser.add_argument(
        "--json", metavar="FILE", help="file for the figures (fpga/results/BOARD.json; with --synth-only none)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    if options.list:
        for name in board_names():
            print(f"{name:16} {board_named(name).summary}")
        return 0
    if options.board is None:
        raise UserError("give --board NAME, or --list to see the boards")
    if not re.fullmatch(r"\d+(,\d+)*", options.seeds):
        raise UserError(f"seeds must be numbers with commas between them, not '{options.seeds}'")
    if not options.hours > 0:
        raise UserError(f"hours must be more than 0, not {options.hours:g}")
    if options.jobs < 1:
        raise UserError(f"jobs must be 1 or more, not {options.jobs}")
    board = chosen(options.board, options.preset)
    family, directory = _family(board), BUILD / board.name
    target = Path(options.json) if options.json else None if options.synth_only else RESULTS / f"{board.name}.json"

    print(f"{board.name}: preset {board.preset}, {board.clock_hz / 1e6:g} MHz; files in {directory}", flush=True)
    _prepare(board, directory)
    run, statistics = _synthesize(family, directory)
    report: dict[str, Any] = {
        "board": board.name,
        "preset": board.preset,
        "device": {name: str(getattr(board.platform(), name)) for name in ("device", "package")},
        "clock_mhz": board.clock_hz / 1e6,
        "tools": {"yosys": re.search(r"Yosys (\S+)", statistics["creator"])[1]},  # type: ignore[index]
        "blocks": _blocks(family, statistics),
        "synthesis": run.report(),
        "seeds": {},
    }
    print(_table(report["blocks"]))
    print(f"synthesis took {run.seconds:.0f} s and {run.memory_mib} MiB", flush=True)
    if not options.synth_only:
        report["tools"]["nextpnr"] = tools.version(f"nextpnr-{family}")
        seeds = [int(seed) for seed in options.seeds.split(",")]
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda seed: _place(board, family, seed, directory, 3600 * options.hours), seeds))
        if not any(results):
            raise UserError(f"no seed was placed and routed in {options.hours:g} hours; try others with --seeds")
        report["not_routed"] = [seed for seed, placed in zip(seeds, results, strict=True) if placed is None]
        report["seeds"] = {str(seed): placed for seed, placed in zip(seeds, results, strict=True) if placed}
        for seed, placed in report["seeds"].items():
            clocks = ", ".join(f"{name} {mhz} MHz" for name, mhz in placed["fmax_mhz"].items())
            cells = ", ".join(f"{cell['used']}/{cell['of']} {name}" for name, cell in placed["cells"].items())
            print(f"seed {seed}: {clocks}; {cells}; {placed['seconds']:.0f} s, {placed['memory_mib']} MiB", flush=True)
        best = max(report["seeds"], key=lambda seed: _slack(report["seeds"][seed]))
        path = _pack(board, family, int(best), directory)
        report["bitstream"] = {
            "seed": int(best),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        print(f"bitstream of seed {best}: {path}")
    if target is not None:
        write_report(report, target)
    return 0


def _table(blocks: dict[str, dict[str, int]]) -> str:
    names = list(next(iter(blocks.values())))
    width = max(len("in all"), *(len(block) for block in blocks))
    total = {name: sum(cells[name] for cells in blocks.values()) for name in names}
    lines = ["  ".join(["block".ljust(width), *(name.rjust(len(name)) for name in names)])]
    for block, cells in [*blocks.items(), ("in all", total)]:
        lines.append("  ".join([block.ljust(width), *(str(cells[name]).rjust(len(name)) for name in names)]))
    return "\n".join(lines)


if __name__ == "__main__":
    fix_hashes()
    main_guard(main)()
