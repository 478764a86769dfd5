"""Area of the blocks on ECP5 FPGAs, from yosys: `python -m fpga.synth --preset smollm2`."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden.errors import UserError, main_guard
from rtl.build import BLOCKS, CommandParser, block_named, emit, fix_hashes
from rtl.config import PRESETS, AcceleratorConfig, load_config, preset
from rtl.emit import YosysError, run_yosys

__all__ = [
    "CELLS",
    "FAMILIES",
    "RESULTS",
    "Family",
    "cells_of",
    "run_script",
    "synthesize",
    "write_report",
    "yosys_version",
]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Family:
    """Blocks that have a report together, and the tables of the config that they depend on."""

    blocks: tuple[str, ...]
    tables: tuple[str, ...]


FAMILIES = {
    "dsq": Family(("dsq_quantizer", "dsq_dequantizer"), ("dsq",)),
    "mha": Family(("hcap_history", "mha_core"), ("dsq", "mha")),
    "cache": Family(("kv_cache",), ("dsq", "mha", "cache")),
    "gemm": Family(("gemm_core",), ("dsq", "gemm")),
}
#: the cells that are reported, and what they are
CELLS = {
    "LUT4": "lookup tables of 4 inputs",
    "CCU2C": "carry cells, two lookup tables each",
    "TRELLIS_FF": "flip-flops",
    "MULT18X18D": "multipliers of 18 x 18 bits",
    "DP16KD": "block RAMs of 18 Kbit (EBR)",
    "TRELLIS_DPR16X4": "distributed RAMs of 16 x 4 bits, made of lookup tables",
}
#: lookup tables that a cell takes
TABLES = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4}
#: how many of each an LFE5U-85F has
DEVICE = {"tables": 83640, "TRELLIS_FF": 83640, "MULT18X18D": 156, "DP16KD": 208}


def run_script(script: str, directory: Path) -> None:
    """Run a script with the yosys on PATH or, if there is none, with the one in Python."""
    native = shutil.which("yosys")
    if native is None:
        run_yosys(script, directory)
        return
    (directory / "script.ys").write_text(script)
    done = subprocess.run([native, "script.ys"], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise YosysError((done.stderr or done.stdout)[-2000:].strip())


def cells_of(statistics: dict[str, Any]) -> dict[str, int]:
    """The reported cells in what yosys' ``stat -json`` has written."""
    counted: dict[str, int] = statistics["design"]["num_cells_by_type"]
    cells = {cell: counted.get(cell, 0) for cell in CELLS}
    cells["tables"] = sum(cells[cell] * tables for cell, tables in TABLES.items())
    return cells


def yosys_version(statistics: dict[str, Any]) -> str:
    """The version of yosys that has written them."""
    version = re.search(r"Yosys (\S+)", statistics["creator"])
    return version[1] if version else "unknown"


def write_report(report: dict[str, Any], target: Path) -> None:
    """Write a report as JSON and say so."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{target}': {error.strerror}") from None
    print(f"written to {target}")


def synthesize(verilog: str, module: str) -> tuple[dict[str, int], str]:
    """Cells of a module by type, as in `CELLS`, its ``tables`` in all, and the version of yosys that counted them.

    The module's logic counts alone: no I/O buffers, nothing placed or routed.
    """
    with tempfile.TemporaryDirectory(prefix="kvo-synth-") as scratch:
        directory = Path(scratch)
        (directory / "block.v").write_text(verilog)
        commands = [
            "read_verilog block.v",
            # Names of wires do not matter here; some of them make the mapping of flat arrays fail.
            "rename -hide w:*",
            f"synth_ecp5 -top {module}",
            "tee -q -o stat.json stat -json",
        ]
        run_script("\n".join(commands) + "\n", directory)
        statistics = json.loads((directory / "stat.json").read_text())
    return cells_of(statistics), yosys_version(statistics)


def _multipliers(config: AcceleratorConfig, count: int) -> dict[str, int]:
    """Which parts of the attention core take its multipliers; what none of them explains would be the delta lanes'."""
    heads, bus = config.mha.q_heads, config.dsq.bus_bits
    parts = {
        "query": 2,
        "k_nibble_lanes": heads * bus // 4,
        "score_scales": 2 * heads,
        "tile_limit": 1,
        "scaled_weights": heads,
        "v_int8_lanes": 2 * heads * bus // 8,
        "output_quotient": 8,
        "mass": 2 * heads,
    }
    return {**parts, "delta_lanes": count - sum(parts.values())}


