"""Carries out compiled queues with golden functions, command by command, in any order that their waits allow."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from golden.cache.page_table import PageOp, PageStatus, PageTable
from golden.control.commands import COMMAND_BYTES, LINE_BYTES, OPCODES, Command, Opcode
from golden.control.memory import (
    COLUMN_BYTES,
    pack_calibration,
    projection_words,
    row_bytes,
    unpack_rows,
)
from golden.decoder import DecoderLayer
from golden.fixed import half_up
from golden.gemm.core import Command as Projecting
from golden.gemm.core import Fault, command_fault, project
from golden.gemm.epilogue import Columns, Function
from golden.gemm.prologue import Norm, magnitude
from golden.gemm.weights import Projection
from golden.hcap.selector import keep_limit
from golden.mha.core import attend
from golden.settings import KvoSettings
from golden.state import HeadState
from sim.compiler.places import page_pieces, state_bytes
from sim.compiler.program import Program
from sim.compiler.split import limits

__all__ = ["Interpreter", "ProgramError", "unpack_projection"]

Ints = NDArray[np.int64]

#: share of the commands that give their results when they begin
EARLY = 0.3
MARGINS = ("run_margin", "estimate_margin", "value_margin")


class ProgramError(Exception):
    """A command asks for something that is not there, or nothing can go on."""


def _demand(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise ProgramError(what)


def unpack_projection(content: bytes, columns: int, k: int, tile_columns: int, bus_bits: int) -> Projection:
    """What `pack_projection` was given, from memory that begins with it."""
    words = projection_words(k, tile_columns=tile_columns, bus_bits=bus_bits)
    parameter_bytes, weight_bytes = (count * bus_bits // 8 for count in words)
    parameters, weights = [], []
    for tile in range(-(-columns // tile_columns)):
        at = tile * (parameter_bytes + weight_bytes)
        parameters.append(np.frombuffer(content, "<i8", tile_columns, at))
        steps = np.frombuffer(content, np.int8, tile_columns * k, at + parameter_bytes)
        weights.append(steps.reshape(k, tile_columns).T)
    assert parameters[0].itemsize == COLUMN_BYTES
    bits = np.concatenate(parameters)[:columns]
    own = Columns(scale=bits & 0xFFFF, shift=((bits >> 16 & 0x7F) ^ 64) - 64, bias=bits >> 32)
    return Projection(weights=np.concatenate(weights)[:columns], columns=own)


class Interpreter:
    """The accelerator as far as its commands go: memory, scratchpad, semaphores, page table, caches.

    A command takes what it needs when it begins, and that must be the same when it ends. It gives its results at once
    or in the end, and the next ones of its queue may have begun by then. Memory and scratchpad hold random numbers
    where the program says nothing. Every command is checked: what it says of a cache is so, its sequence is held,
    magnitudes are those of the rows, what memory has of pages, states and calibrations is right.

    Parameters
    ----------
    program, decoder: as compiled; the decoder has its caches before the first step. It is not changed.
    seed: of the order in which queues go on. Some rush ahead, others lag, differently with each seed.
    """

    def __init__(self, program: Program, decoder: DecoderLayer, *, seed: int = 0) -> None:
        self.program, self.config, self.decoder = program, program.config, decoder
        self.sequences = [[state.copy() for state in states] for states in decoder.sequences]
        c, draw = self.config, np.random.default_rng(seed)
        self._draw = draw
        self.memory = bytearray(draw.bytes(program.lines * LINE_BYTES))
        for address, content in program.image:
            self.memory[address : address + len(content)] = content
        for queue in program.queues:
            line, _, content = program.ring(queue)
            self.memory[line * LINE_BYTES : line * LINE_BYTES + len(content)] = content
        self.lanes = c.gemm.row_lanes
        words = c.control.scratch_words
        self.scratch = draw.integers(-(2**31), 2**31, words * self.lanes, dtype=np.int32)
        self.magnitudes = draw.integers(0, 32, (c.control.scratch_rows, c.gemm.cores))
        self.semaphores = [0] * c.control.semaphores
        self.pages = PageTable(
            max_sequences=c.cache.max_sequences,
            streams=c.cache.streams,
            max_groups=c.mha.max_groups,
            record_pages=c.cache.record_pages,
            block_pages=c.cache.block_pages,
        )
        self._calibration: int | None = None
        self._seen: set[tuple[int, int]] = set()
        self._projections: dict[tuple[int, int, int], Projection] = {}

    def run(self) -> NDArray[np.int32]:
        """All commands; returns the residuals ``[steps, n, hidden]`` that are in memory then.

        Raises `ProgramError` when all queues wait, or a command is wrong.
        """
        left = {queue: deque(self._commands(queue)) for queue in self.program.queues}
        begun: dict[str, deque[Callable[[], None]]] = {queue: deque() for queue in left}
        eagerness = self._draw.exponential(size=(2, len(left))) ** 2 + 1e-3
        while any(left.values()) or any(begun.values()):
            may_go = [self._may_go(queue, left[queue], len(begun[queue])) for queue in left]
            possible = np.array([may_go, [bool(ends) for ends in begun.values()]])
            if not possible.any():
                waits = ", ".join(f"{queue} for {commands[0].waits}" for queue, commands in left.items() if commands)
                raise ProgramError(f"all queues wait: {waits}")
            weights = (eagerness * possible).ravel()
            ends, number = divmod(int(self._draw.choice(len(weights), p=weights / weights.sum())), len(left))
            queue = list(left)[number]
            if ends:
                begun[queue].popleft()()
            else:
                begun[queue].append(self._begin(queue, left[queue].popleft()))
        steps, n = range(self.program.steps), range(len(self.sequences))
        return np.stack([[self.output(step, i) for i in n] for step in steps])

    def carry_out(self, queue: str, command: Command) -> None:
        """One command, whose waits are satisfied, from beginning to end; raises `ProgramError` when it is wrong."""
        self._begin(queue, command)()

    def output(self, step: int, sequence: int) -> NDArray[np.int32]:
        """Residuals in memory."""
        hidden = self.program.hidden
        return unpack_rows(self._read(self.program.output(step, sequence), row_bytes(hidden)), 1, hidden)[0]

    def _commands(self, queue: str) -> Iterator[Command]:
        """A queue's commands, from its ring."""
        line, _, content = self.program.ring(queue)
        for at in range(0, len(content), COMMAND_BYTES):
            command = Command.from_bytes(bytes(self.memory[line * LINE_BYTES + at :][:COMMAND_BYTES]))
            _demand(command.opcode in OPCODES[queue.rstrip("0123456789")], f"{queue} takes no {command.opcode.name}")
            yield command

    def _may_go(self, queue: str, commands: deque[Command], begun: int) -> bool:
        """Whether the next command may begin. The attention core and DSQ are taken to carry out one at a time."""
        most = 1 if queue in ("mha", "dsq") else self.config.control.queue_depth
        if not commands or begun >= most:
            return False
        return all((self.semaphores[w.semaphore] - w.count) % 65536 < 32768 for w in commands[0].waits)

    def _begin(self, queue: str, command: Command) -> Callable[[], None]:
        """A command takes what it needs; returns how it ends: with what it gives, and its signal."""
        operands, give = dict(command.operands), None
        try:
            if command.opcode is Opcode.PROJECT:
                give = self._project(int(queue.removeprefix("gemm")), operands)
            elif command.opcode is not Opcode.NOP:
                give = getattr(self, f"_{command.opcode.name.lower()}")(operands)
            if give is not None and self._draw.random() < EARLY:
                give = give()
        except (ProgramError, ValueError) as error:
            what = f"{queue} ({command.opcode.name}, {self.program.tags[command.tag]})"
            raise ProgramError(f"{what}: {error}") from None

        def end() -> None:
            if give is not None:
                give()
            if command.signal is not None:
                self.semaphores[command.signal] = (self.semaphores[command.signal] + 1) % 65536

        return end

    def _read(self, line: int, size: int) -> bytes:
        begin = line * LINE_BYTES
        _demand(begin + size <= len(self.memory), f"line {line} lies outside of memory")
        return bytes(self.memory[begin : begin + size])

    def _write(self, address: int, content: bytes) -> None:
        _demand(address + len(content) <= len(self.memory), f"byte {address} lies outside of memory")
        self.memory[address : address + len(content)] = content

    def _elements(self, base: int, stride: int, rows: int, k: int) -> Ints:
        """Places in the scratchpad of rows of k elements, ``[rows, k]``."""
        places = (base + np.arange(rows)[:, None] * stride) * self.lanes + np.arange(k)
        _demand(places.max(initial=0) < len(self.scratch), f"rows from word {base} on lie behind the scratchpad's end")
        return places

    def _rows(self, base: int, count: int) -> NDArray[np.int16]:
        """Contiguous INT16 rows of head_dim elements."""
        dim = self.config.dsq.head_dim
        values = self.scratch[self._elements(base, dim // self.lanes, count, dim)]
        _demand((values == values.astype(np.int16)).all(), f"rows at word {base} are no rows of 16 bits")
        return values.astype(np.int16)

    def _load(self, o: dict[str, int]) -> Callable[[], None]:
        rows, k = o["rows"], o["k"]
        content = self._read(o["address"], rows * row_bytes(k))
        made = unpack_rows(content, rows, k)
        places = self._elements(o["scratchpad"], o["stride"], rows, k)

        def give() -> None:
            _demand(self._read(o["address"], len(content)) == content, "rows in memory changed while they were loaded")
            self._give_rows(places, made, o["magnitude"], 0, magnitude(made))

        return give

    def _give_rows(self, places: Ints, rows: NDArray[np.integer], first: int, slot: int, magnitudes: Ints) -> None:
        """Elements and magnitudes to the scratchpad."""
        _demand(first + len(rows) <= len(self.magnitudes), f"there are no magnitudes of rows {first} and on")
        self.scratch[places] = rows
        self.magnitudes[first : first + len(rows), slot] = magnitudes

    def _store(self, o: dict[str, int]) -> Callable[[], None]:
        places = self._elements(o["scratchpad"], o["stride"], o["rows"], o["k"])
        made = self.scratch[places].astype("<i4")

        def give() -> None:
            _demand((made == self.scratch[places]).all(), "rows changed while they were stored")
            for number, row in enumerate(made):
                self._write(o["address"] * LINE_BYTES + number * row_bytes(o["k"]), row.tobytes())

        return give

    def _fill(self, o: dict[str, int]) -> Callable[[], None]:
        return partial(self._write, o["address"] * LINE_BYTES, bytes(o["lines"] * LINE_BYTES))

    def _project(self, core: int, o: dict[str, int]) -> Callable[[], None]:
        c, rows, k, columns = self.config, o["rows"], o["k"], o["columns"]
        fault = command_fault(
            rows,
            k,
            columns,
            function=o["function"],
            norm=o["norm"],
            rotary_columns=o["rotary_columns"],
            add_residual=bool(o["add_residual"]),
            limits=limits(c),
        )
        _demand(fault is Fault.NONE, f"the core refuses it: {fault.name}")
        command = Projecting(
            norm=Norm(o["norm"]),
            epsilon=o["epsilon_low"] | o["epsilon_high"] << 32,
            function=Function(o["function"]),
            rotary_columns=o["rotary_columns"],
            head_dim=c.dsq.head_dim,
            half_pairs=bool(o["half_pairs"]),
            narrow=bool(o["narrow"]),
        )
        sources = self._elements(o["source"], o["source_stride"], rows, k)
        x = self.scratch[sources]
        slots = [slot for slot in range(c.gemm.cores) if o["parts"] >> slot & 1]
        told = self.magnitudes[o["source_magnitude"] :][:rows][:, slots].max(axis=1, initial=0)
        _demand((told == magnitude(x)).all(), f"magnitudes {told} are not those of the rows, {magnitude(x)}")
        own = self._projection(o["stream"], columns, k)
        rotary = residual = None
        if command.function is Function.ROTARY:
            table = np.frombuffer(self._read(o["angles"], rows * 2 * c.dsq.head_dim), "<i2").astype(np.int64)
            rotary = tuple(table.reshape(rows, -1, 2).transpose(2, 0, 1))
        width = columns // 2 if command.function is Function.SWIGLU else columns
        if o["add_residual"]:
            residual = self.scratch[self._elements(o["residual"], o["residual_stride"], rows, width)]
        out, magnitudes = project(
            x, own.weights, own.columns, command, act_bits=c.gemm.act_bits, rotary=rotary, residual=residual
        )
        places = self._elements(o["target"], o["target_stride"], rows, width)

        def give() -> None:
            _demand((x == self.scratch[sources]).all(), "rows changed while they were projected")
            self._give_rows(places, out, o["target_magnitude"], core, magnitudes)

        return give

    def _projection(self, line: int, columns: int, k: int) -> Projection:
        """From memory, where nobody writes it."""
        key, tile, bus = (line, columns, k), self.config.gemm.columns, self.config.dsq.bus_bits
        if key not in self._projections:
            words = sum(projection_words(k, tile_columns=tile, bus_bits=bus))
            content = self._read(line, -(-columns // tile) * words * bus // 8)
            self._projections[key] = unpack_projection(content, columns, k, tile, bus)
        return self._projections[key]

    def _page(self, o: dict[str, int]) -> None:
        op = PageOp(o["op"])
        more = [o["stream"]] if op in (PageOp.COMMIT, PageOp.COUNT) else []
        status = getattr(self.pages, op.name.lower())(o["sequence"], *more).status
        _demand(status is PageStatus.OK, f"the page table refuses {op.name}: {status.name}")

    def _head_state(self, o: dict[str, int], *, held: bool) -> HeadState:
        sequence, stream = o["sequence"], o["stream"]
        _demand(not held or self.pages.held(sequence), f"sequence {sequence} is not held")
        return self.sequences[sequence][stream]

    def _state_memory(self, o: dict[str, int], state: HeadState) -> int:
        """Address of a state, which is the one that memory has."""
        expected = state_bytes(self.config, state)
        _demand(self._read(o["state"], len(expected)) == expected, "memory has another state of the head")
        return o["state"] * LINE_BYTES

    def _pieces(self, o: dict[str, int], state: HeadState, *groups: int) -> Iterator[tuple[int, bytes]]:
        owner = o["sequence"], o["stream"]
        return page_pieces(self.config, self.program.regions, self.pages, owner, state, groups or None)

    def _append(self, o: dict[str, int]) -> None:
        state, n = self._head_state(o, held=False), self.config.dsq.group_tokens
        place = o["group"] * n + o["token"]
        _demand(o["token"] < n and place == state.tokens, f"the next token is {state.tokens}, not {place}")
        state.append(self._rows(o["source_k"], 1), self._rows(o["source_v"], 1))
        for address, content in self._pieces(o, state, o["group"]):
            self._write(address, content)

    def _attend(self, o: dict[str, int]) -> None:
        state, s, c = self._head_state(o, held=True), self.decoder.settings, self.config
        h, closed = o["stream"], len(state.closed)
        expected = {
            "records": closed,
            "tokens": len(state.k_codes),
            "salient": s.salient_tokens,
            "drop_count": keep_limit(s.history_drop, closed) if s.prune else 0,
            "shift": self.decoder.score_shift(h),
            "prune": s.prune,
            "keep": round(s.keep_fraction * 256),
            **{name: KvoSettings.fixed_point(getattr(s, name)) for name in MARGINS},
            "use_state": self.decoder.kv != "dense",
        }
        for name, value in expected.items():
            _demand(o[name] == value, f"{name} must be {value}, not {o[name]}")
        self._check_pages(o, state)
        if o["load_calibration"]:
            self._calibration = o["calibration"]
        _demand(self._calibration is not None, "the core has no calibration")
        self._check_calibration(self._calibration, state)
        at = self._state_memory(o, state) if o["use_state"] else None
        out, _ = attend(state, self._rows(o["source"], c.mha.q_heads)[:, None], shift=o["shift"])
        if at is not None:
            self._write(at, state_bytes(c, state))
        row = half_up(out, o["out_shift"]).reshape(1, -1)
        widest = magnitude(row)
        if not o["first"]:
            widest = np.maximum(widest, self.magnitudes[o["target_magnitude"], 0])
        self._give_rows(self._elements(o["target"], 0, 1, row.size), row, o["target_magnitude"], 0, widest)

    def _check_pages(self, o: dict[str, int], state: HeadState) -> None:
        """All groups have pages; what a sequence begins with lies there."""
        owner = o["sequence"], o["stream"]
        if owner not in self._seen:
            self._seen.add(owner)
            for address, content in self._pieces(o, state):
                same = self.memory[address : address + len(content)] == content
                _demand(same, f"memory has something else at byte {address} of a page")
        for group in range(-(-state.tokens // self.config.dsq.group_tokens)):
            page = self.pages.lookup(o["sequence"], group >= len(state.closed), group)
            _demand(page is not None, f"group {group} has no page")

    def _check_calibration(self, line: int | None, state: HeadState) -> None:
        expected = pack_calibration(state.calibration)
        _demand(line is not None and self._read(line, len(expected)) == expected, "the calibration is another head's")

    def _close(self, o: dict[str, int]) -> None:
        state, n = self._head_state(o, held=True), self.config.dsq.group_tokens
        first = len(state.closed)
        expected = {
            "groups": len(state.history),
            "compress": len(state.k_codes) >= 2 * n,
            "salient": state.settings.salient_tokens,
            "sinks": 0 if first else state.settings.sink_tokens,
            "k_norm": state.calibration.k_norm,
            "v_norm": state.calibration.v_norm,
        }
        for name, value in expected.items():
            _demand(o[name] == value, f"{name} must be {value}, not {o[name]}")
        _demand(state.tokens % n == 0, f"the open group must be full, not {state.tokens % n} tokens long")
        self._check_calibration(o["calibration"], state)
        at = self._state_memory(o, state)
        state.close_group()
        self._write(at, state_bytes(self.config, state))
        if o["compress"]:
            _demand(o["group"] == first, f"group must be {first}, not {o['group']}")
            for address, content in self._pieces(o, state, first):
                self._write(address, content)
            status = self.pages.commit(o["sequence"], o["stream"]).status
            _demand(status is PageStatus.OK, f"the page table refuses COMMIT: {status.name}")
