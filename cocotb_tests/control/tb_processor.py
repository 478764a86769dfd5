"""Coroutines of the CommandProcessor tests: rings in memory, cores, and a host around it."""

import random
from collections import deque
from itertools import pairwise, repeat
from typing import Any

import cocotb

from cocotb_tests.control.rings import FAULTS, Fault, Program, geometry, random_program
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.shapes import placed
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.lib.tally import Tally
from golden.control.commands import COMMAND_BYTES, Command, Error, Opcode, Wait
from rtl.config import AcceleratorConfig
from rtl.control._event_log import EventKind, event_layout
from rtl.control._layout import command_layout, done_layout, operand_layout
from rtl.control.processor import CommandProcessor
from rtl.control.registers import settings_layout

PARTS = ("busy", "waiting", "idle")
RING_LINES = 1 << 10  # from the first line of one ring to that of the next


def config() -> AcceleratorConfig:
    """The geometry of this run."""
    return geometry(**params()["geometry"])


class Memory:
    """Lines of memory; answers requests in order, refuses some lines, some of them as outside the window."""

    def __init__(self, dut: Any, processor: CommandProcessor, draw: random.Random, stall: str, latency: int) -> None:
        self.draw, self.latency = draw, latency
        self.lines: dict[int, bytes] = {}
        self.refused: set[int] = set()
        self.outside: set[int] = set()
        port = processor.o_read.payload.shape()
        self.requests = StreamSink(dut, "o_read", shape=port, stall=stalls.named(stall, "read"))
        self.words = StreamSource(dut, "i_read", stall=stalls.named(stall, "words"))
        self.bus_bits = processor.config.dsq.bus_bits
        self.asked: list[int] = []
        self._due: deque[tuple[int, int]] = deque()
        self._outside = dut.outside
        self._outside.value = 0
        Engine.of(dut.clk).attach(self)

    def edge(self, cycle: int) -> None:
        """Take requests, answer those whose time has come."""
        words = 8 * COMMAND_BYTES // self.bus_bits
        for request in self.requests.take_all():
            assert request["count"] == words and request["address"] % words == 0
            line = request["address"] // words
            self.asked.append(-1 if request["bad"] else line)
            if line in self.outside:
                self._outside.value = 1
            self._due.append((cycle + self.draw.randint(0, self.latency), -1 if request["bad"] else line))
        while self._due and self._due[0][0] <= cycle:
            _, line = self._due.popleft()
            content = int.from_bytes(self.lines.get(line, b""), "little")
            failed = self.draw.randrange(words)
            for n in range(words):
                word = content >> n * self.bus_bits & (1 << self.bus_bits) - 1
                refused = line < 0 or line in self.outside or (line in self.refused and n == failed)
                self.words.send_nowait(
                    [(self.draw.getrandbits(self.bus_bits) if refused else word) | refused << self.bus_bits]
                )

    def clear(self) -> None:
        """A reset."""
        self._due.clear()
        self.asked.clear()
        self._outside.value = 0


