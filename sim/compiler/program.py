"""What comes of compiling: commands of each queue, memory before the first of them, where results will lie."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from golden.cache.page_table import PageTable
from golden.control.commands import LINE_BYTES, Command, Opcode, Wait, queue_names
from golden.control.memory import row_bytes
from rtl.config import AcceleratorConfig

__all__ = ["KINDS", "Memory", "Program", "Queues", "Region", "Tag"]

#: kinds of queues; each sub-batch has a semaphore for each of them
KINDS = ("mha", "dsq", "dma", "gemm")
_TAGS = 1 << 16


class Region(NamedTuple):
    """Lines of memory."""

    line: int
    lines: int


class Tag(NamedTuple):
    """What a command is part of; ``sequence`` and ``head`` where it serves one alone."""

    sub_batch: int
    stage: str
    sequence: int | None = None
    head: int | None = None


class Memory:
    """Regions one behind the other, and what they hold in the beginning: byte addresses and contents."""

    def __init__(self) -> None:
        self.regions: dict[str, Region] = {}
        self.image: list[tuple[int, bytes]] = []
        self.end = 0

    def place(self, name: str, size: int | bytes) -> int:
        """The first line of a new region of so many bytes, or with this content."""
        length = size if isinstance(size, int) else len(size)
        region = Region(self.end, -(-length // LINE_BYTES))
        assert name not in self.regions, name
        self.regions[name] = region
        if isinstance(size, bytes):
            self.image.append((region.line * LINE_BYTES, size))
        self.end += region.lines
        return region.line


class Queues:
    """Commands in the making. Each signals the semaphore of its sub-batch and its kind of queue.

    These count like a time line: `reached` is what stands there when all that has been added is done. Of the queues of
    one core, which are in order, any count belongs to exactly the commands up to one. The GEMM cores share a semaphore:
    its counts are exact between stages, which is where they are waited for. For every core has as many commands in a
    stage (NOP where it has less to do), and all of them, NOPs too, wait for something that comes after the whole
    stage before. So no core signals for a stage until every core has for the one before, and the count is reached
    exactly when the stage is complete.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.commands: dict[str, list[Command]] = {name: [] for name in queue_names(cores)}
        self.signals: Counter[int] = Counter()
        self.tags: dict[Tag, int] = {}

    @staticmethod
    def semaphore(sub_batch: int, kind: str) -> int:
        """Its number."""
        return len(KINDS) * sub_batch + KINDS.index(kind)

    def reached(self, sub_batch: int, kind: str) -> Wait:
        """For all commands so far of a sub-batch in a kind of queue."""
        semaphore = self.semaphore(sub_batch, kind)
        return Wait(semaphore, self.signals[semaphore])

    def add(self, queue: str, tag: Tag, opcode: Opcode, operands: dict[str, int], *waits: Wait | None) -> None:
        """A command behind the others of its queue. Waits for nothing are left out."""
        semaphore = self.semaphore(tag.sub_batch, queue.rstrip("0123456789"))
        number = self.tags.setdefault(tag, len(self.tags))
        assert number < _TAGS
        command = Command(
            opcode=opcode,
            operands=operands,
            waits=tuple(wait for wait in waits if wait is not None and wait.count),
            signal=semaphore,
            tag=number,
        )
        self.commands[queue].append(command)
        self.signals[semaphore] += 1

    def add_stage(self, tag: Tag, work: list[list[dict[str, int]]], *waits: Wait | None) -> None:
        """PROJECT commands, a list of operands for each of the first cores; the others have nothing to do."""
        longest = max(len(own) for own in work)
        for core in range(self.cores):
            own = work[core] if core < len(work) else []
            for operands in own:
                self.add(f"gemm{core}", tag, Opcode.PROJECT, operands, *waits)
            for _ in range(longest - len(own)):
                self.add(f"gemm{core}", tag, Opcode.NOP, {}, *waits)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled batch.

    Parameters
    ----------
    config: of the accelerator.
    hidden: elements of a row of residuals.
    queues: commands by name of the queue.
    setup: how many of each queue's first commands do nothing but make the caches that the batch begins with.
    regions: of memory, by name; ``ring.<queue>`` have as many lines as a power of two.
    image: byte address and content of what memory holds before, beside the rings; everything else may be anything.
    semaphores: as many as are used.
    tags: what the tags of commands mean.
    sub_batches: sequences (by their index) of each.
    pages: the page table when all commands are done.
    """

    config: AcceleratorConfig
    hidden: int
    steps: int
    queues: dict[str, list[Command]]
    setup: dict[str, int]
    regions: dict[str, Region]
    image: list[tuple[int, bytes]] = field(repr=False)
    semaphores: int
    tags: dict[int, Tag]
    sub_batches: list[range]
    pages: PageTable = field(repr=False)

    @property
    def lines(self) -> int:
        """Lines of memory in all."""
        return max(region.line + region.lines for region in self.regions.values())

    @property
    def record_base(self) -> int:
        """First line of the pages of records."""
        return self.regions["records"].line

    @property
    def block_base(self) -> int:
        """First line of the pages of INT8 blocks."""
        return self.regions["blocks"].line

    def ring(self, queue: str) -> tuple[int, int, bytes]:
        """A queue's ring: first line, log2 of its size, all commands."""
        region = self.regions[f"ring.{queue}"]
        content = b"".join(command.to_bytes() for command in self.queues[queue])
        return region.line, region.lines.bit_length() - 1, content

    def output(self, step: int, sequence: int) -> int:
        """First line of the residuals that a token of a sequence leaves."""
        batch = sum(len(part) for part in self.sub_batches)
        return self.regions["outputs"].line + (step * batch + sequence) * row_bytes(self.hidden) // LINE_BYTES
