"""A board without hardware: memory and registers behind the calls of a link, commands carried out by golden."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpga.host import INFORMATION, MAGIC, REGISTERS, config_crc
from fpga.selftest_data import RealHead, settings_for
from golden.control.commands import COMMAND_BYTES, LINE_BYTES, OPCODES, Command, Error, Opcode, Wait, queue_names
from golden.control.memory import unpack_state
from golden.gemm.core import Fault
from golden.state import HeadState
from rtl.config import AcceleratorConfig
from rtl.control.registers import addresses
from sim.compiler.program import Region
from sim.interpreter import Interpreter

__all__ = ["CLOCK_HZ", "FakeBoard"]

CLOCK_HZ = 25_000_000


class _Core(Interpreter):
    """Takes the states of attention from memory, where the host may have written them."""

    def _state_memory(self, o: dict[str, int], state: HeadState) -> int:
        c = self.config
        content = bytes(self.memory[o["state"] * LINE_BYTES :])
        history, recent, votes = unpack_state(content, c.mha.max_groups, c.dsq.group_tokens)
        state.history, state.recent = history[: len(state.history)], recent[: len(state.recent)]
        state.mass = votes[: len(state.mass)]
        return o["state"] * LINE_BYTES


class FakeBoard:
    """As `fpga.client.Client`, with a board behind it.

    Parameters
    ----------
    config: of the accelerator.
    heads: of the streams, whose calibration and shift the interpreter checks.
    dram_bytes: of memory.

    Faults, all off at first: ``flips`` are bits (byte address, bit) that memory does not keep; ``hangs`` are queues
    that carry nothing out; ``spoils(queue, command)`` may change memory after a command; ``information`` are the words
    of the board; ``deaf``: bad commands are not noticed.
    """

    def __init__(self, config: AcceleratorConfig, heads: Sequence[RealHead], dram_bytes: int) -> None:
        self.config, self.heads = config, heads
        self.names = {address: name for name, address in addresses(config).items()}
        self.queues = queue_names(config.gemm.cores)
        self.information = [MAGIC, CLOCK_HZ, dram_bytes, config_crc(config)]
        self.memory = bytearray(np.random.default_rng(1).bytes(dram_bytes))
        self.registers: defaultdict[str, int] = defaultdict(int)
        self.flips: list[tuple[int, int]] = []
        self.hangs: set[str] = set()
        self.spoils: Callable[[str, Command], object] = lambda queue, command: None
        self.deaf = False
        self.resets = 0
        self._reset()

    def _reset(self) -> None:
        self._core: _Core | None = None
        self.errors = dict.fromkeys(self.queues, (Error.NONE, 0, 0))
        for n in range(len(self.queues)):
            for part in ("head", "done"):
                self.registers[f"queue[{n}].{part}"] = 0

    def read(self, address: int, words: int) -> NDArray[np.uint32]:
        """Words from memory, registers, board information."""
        if address >= INFORMATION:
            return np.array(self.information, np.uint32)[(address - INFORMATION) // 4 :][:words]
        if address >= REGISTERS:
            self._carry_out()
            names = [self.names[address - REGISTERS + 4 * n] for n in range(words)]
            return np.array([self._register(name) for name in names], np.uint32)
        content = np.frombuffer(bytes(self.memory), np.uint8)[address : address + 4 * words].copy()
        assert len(content) == 4 * words
        for place, bit in self.flips:
            if address <= place < address + 4 * words:
                content[place - address] ^= 1 << bit
        return content.view("<u4")

    def write(self, address: int, words: NDArray[np.uint32] | Sequence[int]) -> None:
        """Words to memory or registers."""
        content = np.asarray(words, "<u4")
        if address < REGISTERS:
            assert address + content.nbytes <= len(self.memory)
            self.memory[address : address + content.nbytes] = content.tobytes()
            return
        for n, word in enumerate(content):
            name = self.names[address - REGISTERS + 4 * n]
            if name == "control" and int(word) & 2:
                self.resets += 1
                self._reset()
            if name == "control" and int(word) & 4:
                self.registers.update({f"queue[{n}].busy": 0 for n in range(len(self.queues))})
            self.registers[name] = int(word)

    def _register(self, name: str) -> int:
        queue, _, part = name.partition(".")
        if part in ("error", "error_command", "status"):
            own = self.queues[int(queue[6:-1])]
            error, detail, command = self.errors[own]
            if part == "status":
                waiting = self._next(own)
                semaphore = waiting.waits[0].semaphore if waiting is not None and waiting.waits else 0
                return 2 | semaphore << 8
            return error | detail << 8 if part == "error" else command
        return self.registers[name]

    def _interpreter(self) -> _Core:
        if self._core is None:
            c, settings = self.config, settings_for(self.config)
            sequences = [[HeadState(settings, head.calibration) for head in self.heads]]
            decoder: Any = SimpleNamespace(
                sequences=sequences, settings=settings, kv="dsq+hcap", score_shift=lambda h: self.heads[h].shift
            )
            pools = {"records": self.registers["record_base"], "blocks": self.registers["block_base"]}
            program: Any = SimpleNamespace(
                config=c,
                lines=0,
                image=[],
                queues={},
                regions={name: Region(line, 0) for name, line in pools.items()},
                tags=defaultdict(str),
            )
            self._core = _Core(program, decoder)
            self._core.memory = self.memory
        return self._core

    def _next(self, queue: str) -> Command | None:
        """A queue's oldest command that is not done."""
        n = self.queues.index(queue)
        done = self.registers[f"queue[{n}].done"]
        if done == self.registers[f"queue[{n}].head"] or self.errors[queue][0]:
            return None
        place = done % (1 << self.registers[f"queue[{n}].ring_size"])
        address = (self.registers[f"queue[{n}].ring_base"] + place) * LINE_BYTES
        return Command.from_bytes(bytes(self.memory[address : address + COMMAND_BYTES]))

    def _fault(self, queue: str, command: Command) -> tuple[Error, int] | None:
        """What is wrong with a command; here only what the self test does wrong."""
        if self.deaf:
            return None
        if command.opcode not in OPCODES[queue.rstrip("0123456789")]:
            return Error.OPCODE, command.opcode
        if command.opcode is Opcode.LOAD and command.operands["address"] >= self.registers["window_end"]:
            return Error.ADDRESS, 0
        if command.opcode is Opcode.PROJECT and command.operands["k"] > self.config.gemm.max_k:
            return Error.GEMM, int(Fault.K)
        return None

    def _carry_out(self) -> None:
        """Everything that can go on."""
        if not self.registers["control"] & 1:
            return
        core, again = self._interpreter(), True
        while again:
            again = False
            for n, queue in enumerate(self.queues):
                command = self._next(queue)
                if command is None or queue in self.hangs:
                    continue
                fault = self._fault(queue, command)
                done = self.registers[f"queue[{n}].done"]
                late = [wait for wait in command.waits if not _counted(core.semaphores, wait)]
                if fault is None and late:
                    if 0 < self.registers["watchdog"] < CLOCK_HZ:
                        fault = Error.TIMEOUT, late[0].semaphore | late[0].count << 8
                    else:
                        continue
                if fault is not None:
                    self.errors[queue] = (*fault, done)
                    continue
                if not self.deaf or command.opcode in OPCODES[queue.rstrip("0123456789")]:
                    core.carry_out(queue, command)
                    self.spoils(queue, command)
                self.registers[f"queue[{n}].done"] = done + 1
                self.registers[f"queue[{n}].busy"] += 100
                again = True


def _counted(semaphores: list[int], wait: Wait) -> bool:
    return (semaphores[wait.semaphore] - wait.count) % 65536 < 32768