class Core:
    """A queue's core: compares its commands, checks that their waits are satisfied, ends them some time later."""

    def __init__(self, bench: "Bench", dut: Any, queue: int, stall: str) -> None:
        self.bench, self.queue = bench, queue
        self.command = StreamSink(
            dut, f"o_command__{queue}", shape=command_layout(), stall=stalls.named(stall, f"c{queue}")
        )
        self.go = StreamSink(dut, f"o_go__{queue}", stall=stalls.named(stall, f"g{queue}"))
        self.done = StreamSource(dut, f"i_done__{queue}", shape=done_layout(), stall=stalls.named(stall, f"d{queue}"))
        self.least = 0  # cycles of a command
        self.clear()
        Engine.of(dut.clk).attach(self)

    def clear(self) -> None:
        """A reset."""
        self.offered: list[int] = []  # cycles in which ends were offered
        self.given = self.begun = self.ended = self.signalled = 0
        self._due: deque[int] = deque()

    def edge(self, cycle: int) -> None:
        """Follow what the streams have carried."""
        bench, program, queue = self.bench, self.bench.program, self.queue
        for got in self.command.take_all():
            assert self.given < program.given(queue), f"queue {queue}: command {self.given} must not be given"
            compare(got, program.queues[queue][self.given])
            self.given += 1
        while self.signalled < len(self.done.transfers):
            command = program.queues[queue][self.signalled]
            if command.signal is not None and self.signalled < program.done(queue):
                bench.counts[command.signal] += 1
            self.signalled += 1
        for _ in self.go.take_all():
            command = program.queues[queue][self.begun]
            for wait in command.waits:
                count = bench.counts[wait.semaphore]
                assert (count - wait.count) % 65536 < 32768, (
                    f"queue {queue}, command {self.begun}: {wait}, it has {count}"
                )
            at, fault = program.faults.get(queue, (-1, None))
            assert self.begun < program.done(queue) or (self.begun >= at and fault.ended)
            self.begun += 1
            self._due.append(cycle + self.least + bench.draw.choice([0, 1, bench.draw.randint(0, bench.duration)]))
        while self._due and self._due[0] <= cycle and self.ended < self.given:
            self._due.popleft()
            at, fault = program.faults.get(queue, (-1, None))
            failed = fault is not None and self.ended == at and fault.ended
            self.done.send_nowait(
                [{"error": fault.error, "detail": fault.detail} if failed else {"error": 0, "detail": 0}]
            )
            self.offered.append(cycle + 1)
            self.ended += 1


def compare(got: Any, command: Command) -> None:
    """A core's command against golden's."""
    assert got.opcode == command.opcode, f"opcode {got.opcode}, expected {command}"
    operands = operand_layout(command.opcode).from_bits(got.operands)
    for name, value in command.operands.items():
        assert operands[name] == value, f"{name} {operands[name]}, expected {value}"


class Bench:
    """The processor with memory, cores and its registers."""

    def __init__(
        self, dut: Any, *, stall: str = "none", events: str = "none", latency: int = 30, duration: int = 100
    ) -> None:
        self.dut, self.config = dut, config()
        self.draw, self.duration = rng("bench", stall, events), duration
        self.processor = CommandProcessor(self.config)
        self.queues = self.processor.queues
        self.program = Program([[] for _ in range(self.queues)])
        self.memory = Memory(dut, self.processor, self.draw, stall, latency)
        self.cores = [Core(self, dut, queue, stall) for queue in range(self.queues)]
        self.events = StreamSink(dut, "o_event", shape=event_layout(), stall=stalls.named(events, "events"))
        self.settings = settings_layout(self.config)
        self.size_log2 = 5
        self.bases = [(queue + 1) * RING_LINES + 5 for queue in range(self.queues)]
        shape = self.processor.status.shape()
        places = [placed(shape, f"queue[{q}].{part}.cycles")[0] for q in range(self.queues) for part in PARTS]
        self.spent = Tally(dut, "status", places)
        self.clear()
        self.apply()

    def cycles(self, queue: int, part: str) -> int:
        """Cycles that were ``busy``, ``waiting`` or ``idle``."""
        return self.spent.counts[len(PARTS) * queue + PARTS.index(part)]

    def clear(self) -> None:
        """What the host sets, and what has been signalled, after a reset."""
        self.counts = [0] * self.config.control.semaphores
        self.heads = [0] * self.queues
        self.enable, self.clear_counters, self.watchdog = 1, 0, 0

    def apply(self) -> None:
        """Drive the settings."""
        values = {
            "control": {"enable": self.enable, "clear_counters": self.clear_counters},
            "watchdog": {"cycles": self.watchdog},
            "queue": [
                {"ring_base": {"line": self.bases[q]}, "ring_size": {"log2": self.size_log2}, "head": {"count": head}}
                for q, head in enumerate(self.heads)
            ],
        }
        self.dut.settings.value = self.settings.const(values).as_bits()

    @property
    def status(self) -> Any:
        """What the processor reports."""
        return self.processor.status.shape().from_bits(int(self.dut.status.value))

    def give(self, queue: int, count: int) -> None:
        """Put so many more commands into a ring, as far as there are any and there is room; does not tell."""
        done = self.status.queue[queue].done.count
        ring, size = self.bases[queue], 1 << self.size_log2
        at, fault = self.program.faults.get(queue, (-1, None))
        last = min(len(self.program.queues[queue]), self.heads[queue] + count, done + size)
        for n in range(self.heads[queue], last):
            line = ring + n % size
            self.memory.lines[line] = self.program.content(queue, n)
            for lines, refused in ((self.memory.refused, "memory"), (self.memory.outside, "outside")):
                lines.discard(line)
                if n == at and getattr(fault, refused):
                    lines.add(line)
        self.heads[queue] = max(last, self.heads[queue])

    def finished(self) -> bool:
        """Every queue is done, or has stopped where it has to."""
        return all(
            status.done.count == self.program.done(q) and status.status.stopped == (q in self.program.faults)
            for q, status in enumerate(self.status.queue)
        )

    async def run(self, program: Program, *, steps: int = 8, limit: int = 20_000) -> None:
        """Give a program to the rings bit by bit and wait for its end; check what the host sees then."""
        self.program = program
        since = Engine.of(self.dut.clk).cycle
        while not self.finished():
            for queue in range(self.queues):
                self.give(queue, self.draw.randint(0, steps))
            self.apply()
            await cycles(self.dut, self.draw.randint(1, 60))
            cycle = Engine.of(self.dut.clk).cycle
            assert cycle - since < limit, f"{self.heads}, {self.status}"
        await cycles(self.dut, 100)
        self.check()

    def check(self) -> None:
        """Registers against the program."""
        status = self.status
        for q, queue in enumerate(status.queue):
            assert queue.done.count == self.program.done(q)
            assert queue.status.running == queue.status.waiting == 0
            at, fault = self.program.faults.get(q, (0, None))
            assert queue.status.stopped == (fault is not None)
            expected = (fault.error, fault.detail) if fault else (Error.NONE, 0)
            assert (queue.error.code, queue.error.detail) == expected
            assert queue.error_command.count == at
            assert sum(self.cycles(q, part) for part in PARTS) == status.cycles + 1  # that of this cycle
            core = self.cores[q]
            assert core.begun == self.program.done(q) or (fault is not None and fault.ended)
            if fault is None:
                assert core.given == len(self.program.queues[q])
        assert status.error == bool(self.program.faults)
        assert status.busy == 0


