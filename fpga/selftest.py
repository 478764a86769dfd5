"""Test of a board, real or simulated: real heads and weights through its accelerator, bit for bit against golden.

`python -m fpga.selftest --port /dev/ttyUSB0 --board ulx3s-85f`
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fpga import dram, dsq_selftest, selftest_run
from fpga.boards import board_named, board_names
from fpga.client import Client
from fpga.dram import MEMORIES, Controller, ControllerConfig
from fpga.host import BoardInformation
from fpga.selftest_run import RANDOM_WORDS, Row
from golden.errors import UserError, main_guard
from rtl.build import CommandParser, fix_hashes
from rtl.cache.cache import KvCache
from rtl.config import PRESETS, AcceleratorConfig, load_config, preset

__all__ = ["line", "main", "report"]


HEADING = "part    words compared  mismatches       cycles   link bytes  seconds  what"


def line(row: Row) -> str:
    """A part's line of the table."""
    cycles = f"{row.cycles:,}" if row.cycles else "-"
    counts = f"{row.words:14,}  {row.mismatches:10,}  {cycles:>11}  {row.link_bytes:11,}"
    return f"{row.part:7} {counts}  {row.seconds:7.2f}  {row.what}"


def _controller(config: AcceleratorConfig, memory: str) -> Callable[[Any, BoardInformation], None]:
    """Initializes a board's DRAM controller."""

    def initialize(link: Any, board: BoardInformation) -> None:
        id_bits = KvCache.axi_configs(config)[0].id_bits
        try:
            given = ControllerConfig(
                memory=memory, clock_hz=board.clock_hz, data_bits=config.dsq.bus_bits, id_bits=id_bits
            )
        except ValueError as error:
            raise UserError(f"--memory {memory} does not suit this board: {error}") from None
        dram.initialize(link, Controller.generate(given))

    return initialize


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m fpga.selftest",
        description="Tests a board: DRAM, then keys and values, queries and weights of SmolLM2 through its "
        "accelerator. Everything that comes back is compared with the golden model, bit for bit.",
        epilog="A board with a DSQ unit gets rows of keys and values alone. "
        "cycles: counted by the accelerator, of the part's slowest core. Exit code: 0 when all is equal, 1 when "
        "the board is faulty, 2 for impossible options or another board.",
    )
    port = parser.add_mutually_exclusive_group(required=True)
    port.add_argument("--port", metavar="PORT", help="/dev/ttyUSB0, or socket://localhost:PORT")
    port.add_argument("--simulate", action="store_true", help="a simulated board, down to the pins of UART and SDRAM")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--board", metavar="NAME", help="one of " + ", ".join(board_names()))
    what.add_argument("--preset", metavar="NAME", help="of its accelerator: one of " + ", ".join(PRESETS))
    what.add_argument("--config", metavar="FILE", help="TOML file of its accelerator")
    parser.add_argument("--memory", choices=list(MEMORIES), help="its DRAM (default: the board's, or sdr-32mb)")
    parser.add_argument("--baud", type=int, metavar="N", help="of the port (default: the board's, or 3000000)")
    parser.add_argument("--timeout", type=float, metavar="S", help="for an answer (default: 1, simulated 60)")
    parser.add_argument("--groups", type=int, metavar="N", help="records per head (default: 4, simulated 2)")
    parser.add_argument("--heads", type=int, default=2, metavar="N", help="KV heads (default: %(default)s)")
    parser.add_argument("--steps", type=int, metavar="N", help="queries per head (default: 3, simulated 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser


def _choices(args: argparse.Namespace) -> AcceleratorConfig:
    """The accelerator; options that were not given get their defaults."""
    if args.config:
        config = load_config(args.config)
    elif args.board:
        board = board_named(args.board)
        config, args.baud = preset(board.preset), args.baud or board.baud
        args.memory = args.memory or (None if args.simulate else board.memory)
    elif args.preset or args.simulate:
        config = preset(args.preset or "tiny")
    else:
        raise UserError("one of --board, --preset, --config must tell what accelerator the board has")
    simulated = {"timeout": 60.0, "groups": 2, "steps": 2, "patience": 600.0, "random_words": 64}
    real = {"timeout": 1.0, "groups": 4, "steps": 3, "patience": 15.0, "random_words": RANDOM_WORDS}
    real |= {"baud": 3_000_000, "memory": "sdr-32mb"}
    for name, value in (real | simulated if args.simulate else real).items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if args.simulate and args.memory != "sdr-32mb":
        raise UserError(f"a simulated board has memory sdr-32mb, not {args.memory}")
    return config


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = _parser().parse_args(arguments)
    config, progress = _choices(args), sys.stderr.isatty()
    if args.json and not args.json.resolve().parent.is_dir():
        raise UserError(f"cannot write {args.json}: there is no directory {args.json.resolve().parent}")
    unit = bool(args.board) and board_named(args.board).unit == "dsq"
    test = dsq_selftest if unit else selftest_run
    plan = test.prepare(config, groups=args.groups, heads=args.heads, steps=args.steps, progress=progress)
    rows: list[Row] = []

    def passed(row: Row) -> None:
        rows.append(row)
        print(line(row), flush=True)

    with ExitStack() as stack:
        port = stack.enter_context(_simulated(config, unit)) if args.simulate else args.port
        client = stack.enter_context(Client(port, baud=args.baud, timeout=args.timeout))
        print(HEADING, flush=True)
        board, fault = test.run(
            client,
            plan,
            initialize=_controller(config, args.memory),
            random_words=args.random_words,
            passed=passed,
            patience=args.patience,
            progress=progress,
        )
        errors = asdict(client.errors)
    if args.json:
        record = {"board": asdict(board), "config": config.to_dict(), "parts": [asdict(row) for row in rows]}
        _write(args.json, {**record, "link": errors, "fault": fault})
    return report(board, rows, errors, fault)


def _write(path: Path, record: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _simulated(config: AcceleratorConfig, unit: bool) -> Iterator[str]:
    """The port of a simulated board; `UserError` when it cannot be simulated, or a rule of its memory was broken."""
    from sim.board import simulated_board, simulated_unit  # needs simulators, which a real board does without
    from sim.simulators import SimulationError

    print("building and starting the simulated board", file=sys.stderr)
    try:
        with simulated_unit(config.dsq) if unit else simulated_board(config) as port:
            yield port
    except (AssertionError, SimulationError, TimeoutError) as error:
        raise UserError(f"the simulated board failed: {error}") from None


def report(board: BoardInformation, rows: Sequence[Row], errors: Mapping[str, int], fault: str | None) -> int:
    """Print what has come out behind the table; returns the exit code."""
    print(f"board at {board.clock_hz / 1e6:g} MHz with {board.dram_bytes:,} bytes of DRAM")
    if any(errors.values()):
        print("put right on the line: " + ", ".join(f"{count} {name}" for name, count in errors.items() if count))
    if fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    print(f"all {sum(row.words for row in rows):,} words equal golden")
    return 0


if __name__ == "__main__":
    fix_hashes()
    main(sys.argv[1:])
