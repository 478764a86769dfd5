"""The host of a board, by nothing but reads and writes of words: its identity, memory, registers, rings of commands."""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from golden.cache.page_table import PageStatus
from golden.control.commands import LINE_BYTES, Command, Error, queue_names
from golden.errors import UserError
from golden.gemm.core import Fault
from rtl.config import AcceleratorConfig
from rtl.control.registers import addresses

__all__ = [
    "INFORMATION",
    "MAGIC",
    "REGISTERS",
    "BoardError",
    "BoardInformation",
    "HangError",
    "Host",
    "Link",
    "StoppedError",
    "config_crc",
    "describe",
]

#: byte addresses of spaces, as the host of a board sees them; DRAM begins at 0
REGISTERS = 0x8000_0000
INFORMATION = 0xA000_0000
#: 'KVO1', the first word of the board's information
MAGIC = 0x4B56_4F31

#: words that are moved between two steps of a progress bar
_SLICE_WORDS = 1024
_POLL_SECONDS = 0.002
_ENABLE, _SOFT_RESET, _CLEAR_COUNTERS = 1, 2, 4
_RESETTING = 1 << 1
_RUNNING, _WAITING = 1, 2


class BoardError(Exception):
    """The board did not do what it should; the message says what."""


class HangError(BoardError):
    """Nothing went on for too long; the message says which queue waits for what."""


class StoppedError(BoardError):
    """A queue has stopped with an error."""

    def __init__(self, queue: str, command: int, error: Error, detail: int, what: str) -> None:
        super().__init__(f"queue {queue} stopped at command {command} ({what}): {describe(error, detail)}")
        self.queue, self.command, self.error, self.detail = queue, command, error, detail


class Link(Protocol):
    """What is used of `fpga.client.Client`."""

    def read(self, address: int, words: int) -> NDArray[np.uint32]:
        """Words of 32 bits from a byte address on."""

    def write(self, address: int, words: NDArray[np.uint32] | Sequence[int]) -> None:
        """The other way round."""


@dataclass(frozen=True, kw_only=True)
class BoardInformation:
    """What a board says of itself; ``config_crc`` as `config_crc` of its config."""

    clock_hz: int
    dram_bytes: int
    config_crc: int


@dataclass(frozen=True, kw_only=True)
class _QueueState:
    done: int
    status: int
    error: Error
    detail: int
    command: int


def config_crc(config: AcceleratorConfig) -> int:
    """CRC-32 of a config's JSON, by which a board says what it was made for."""
    return zlib.crc32(json.dumps(config.to_dict(), sort_keys=True).encode())


def describe(error: Error, detail: int) -> str:
    """An error of a queue by its name, with what its detail means."""
    meanings: dict[Error, Callable[[], str]] = {
        Error.OPCODE: lambda: f"the queue has no opcode {detail}",
        Error.SEMAPHORE: lambda: f"there is no semaphore {detail}",
        Error.TIMEOUT: lambda: f"semaphore {detail & 0xFF} has not counted {detail >> 8} signals in time",
        Error.GEMM: lambda: Fault(detail).name,
        Error.PAGE: lambda: PageStatus(detail).name,
        Error.WRITE: lambda: PageStatus(detail).name,
        Error.ATTENTION: lambda: f"fault {detail & 7} of group {detail >> 3}",
    }
    try:
        return f"{error.name}: {meanings[error]()}" if error in meanings else error.name
    except ValueError:
        return f"{error.name}: detail {detail:#x}"