@cocotb.test()
@cocotb.parametrize(
    (
        ("stall", "latency", "duration"),
        [("none", 0, 0), ("none", 40, 200), ("random", 20, 50), ("heavy", 100, 20), ("bursty", 5, 100)],
    )
)
async def runs_rings(dut, stall, latency, duration):
    """Order, waits, signals, wrap-around, in rings that are filled while they run."""
    bench = Bench(dut, stall=stall, latency=latency, duration=duration)
    await start(dut)
    for size_log2 in (bench.draw.choice([1, 2]), 5):
        await restart(bench)
        bench.size_log2 = size_log2
        await bench.run(random_program(bench.draw, bench.config, params()["commands"]))


async def restart(bench: Bench) -> None:
    """A reset, and the host's registers as after one."""
    bench.clear()
    bench.program = Program([[] for _ in range(bench.queues)])
    bench.memory.refused.clear()
    bench.memory.outside.clear()
    bench.apply()
    await reset(bench.dut)


@cocotb.test()
@cocotb.parametrize(("stall", ["none", "random"]))
async def stops_at_faults(dut, stall):
    """Every fault in turn, and several at once; the other queues go on; a reset recovers."""
    bench = Bench(dut, stall=stall)
    await start(dut)
    pairs = list(zip(FAULTS, FAULTS[1:] + FAULTS[:1], strict=True))
    for faults in pairs if stall == "none" else [FAULTS[:4], FAULTS[4:7], FAULTS]:
        faults = [what for what in faults if what != "memory" or "outside" not in faults][: bench.queues]
        await restart(bench)
        bench.watchdog = 3000
        await bench.run(random_program(bench.draw, bench.config, 10 * bench.queues, faults=faults))
        commands = 5 * bench.queues
    await restart(bench)
    await bench.run(random_program(bench.draw, bench.config, commands))


@cocotb.test()
async def stops_at_rings_beyond_memory(dut):
    """Lines that the bus has no address for are outside the window."""
    bench = Bench(dut)
    await start(dut)
    for base in (1 << bench.config.cache.addr_bits - 6, (1 << 32) - 1):
        await restart(bench)
        program = Program([[Command(opcode=Opcode.NOP)] * 3 for _ in range(bench.queues)])
        program.faults[1] = (0, Fault(error=Error.ADDRESS, memory=True))
        bench.bases[1] = base
        await bench.run(program)
        assert -1 in bench.memory.asked


