"""Clock rate of the PE array on an ECP5, from place and route with nextpnr: `python -m fpga.fmax`."""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from fpga import tools
from fpga.synth import RESULTS, cells_of, run_script, write_report, yosys_version
from golden.errors import UserError, main_guard
from rtl.build import CommandParser, fix_hashes
from rtl.config import PRESETS, GemmConfig, preset
from rtl.emit import YosysError, verilog
from rtl.gemm.array import WEIGHT_BITS, PeArray

__all__ = ["Harness", "map_multipliers", "place", "synthesize_array"]

DEVICE = {"device": "LFE5U-85F", "package": "CABGA381", "speed_grade": 6}
TECHMAP = Path(__file__).resolve().parent / "ecp5_multiplier.v"
_OPTIONS = ["--85k", "--package", DEVICE["package"], "--speed", str(DEVICE["speed_grade"])]
#: nextpnr's names of what is counted
_UTILIZATION = {"LUT4": "TRELLIS_COMB", "FF": "TRELLIS_FF", "MULT18X18D": "MULT18X18D"}


class Harness(wiring.Component):
    """The array between shift registers, since it has more ports than the chip has pins.

    Every input bit comes from a register. Every output bit goes to one and from there into a bit that leaves the chip,
    so nothing is optimized away.
    """

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        super().__init__({"i": In(1), "o": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.array = array = PeArray(self.config)
        inputs = Signal(len(array.i.payload.as_value()) + 2)
        outputs = Signal(len(array.o.payload.as_value()) + 2)
        sent, kept = Signal(), Signal.like(outputs)
        m.d.sync += [inputs.eq(Cat(self.i, inputs)), sent.eq(self.i)]
        m.d.comb += Cat(array.o.ready, array.i.valid, array.i.payload).eq(inputs)
        m.d.sync += [
            kept.eq(Cat(array.i.ready, array.o.valid, array.o.payload)),
            outputs.eq(kept ^ Cat(sent, outputs)),
            self.o.eq(outputs[-1]),
        ]
        return m


def map_multipliers(a_bits: int, b_bits: int, cells: str = "t:*.multiplier_*") -> list[str]:
    """Commands of yosys that put DSP blocks in the place of the array's multipliers, which are these cells."""
    return [
        f"chtype -set kvo_multiplier {cells}",
        f"setparam -set A_BITS {a_bits} -set B_BITS {b_bits} t:kvo_multiplier",
        f"techmap -map {TECHMAP}",
    ]


def array_sizes(config: GemmConfig) -> dict[str, int]:
    """What the array depends on."""
    return {name: getattr(config, name) for name in ("rows", "columns", "act_bits", "max_k", "pairs")}


def synthesize_array(component: wiring.Component, config: GemmConfig, netlist: Path) -> dict[str, Any]:
    """Write the netlist of something that has the array in it; yosys' statistics."""
    directory = netlist.parent
    (directory / "design.v").write_text(verilog(component))
    commands = [
        "read_verilog design.v",
        *map_multipliers(config.act_bits, WEIGHT_BITS),
        # Names of wires do not matter here; some of them make the mapping of flat arrays fail.
        "rename -hide w:*",
        f"synth_ecp5 -top top -json {netlist.name}",
        "tee -q -o stat.json stat -json",
    ]
    run_script("\n".join(commands) + "\n", directory)
    statistics: dict[str, Any] = json.loads((directory / "stat.json").read_text())
    return statistics


def _place(cell: str) -> str:
    """Where in the design a cell belongs: its name without what yosys has put behind it, cell by cell."""
    return re.sub(r"_(CCU2C|LUT4|PFUMX|L6MUX21|TRELLIS_FF)_.*", "", cell)


def place(netlist: Path, seed: int, target_mhz: float) -> dict[str, Any]:
    """Place and route a netlist: cells of the whole design, its clock rate, and the path that limits it."""
    command = [tools.program("nextpnr-ecp5"), *_OPTIONS, "--json", netlist.name, "--report", "report.json"]
    command += ["--seed", str(seed), "--freq", str(target_mhz), "--timing-allow-fail"]
    command += ["--lpf-allow-unconstrained", "--quiet"]
    done = subprocess.run(command, cwd=netlist.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"nextpnr failed: {done.stderr[-500:].strip()}")
    report = json.loads((netlist.parent / "report.json").read_text())
    ((_, clock),) = report["fmax"].items()
    (critical,) = (path for path in report["critical_paths"] if path["from"] == path["to"])
    kinds: dict[str, float] = {}
    for part in critical["path"]:
        kinds[part["type"]] = kinds.get(part["type"], 0) + part["delay"]
    return {
        "fmax_mhz": round(clock["achieved"], 1),
        **{name: report["utilization"][cell]["used"] for name, cell in _UTILIZATION.items()},
        "critical_path": {
            "from": _place(critical["path"][0]["from"]["cell"]),
            "to": _place(critical["path"][-1]["to"]["cell"]),
            **{f"{kind.replace('-', '_')}_ns": round(delay, 2) for kind, delay in kinds.items()},
        },
    }


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m fpga.fmax",
        description="Place and route the PE array of the GEMM cores, between shift registers, on an LFE5U-85F, and "
        "report its clock rate and cells.",
        epilog="Takes three to six minutes a seed for 8 x 8, and up to 500 MB of memory.",
    )
    names = ", ".join(PRESETS)
    parser.add_argument("--preset", metavar="NAME", default="smollm2", help=f"one of {names} (smollm2: 8 x 8)")
    parser.add_argument("--seeds", metavar="N,...", default="1,2,3", help="seeds of the placement (1,2,3)")
    parser.add_argument("--target", metavar="MHZ", type=float, default=125, help="clock rate to aim at (125)")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="file for the figures (fpga/results/gemm-array-85f.json for the preset smollm2, else none)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    config = preset(options.preset).gemm
    if not re.fullmatch(r"\d+(,\d+)*", options.seeds):
        raise UserError(f"seeds must be numbers with commas between them, not '{options.seeds}'")
    target = Path(options.json) if options.json is not None else None
    if target is None and options.preset == "smollm2":
        target = RESULTS / "gemm-array-85f.json"
    nextpnr = tools.version("nextpnr-ecp5")
    with tempfile.TemporaryDirectory(prefix="kvo-fmax-") as scratch:
        netlist = Path(scratch) / "netlist.json"
        try:
            statistics = synthesize_array(PeArray(config), config, netlist)
            synthesize_array(Harness(config), config, netlist)
        except YosysError as error:
            raise UserError(f"yosys failed: {error}") from None
        report = {
            **DEVICE,
            "config": array_sizes(config),
            "tools": {"yosys": yosys_version(statistics), "nextpnr": nextpnr},
            "array": cells_of(statistics),
            "target_mhz": options.target,
            "seeds": {},
        }
        print("array alone: " + ", ".join(f"{count} {cell}" for cell, count in report["array"].items()))
        for seed in map(int, options.seeds.split(",")):
            report["seeds"][str(seed)] = placed = place(netlist, seed, options.target)
            cells = ", ".join(f"{placed[cell]} {cell}" for cell in _UTILIZATION)
            print(f"seed {seed}: {placed['fmax_mhz']} MHz; with the shift registers {cells}", flush=True)
    if target is not None:
        write_report(report, target)
    return 0


if __name__ == "__main__":
    fix_hashes()
    main_guard(main)()
