"""Runs the test of a board: real data prepared, parts carried out over a link, memory compared with golden."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from fpga.host import BoardError, BoardInformation, HangError, Host, Link, StoppedError, describe
from fpga.selftest_data import RealHead, real_heads, real_projections, settings_for
from fpga.selftest_programs import Part, Piece, Programs
from golden.control.commands import LINE_BYTES, Command, Error, Opcode, Wait
from golden.errors import UserError
from golden.gemm.core import Fault
from rtl.config import AcceleratorConfig

__all__ = ["RANDOM_WORDS", "DifferenceError", "Plan", "Row", "prepare", "run"]

#: words of random content that are written to memory
RANDOM_WORDS = 1024
#: seconds that a command may wait for another one on the board
_WATCHDOG_SECONDS = 10
#: cycles of the watchdog when it is what is tested
_SHORT_WATCHDOG = 20_000


class DifferenceError(BoardError):
    """Board and golden disagree; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a part; ``cycles``: those that the accelerator counted, of the slowest of the part's cores."""

    part: str
    what: str
    words: int
    mismatches: int
    cycles: int
    link_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _FaultCase:
    """A command that must stop its queue, and what is reported."""

    queue: str
    command: Command
    error: Error
    detail: int
    watchdog: int = 0


class _Tester:
    """Carries out parts; ``passed`` gets a row of each that has passed."""

    def __init__(
        self,
        link: Link,
        config: AcceleratorConfig,
        *,
        passed: Callable[[Row], object],
        patience: float,
        progress: bool,
    ) -> None:
        self.host, self.config, self.progress = Host(link, config, patience=patience), config, progress
        self._passed = passed

    @contextmanager
    def _bar(self, part: str, steps: int) -> Iterator[Callable[[int], object]]:
        with tqdm(total=steps, desc=part, unit="", unit_scale=True, leave=False, disable=not self.progress) as bar:
            yield bar.update

    @contextmanager
    def _measured(self, part: str, what: str, cores: Sequence[str] = ()) -> Iterator[Callable[[int], None]]:
        """Gives a row when the part has passed; call what it gives with the number of words compared."""
        words = 0

        def compared(count: int) -> None:
            nonlocal words
            words += count

        before, began = self.host.bytes_moved, time.perf_counter()
        yield compared
        cycles = max((self.host.busy(core) for core in cores), default=0)
        self._passed(
            Row(
                part=part,
                what=what,
                words=words,
                mismatches=0,
                cycles=cycles,
                link_bytes=self.host.bytes_moved - before,
                seconds=time.perf_counter() - began,
            )
        )

    def board(self) -> BoardInformation:
        """Who answers."""
        with self._measured("board", "information, config") as compared:
            board = self.host.identify()
            compared(4)
        return board

    def memory(self, dram_bytes: int, random_words: int) -> None:
        """Ones walking over the bits of a word, a word of its own at every power of two, random words at both ends."""
        walking = np.uint32(1) << np.arange(32, dtype=np.uint32)
        draw = np.random.default_rng(int(time.time()))
        addresses = [0, *(4 << n for n in range((dram_bytes // 4 - 1).bit_length()))]
        blocks = [draw.integers(0, 1 << 32, random_words, dtype=np.uint32) for _ in range(2)]
        ends = [0, dram_bytes - 4 * random_words]
        steps = 4 * (4 * 32 + 4 * len(addresses) + 4 * random_words)
        what = f"{len(addresses)} addresses, 32 data bits, {random_words:,} random words at each end"
        with self._measured("memory", what) as compared, self._bar("memory", steps) as advance:
            for label, words in (("one", walking), ("zero", ~walking)):
                self._write_and_compare(f"a {label} walking over data bits", [(0, words)], advance, compared)
            for invert in (0, 0xFFFF_FFFF):
                pieces = [(a, np.array([(a ^ invert ^ 0x5A5A_0000) & 0xFFFF_FFFF], np.uint32)) for a in addresses]
                self._write_and_compare("a word of its own at each address bit", pieces, advance, compared)
            self._write_and_compare("random words", list(zip(ends, blocks, strict=True)), advance, compared)

    def _write_and_compare(
        self,
        label: str,
        pieces: Sequence[tuple[int, np.ndarray]],
        advance: Callable[[int], object],
        compared: Callable[[int], None],
    ) -> None:
        for address, words in pieces:
            self.host.write_memory(address, words.astype("<u4").tobytes(), advance)
        for address, words in pieces:
            piece = Piece(label=f"memory, {label}", address=address, content=words.astype("<u4").tobytes())
            self._compare(piece, advance, compared)

    def _compare(self, piece: Piece, advance: Callable[[int], object], compared: Callable[[int], None]) -> None:
        """Raises `DifferenceError` when memory has something else."""
        found = self.host.read_memory(piece.address, len(piece.content), advance)
        got, expected = (np.frombuffer(part + bytes(-len(part) % 4), "<u4") for part in (found, piece.content))
        wrong = np.flatnonzero(got != expected)
        if len(wrong):
            at = int(wrong[0])
            raise DifferenceError(
                f"{piece.label}: {len(wrong)} of {len(expected)} words differ, the first at address "
                f"{piece.address + 4 * at:#010x}: {got[at]:#010x} instead of {expected[at]:#010x}"
            )
        compared(len(expected))

    def part(self, part: Part) -> None:
        """Content to memory, commands to the rings, and what memory holds then."""
        counts = [len(content) for _, content in part.image]
        counts += [(LINE_BYTES + 1) * len(own) for own in part.commands.values()]
        counts += [len(piece.content) for piece in part.expected]
        with self._measured(part.name, part.what, part.cores) as compared, self._bar(part.name, sum(counts)) as advance:
            for address, content in part.image:
                self.host.write_memory(address, content, advance)
            self.host.clear_counters()
            self.host.give(part.commands, advance)
            self.host.finish(advance)
            for piece in part.expected:
                self._compare(piece, advance, compared)

    def faults(self, settings: dict[str, int], rings: dict[str, tuple[int, int]]) -> None:
        """Bad commands are reported by name, and a reset makes all as new."""
        cases = _fault_cases(self.config, settings["window_end"])
        names = ", ".join(case.error.name for case in cases)
        with self._measured("faults", f"{names}, each ended by a reset") as compared:
            for case in cases:
                self.host.soft_reset()
                self.host.configure({**settings, "watchdog": case.watchdog}, rings)
                self.host.give({case.queue: [case.command]})
                must = f"faults: queue {case.queue} must stop with {describe(case.error, case.detail)}"
                try:
                    self.host.finish()
                except StoppedError as error:
                    if (error.queue, error.error, error.detail) != (case.queue, case.error, case.detail):
                        raise DifferenceError(f"{must}, but {error}") from None
                except HangError as error:
                    raise DifferenceError(f"{must}, but {error}") from None
                else:
                    raise DifferenceError(f"{must}, but has carried out the command")
                compared(1)
            self.host.soft_reset()
            self.host.configure(settings, rings)


def _fault_cases(config: AcceleratorConfig, window_end: int) -> list[_FaultCase]:
    semaphore = config.control.semaphores - 1
    rows = {"rows": 1, "k": 4, "stride": 4}
    project = {"rows": 1, "k": config.gemm.max_k + 1, "columns": 4, "parts": 1}
    return [
        _FaultCase(queue="dma", command=Command(opcode=Opcode.ATTEND), error=Error.OPCODE, detail=int(Opcode.ATTEND)),
        _FaultCase(
            queue="dma",
            command=Command(opcode=Opcode.LOAD, operands={**rows, "address": window_end}),
            error=Error.ADDRESS,
            detail=0,
        ),
        _FaultCase(
            queue="gemm0",
            command=Command(opcode=Opcode.PROJECT, operands=project),
            error=Error.GEMM,
            detail=int(Fault.K),
        ),
        _FaultCase(
            queue="dsq",
            command=Command(opcode=Opcode.NOP, waits=(Wait(semaphore, 3),)),
            error=Error.TIMEOUT,
            detail=semaphore | 3 << 8,
            watchdog=_SHORT_WATCHDOG,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is done with a board, whichever it is.

    Parameters
    ----------
    config: of the accelerator.
    heads: real data of the streams.
    parts: one after the other; ``after``: the one behind a reset.
    rings: first line and log2 of the size, by queue; settings: registers by name.
    size: bytes of memory that are needed.
    """

    config: AcceleratorConfig
    heads: list[RealHead]
    parts: list[Part]
    after: Part
    rings: dict[str, tuple[int, int]]
    settings: dict[str, int]
    size: int


def prepare(config: AcceleratorConfig, *, groups: int, heads: int, steps: int, progress: bool = False) -> Plan:
    """Real data, programs, and what golden makes of them.

    groups: records per head; heads: KV heads; steps: queries of each. Raises `UserError` when the config has no room.
    """
    n = config.dsq.group_tokens
    most = min(config.cache.record_pages, config.mha.max_groups - 2)
    for name, value, limit in (("groups", groups, most), ("heads", heads, config.cache.streams), ("steps", steps, n)):
        if not 1 <= value <= limit:
            raise UserError(f"--{name} must be from 1 to {limit} with this config, not {value}")
    settings = settings_for(config)
    real = real_heads(config, settings, heads, groups + 1, steps, progress=progress)
    try:
        programs = Programs(config, settings, real, real_projections(config))
        parts = [programs.dsq(groups + 1), programs.attention(steps), programs.gemm()]
        programs.restart()
        after = programs.step()
    except ValueError as error:
        raise UserError(f"this config has no room for the test: {error}") from None
    rings = programs.place_rings()
    size = programs.memory.end * LINE_BYTES
    registers = programs.settings_of_registers
    return Plan(config=config, heads=real, parts=parts, after=after, rings=rings, settings=registers, size=size)


def run(
    link: Link,
    plan: Plan,
    *,
    initialize: Callable[[Any, BoardInformation], object],
    random_words: int = RANDOM_WORDS,
    passed: Callable[[Row], object],
    patience: float = 15.0,
    progress: bool = False,
) -> tuple[BoardInformation, str | None]:
    """All parts of the test; returns the board, and what is wrong, if anything is.

    Parameters
    ----------
    link: to the board, such as a `fpga.client.Client`.
    plan: what to do.
    initialize: makes the DRAM controller ready, given link and board; raises `UserError` when that fails.
    random_words: of the test of memory.
    passed: gets a row for each part that has passed.
    patience: seconds without any progress after which the board counts as hanging.

    Raises `UserError` when there is another board, or too little memory.
    """
    tester = _Tester(link, plan.config, passed=passed, patience=patience, progress=progress)
    board = tester.board()
    room = min(board.dram_bytes, 1 << plan.config.cache.addr_bits)
    if plan.size > room:
        raise UserError(f"--groups and --heads must be fewer: {plan.size:,} bytes are needed, {room:,} are there")
    settings = {**plan.settings, "watchdog": min(_WATCHDOG_SECONDS * board.clock_hz, (1 << 32) - 1)}
    try:
        initialize(link, board)
        tester.memory(board.dram_bytes, random_words)
        tester.host.soft_reset()
        tester.host.configure(settings, plan.rings)
        for part in plan.parts:
            tester.part(part)
        tester.faults(settings, plan.rings)
        tester.part(plan.after)
    except (BoardError, UserError) as error:  # the link's are of the second kind
        return board, str(error)
    return board, None