def nops(*waits: Wait, signal: int | None = None, count: int = 1) -> list[Command]:
    """So many commands that do nothing."""
    return [Command(opcode=Opcode.NOP, waits=waits, signal=signal)] * count


def only(bench: Bench, queues: dict[int, list[Command]]) -> Program:
    """Commands of some queues."""
    return Program([queues.get(q, []) for q in range(bench.queues)])


async def give_all(bench: Bench, program: Program) -> None:
    """A program that fits into the rings, at once."""
    bench.program = program
    for queue in range(bench.queues):
        bench.give(queue, 1 << bench.size_log2)
    bench.apply()
    await cycles(bench.dut, 1)


@cocotb.test()
async def compares_counts_modulo(dut):
    """A semaphore that counts 0 satisfies the upper half of all counts."""
    bench = Bench(dut, duration=0)
    await start(dut)
    for signals in (0, 3):
        for below, satisfied in ((0, True), (-1, False), (32767, True), (32768, False), (-32767, False)):
            await restart(bench)
            wait = Wait(0, (signals - below) % 65536)
            program = only(bench, {0: nops(signal=0, count=signals)})
            await bench.run(program)
            program.queues[0].extend(nops(wait, count=2))
            await give_all(bench, program)
            await cycles(dut, 200 + bench.config.control.semaphores)
            status = bench.status.queue[0]
            assert status.done.count == signals + 2 * satisfied, f"{signals} signals, {wait}"
            assert status.status.waiting == (not satisfied)
            assert status.status.semaphore == 0


@cocotb.test()
async def watchdog_tells_what_is_waited_for(dut):
    """In time, not while the command before runs, and not when it is off."""
    bench = Bench(dut, duration=0, latency=0)
    await start(dut)
    last = bench.config.control.semaphores - 1
    wait = Wait(last, 500)
    turn = CommandProcessor.turn_cycles(bench.config)
    for watchdog, waits in ((1, (wait,)), (400, (Wait(0, 0), wait)), (0, (wait,))):
        await restart(bench)
        bench.watchdog = watchdog
        program = only(bench, {0: nops(count=1) + nops(*waits)})
        await give_all(bench, program)
        await cycles(dut, 900)
        events = [event for event in bench.events.take_all() if event.kind in (EventKind.WAIT, EventKind.ERROR)]
        if watchdog:
            program.faults[0] = (1, Fault(error=Error.TIMEOUT, detail=last | 500 << 8))
            bench.check()
            began, ended = events
            assert watchdog <= ended.time - began.time <= watchdog + turn
        else:
            assert len(events) == 1
            assert bench.status.queue[0].status.waiting
    await restart(bench)
    bench.watchdog = 50
    bench.cores[0].least = 600  # longer than the watchdog allows to wait
    await bench.run(only(bench, {0: nops(signal=0) + nops(Wait(0, 1))}))
    bench.cores[0].least = 0


def spent(events: list[Any], begin: EventKind, end: EventKind) -> int:
    """Cycles in which more of a queue had begun than ended."""
    under_way = total = since = 0
    for event in events:
        if event.kind == begin:
            since = event.time if under_way == 0 else since
            under_way += 1
        elif event.kind == end and under_way:
            under_way -= 1
            total += event.time - since if under_way == 0 else 0
    return total