class Host:
    """Drives an accelerator over a link.

    Parameters
    ----------
    link: to the board.
    config: of its accelerator.
    patience: seconds after which a wait in which nothing goes on is given up.
    """

    def __init__(self, link: Link, config: AcceleratorConfig, *, patience: float = 15.0) -> None:
        self._link, self.config, self.patience = link, config, patience
        self.queues = queue_names(config.gemm.cores)
        self.bytes_moved = 0
        self._addresses = addresses(config)
        self._rings: dict[str, tuple[int, int]] = {}
        self._given: dict[str, list[Command]] = {queue: [] for queue in self.queues}

    def identify(self) -> BoardInformation:
        """Who answers; `UserError` when that is no board with an accelerator of this config."""
        magic, clock_hz, dram_bytes, crc = self._read(INFORMATION, 4)
        if magic != MAGIC:
            raise UserError(f"the port must lead to a KVO board, not to one that answers {magic:#010x}")
        expected = config_crc(self.config)
        if crc != expected:
            raise UserError(
                f"the board has an accelerator of another config, with CRC {crc:#010x}, not {expected:#010x}: name the "
                "board, preset or config that it was built for, or load its bitstream again"
            )
        return BoardInformation(clock_hz=clock_hz, dram_bytes=dram_bytes, config_crc=crc)

    def _read(self, address: int, words: int) -> list[int]:
        self.bytes_moved += 4 * words
        return [int(word) for word in self._link.read(address, words)]

    def read_register(self, name: str) -> int:
        """A register by its name, such as ``queue[0].done``; of one of 64 bits the lower word."""
        return self._read(REGISTERS + self._addresses[name], 1)[0]

    def write_register(self, name: str, value: int) -> None:
        """Write a register by name."""
        self.bytes_moved += 4
        self._link.write(REGISTERS + self._addresses[name], [value])

    def write_memory(self, address: int, content: bytes, advance: Callable[[int], object] | None = None) -> None:
        """Whole words of 32 bits to memory; ``advance(n)`` after every n bytes."""
        words = np.frombuffer(content, "<u4")
        for at in range(0, len(words), _SLICE_WORDS):
            part = words[at : at + _SLICE_WORDS]
            self._link.write(address + 4 * at, part)
            self.bytes_moved += part.nbytes
            if advance:
                advance(part.nbytes)

    def read_memory(self, address: int, count: int, advance: Callable[[int], object] | None = None) -> bytes:
        """Bytes of memory, from any address on."""
        first, last = address // 4, (address + count + 3) // 4
        made = []
        for at in range(first, last, _SLICE_WORDS):
            part = self._link.read(4 * at, min(_SLICE_WORDS, last - at)).astype("<u4")
            self.bytes_moved += part.nbytes
            made.append(part.tobytes())
            if advance:
                advance(part.nbytes)
        return b"".join(made)[address - 4 * first :][:count]

    def configure(self, settings: Mapping[str, int], rings: Mapping[str, tuple[int, int]]) -> None:
        """Set registers, and first line and log2 of the size of each queue's ring; let the queues go."""
        for name, value in settings.items():
            self.write_register(name, value)
        for queue, (line, size) in rings.items():
            number = self.queues.index(queue)
            self.write_register(f"queue[{number}].ring_base", line)
            self.write_register(f"queue[{number}].ring_size", size)
        self._rings = dict(rings)
        self.write_register("control", _ENABLE)

    def give(self, commands: Mapping[str, Sequence[Command]], advance: Callable[[int], object] | None = None) -> None:
        """Put commands into the rings, which have room for all since the last reset, and let them begin."""
        for queue, more in commands.items():
            line, size = self._rings[queue]
            given = self._given[queue]
            if len(given) + len(more) > 1 << size:
                raise ValueError(f"the ring of {queue} must have room for {len(given) + len(more)} commands")
            content = b"".join(command.to_bytes() for command in more)
            self.write_memory((line + len(given)) * LINE_BYTES, content, advance)
            given.extend(more)
        for queue, more in commands.items():
            if more:
                self.write_register(f"queue[{self.queues.index(queue)}].head", len(self._given[queue]))

    def _states(self) -> Iterator[tuple[str, _QueueState]]:
        """Of each queue that has been given commands."""
        for number, queue in enumerate(self.queues):
            if self._given[queue]:
                address = REGISTERS + self._addresses[f"queue[{number}].done"]
                done, status, error, command = self._read(address, 4)
                yield (
                    queue,
                    _QueueState(done=done, status=status, error=Error(error & 15), detail=error >> 8, command=command),
                )

    def finish(self, advance: Callable[[int], object] | None = None) -> None:
        """Until all commands are done; ``advance(n)`` after every n of them.

        Raises `StoppedError` when a queue has stopped, `HangError` when nothing has gone on for too long.
        """
        before, since = -1, time.monotonic()
        while True:
            states = dict(self._states())
            self._check(states)
            now = sum(state.done for state in states.values())
            if now != before:
                if advance and before >= 0:
                    advance(now - before)
                before, since = now, time.monotonic()
            if all(state.done == len(self._given[queue]) for queue, state in states.items()):
                return
            if time.monotonic() - since > self.patience:
                raise HangError(f"nothing has gone on for {self.patience:g} s: {self._waits(states)}")
            time.sleep(_POLL_SECONDS)

    def _check(self, states: Mapping[str, _QueueState]) -> None:
        """Raise `StoppedError` for a queue that has stopped; one that only waited for another comes last."""
        stopped = [(queue, state) for queue, state in states.items() if state.error is not Error.NONE]
        for queue, state in sorted(stopped, key=lambda item: item[1].error is Error.TIMEOUT):
            what = self._given[queue][state.command].opcode.name
            raise StoppedError(queue, state.command, state.error, state.detail, what)

    def _waits(self, states: Mapping[str, _QueueState]) -> str:
        """What each queue that is not done does."""
        made = []
        for queue, state in states.items():
            given = self._given[queue]
            if state.done == len(given):
                continue
            text = f"{queue} has done {state.done} of {len(given)} commands"
            if state.done < len(given):
                command = given[state.done]
                if state.status & _RUNNING:
                    text += f", {command.opcode.name} is running"
                elif state.status & _WAITING:
                    semaphore = state.status >> 8 & 0xFF
                    counts = [str(wait.count) for wait in command.waits if wait.semaphore == semaphore]
                    text += f", {command.opcode.name} waits for semaphore {semaphore} to count {' or '.join(counts)}"
                else:
                    text += f", {command.opcode.name} has not begun"
            made.append(text)
        return "; ".join(made)

    def soft_reset(self) -> None:
        """Reset all but the registers, with all heads and semaphores at 0."""
        self.write_register("control", _SOFT_RESET)
        since = time.monotonic()
        while self.read_register("status") & _RESETTING:
            if time.monotonic() - since > self.patience:
                raise HangError(f"a soft reset has not ended for {self.patience:g} s: memory does not answer")
            time.sleep(_POLL_SECONDS)
        self._given = {queue: [] for queue in self.queues}

    def clear_counters(self) -> None:
        """All counters of the accelerator begin anew."""
        self.write_register("control", _ENABLE | _CLEAR_COUNTERS)

    def busy(self, queue: str) -> int:
        """Cycles in which a command of a queue had begun and was not done."""
        return self.read_register(f"queue[{self.queues.index(queue)}].busy")
