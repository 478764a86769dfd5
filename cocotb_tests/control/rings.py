"""Rings of random commands that can be done, and what becomes of them when one of them cannot."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from golden.control.commands import FIELDS, OPCODES, Command, Error, Wait, queue_names
from rtl.config import AcceleratorConfig, DsqConfig, preset

__all__ = ["FAULTS", "Fault", "Program", "geometry", "random_command", "random_program"]


def geometry(
    *, bus_bits: int = 32, cores: int = 2, queue_depth: int = 4, semaphores: int = 64, event_depth: int = 64
) -> AcceleratorConfig:
    """The preset `tiny` with other sizes of what the processor depends on."""
    tiny = preset("tiny")
    sizes = {"queue_depth": queue_depth, "semaphores": semaphores, "event_depth": event_depth}
    return replace(
        tiny,
        dsq=tiny.dsq if bus_bits == 32 else DsqConfig(head_dim=128, bus_bits=bus_bits),
        cache=replace(tiny.cache, addr_bits=30),
        gemm=replace(tiny.gemm, cores=cores),
        control=replace(tiny.control, **sizes),
    )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with a command, and what the queue reports then.

    ``content``: the 64 bytes in memory instead of the command's; ``ended``: the core's answer; ``memory``: its words
    are refused, ``outside`` as outside the window.
    """

    error: Error
    detail: int = 0
    content: bytes | None = None
    ended: bool = False
    memory: bool = False
    outside: bool = False

    @property
    def given(self) -> bool:
        """Whether the core gets the command."""
        return self.ended or self.error is Error.TIMEOUT


@dataclass
class Program:
    """Commands of each queue, and the faulty ones, by queue and number."""

    queues: list[list[Command]]
    faults: dict[int, tuple[int, Fault]] = field(default_factory=dict)

    def content(self, queue: int, number: int) -> bytes:
        """What the host writes for a command."""
        at, fault = self.faults.get(queue, (-1, None))
        if at == number and fault is not None and fault.content is not None:
            return fault.content
        return self.queues[queue][number].to_bytes()

    def done(self, queue: int) -> int:
        """Commands that are done in the end."""
        return self.faults[queue][0] if queue in self.faults else len(self.queues[queue])

    def given(self, queue: int) -> int:
        """Commands that the core may get, at most."""
        if queue not in self.faults:
            return len(self.queues[queue])
        at, fault = self.faults[queue]
        return len(self.queues[queue]) if fault.given else at


def random_command(draw: random.Random, kind: str, **header: Any) -> Command:
    """A command of a kind of queue with any operands."""
    opcode = draw.choice(OPCODES[kind])
    operands = {}
    for name, bits in FIELDS[opcode].items():
        value = draw.getrandbits(abs(bits))
        operands[name] = value - (1 << -bits - 1) if bits < 0 else value
    return Command(opcode=opcode, operands=operands, tag=draw.getrandbits(16), **header)


#: what may be wrong with a command
FAULTS = ("opcode", "wait", "second wait", "signal", "late", "ended", "memory", "outside")


def random_fault(
    draw: random.Random, what: str, kind: str, semaphores: int, counts: list[int]
) -> tuple[Command, Fault]:
    """A command of a kind of queue that cannot be done."""
    command = random_command(draw, kind, signal=draw.randrange(semaphores))
    if what in ("wait", "second wait", "signal") and semaphores == 256:
        what = "ended"
    match what:
        case "opcode":
            opcode = draw.choice([code for code in range(256) if code not in OPCODES[kind]])
            content = bytes([opcode]) + command.to_bytes()[1:]
            return command, Fault(error=Error.OPCODE, detail=opcode, content=content)
        case "wait" | "second wait" | "signal":
            beyond = draw.randint(semaphores, 255)
            waits = (Wait(beyond, draw.getrandbits(16)),)
            if what == "signal":
                command = replace(command, signal=beyond)
            else:
                command = replace(command, waits=waits if what == "wait" else (Wait(0, 0), *waits))
            return command, Fault(error=Error.SEMAPHORE, detail=beyond)
        case "late":
            semaphore = draw.randrange(semaphores)
            count = (counts[semaphore] + draw.randint(5000, 30000)) % 65536
            waits = (Wait(semaphore, count),)
            command = replace(command, waits=waits if draw.random() < 0.5 else (Wait(0, 0), *waits))
            return command, Fault(error=Error.TIMEOUT, detail=semaphore | count << 8)
        case "ended":
            error = draw.choice([error for error in Error if error >= Error.ADDRESS])
            return command, Fault(error=error, detail=draw.getrandbits(24), ended=True)
    error = Error.ADDRESS if what == "outside" else Error.MEMORY
    return command, Fault(error=error, memory=True, outside=what == "outside")


def random_program(
    draw: random.Random, config: AcceleratorConfig, count: int, *, faults: Sequence[str] = (), wait: float = 0.5
) -> Program:
    """``count`` commands, of which one each in some queues is faulty; none waits for what never comes.

    A command waits for signals of commands that were made before it, so that there is always one that can go on.
    ``wait``: the share of commands with waits. Either "memory" or "outside" may be among ``faults``, not both.
    """
    kinds = [name.rstrip("0123456789") for name in queue_names(config.gemm.cores)]
    semaphores = config.control.semaphores
    few = min(semaphores, 8)
    counts = [0] * semaphores
    program = Program([[] for _ in kinds])
    stops = {
        queue: (draw.randint(0, count // len(kinds) // 2), what)
        for queue, what in zip(draw.sample(range(len(kinds)), len(faults)), faults, strict=True)
    }
    for n in range(count):
        queue = n if n < len(kinds) else draw.randrange(len(kinds))
        at, what = stops.get(queue, (-1, ""))
        if len(program.queues[queue]) == at:
            command, fault = random_fault(draw, what, kinds[queue], semaphores, counts)
            program.faults[queue] = (at, fault)
            program.queues[queue].append(command)
            continue
        waits = []
        for _ in range(draw.choice([1, 2]) if draw.random() < wait else 0):
            semaphore = draw.randrange(few if draw.random() < 0.8 else semaphores)
            below = draw.choice([0, 0, 1, draw.randint(0, 30000)])
            waits.append(Wait(semaphore, (counts[semaphore] - below) % 65536))
        signal = draw.randrange(few) if draw.random() < 0.7 else None
        program.queues[queue].append(random_command(draw, kinds[queue], waits=tuple(waits), signal=signal))
        if signal is not None and queue not in program.faults:
            counts[signal] += 1
    for queue, (_, what) in stops.items():  # queues that were too short
        if queue not in program.faults:
            command, fault = random_fault(draw, what, kinds[queue], semaphores, counts)
            program.faults[queue] = (len(program.queues[queue]), fault)
            program.queues[queue].append(command)
    return program