@cocotb.test()
async def tells_events_and_counts_cycles(dut):
    """Each command begins and ends once, in order, with its tag; the counters are what the events say."""
    bench = Bench(dut)
    await start(dut)
    await restart(bench)
    await bench.run(random_program(bench.draw, bench.config, params()["commands"], wait=0.8))
    events = bench.events.take_all()
    assert all(a.time < b.time for a, b in pairwise(events))
    waits = 0
    for q in range(bench.queues):
        own = [event for event in events if event.queue == q]
        tags = [command.tag for command in bench.program.queues[q]]
        for kind in (EventKind.BEGIN, EventKind.END):
            assert [event.tag for event in own if event.kind == kind] == tags
        begun = [n for n, event in enumerate(own) if event.kind == EventKind.BEGIN]
        ended = [n for n, event in enumerate(own) if event.kind == EventKind.END]
        assert all(a < b for a, b in zip(begun, ended, strict=True))
        for n, event in enumerate(own):
            if event.kind == EventKind.WAIT:
                waits += 1
                assert own[n + 1].kind == EventKind.BEGIN and own[n + 1].tag == event.tag
        assert bench.cycles(q, "busy") == spent(own, EventKind.BEGIN, EventKind.END)
        assert bench.cycles(q, "waiting") == spent(own, EventKind.WAIT, EventKind.BEGIN)
    assert waits or params()["commands"] < 30
    bench.clear_counters = 1
    bench.apply()
    await cycles(dut, 1)
    bench.clear_counters = 0
    bench.apply()
    await cycles(dut, 10)
    assert 5 <= bench.status.cycles <= 12


@cocotb.test()
async def drops_events_that_nobody_takes(dut):
    bench = Bench(dut, duration=0)
    await start(dut)
    await restart(bench)
    bench.events.stall = repeat(True)
    room = bench.config.control.event_depth + 1
    count = room // bench.queues + 2
    await bench.run(Program([nops(count=count) for _ in range(bench.queues)]))
    total = 2 * count * bench.queues
    assert bench.status.events_lost == total - room
    bench.events.stall = None
    await cycles(dut, room + 10)
    assert len(bench.events.take_all()) == room


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """A waiting command begins in time; those behind it once a turn; no more than the depth is on chip."""
    bench = Bench(dut, duration=0, latency=0)
    await start(dut)
    depth = bench.config.control.queue_depth
    turn = CommandProcessor.turn_cycles(bench.config)
    for delay in range(0, turn, 1 + turn // 8):
        await restart(bench)
        bench.cores[1].least = 500 + delay
        await give_all(bench, only(bench, {0: nops(Wait(0, 1), count=2 * depth), 1: nops(signal=0)}))
        await cycles(dut, 450)
        assert sum(line // RING_LINES == 1 for line in bench.memory.asked) == depth
        while bench.status.queue[1].done.count == 0:
            await cycles(dut, 5)
        await cycles(dut, turn * depth + 20)
        begun = bench.cores[0].go.transfers
        assert begun[0] - bench.cores[1].offered[0] <= CommandProcessor.latency(bench.config)
        turns = [b - a for a, b in pairwise(begun[:depth])]
        assert turns == [turn] * (depth - 1)
        bench.cores[1].least = 0


@cocotb.test()
async def cores_that_stall_hold_up_nobody_else(dut):
    bench = Bench(dut)
    await start(dut)
    await restart(bench)
    core = bench.cores[2]
    core.command.stall = core.go.stall = repeat(True)
    program = random_program(bench.draw, bench.config, params()["commands"], wait=0)
    await give_all(bench, only(bench, {2: program.queues[2]}))
    await cycles(dut, 100)
    bench.program = program
    others = [q for q in range(bench.queues) if q != 2]
    while not all(bench.status.queue[q].done.count == program.done(q) for q in others):
        for queue in others:
            bench.give(queue, 5)
        bench.apply()
        await cycles(dut, 50)
    assert core.given == core.begun == 0


@cocotb.test()
async def fetches_only_when_enabled(dut):
    bench = Bench(dut)
    await start(dut)
    await restart(bench)
    bench.enable = 0
    program = Program([nops(count=5) for _ in range(bench.queues)])
    await give_all(bench, program)
    await cycles(dut, 100)
    assert bench.memory.asked == []
    assert bench.status.busy
    bench.enable = 1
    await bench.run(program)


@cocotb.test()
@cocotb.parametrize(("stall", ["none", "random"]))
async def works_after_reset_during_traffic(dut, stall):
    bench = Bench(dut, stall=stall)
    await start(dut)
    for _ in range(3):
        bench.program = random_program(bench.draw, bench.config, params()["commands"])
        for queue in range(bench.queues):
            bench.give(queue, 30)
        bench.apply()
        await cycles(dut, bench.draw.randint(50, 500))
        await restart(bench)
        await bench.run(random_program(bench.draw, bench.config, params()["commands"] // 2))
        await restart(bench)