def _table(results: dict[str, dict[str, int]]) -> str:
    rows = [["cells", *results, "of an LFE5U-85F"]]
    for cell in (*CELLS, "tables"):
        counts = [blocks[cell] for blocks in results.values()]
        share = f"{100 * sum(counts) / DEVICE[cell]:.1f} %" if cell in DEVICE else ""
        rows.append([cell, *(str(count) for count in counts), share])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _parser() -> CommandParser:
    names = ", ".join(block.name for block in BLOCKS)
    parser = CommandParser(
        prog="python -m fpga.synth",
        description="Synthesize the blocks for Lattice ECP5 with yosys and report the cells that they take.",
        epilog="Takes a minute or two for each block of the larger presets, several for mha_core.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--preset", metavar="NAME", default="smollm2", help=f"one of {', '.join(PRESETS)} (smollm2)")
    what.add_argument("--config", metavar="FILE", help="TOML file instead of a preset")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--block", metavar="NAME", help=f"only this block: {names}")
    which.add_argument("--family", choices=list(FAMILIES), help="only the blocks of a report")
    which.add_argument(
        "--all",
        action="store_true",
        help="all blocks but the accelerator, which is made of them (this is what happens without --block, too)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="file for the figures; by default, for all blocks or a family of a preset, "
        f"fpga/results/FAMILY-PRESET.json ({', '.join(FAMILIES)}), else none",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    config = preset(options.preset) if options.config is None else load_config(options.config)
    families = [options.family] if options.family else list(FAMILIES)
    names = [options.block] if options.block else [name for family in families for name in FAMILIES[family].blocks]
    blocks = [block_named(name) for name in names]
    every = tuple(config.to_dict())
    targets: dict[Path, Family] = {}
    if options.json is not None:
        targets[Path(options.json)] = Family(tuple(names), every)
    elif options.config is None and not options.block:
        targets = {RESULTS / f"{family}-{options.preset}.json": FAMILIES[family] for family in families}

    texts = [emit(block, config)[0] for block in blocks]
    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            counts = pool.map(synthesize, texts, [block.module for block in blocks])
            areas = {block.name: count for block, count in zip(blocks, counts, strict=True)}
    except YosysError as error:
        raise UserError(f"yosys failed: {error}") from None
    results = {name: cells for name, (cells, _) in areas.items()}
    print(_table(results))
    name = options.preset if options.config is None else None
    for target, family in targets.items():
        tables = {table: config.to_dict()[table] for table in family.tables}
        report = _report(name, config, tables, {block: areas[block] for block in family.blocks})
        write_report(report, target)
    return 0


def _report(
    name: str | None,
    config: AcceleratorConfig,
    tables: dict[str, Any],
    areas: dict[str, tuple[dict[str, int], str]],
) -> dict[str, Any]:
    report = {
        "preset": name,
        "config": tables,
        "target": "ecp5",
        "tools": {"yosys": sorted({version for _, version in areas.values()})[0]},
        "blocks": {block: cells for block, (cells, _) in areas.items()},
    }
    if "mha_core" in areas:
        report["mha_core_multipliers"] = _multipliers(config, areas["mha_core"][0]["MULT18X18D"])
    return report


if __name__ == "__main__":
    fix_hashes()
    main_guard(main)()
