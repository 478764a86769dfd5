"""Coroutines of the DmaEngine tests."""

from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.memory_player import MemoryPlayer, Ports, ScratchPlayer, config_of
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from golden.control.commands import LINE_BYTES, Error, Opcode
from golden.control.memory import pack_rows, row_bytes
from golden.gemm.prologue import magnitude
from rtl.control._dma_engine import DmaEngine
from rtl.control._layout import operand_layout

CONFIG = config_of(params()["config"])
WINDOW = params()["window"]
LANES = CONFIG.gemm.row_lanes
#: that the bus or a command can name
MEMORY_LINES = 1 << min(CONFIG.cache.addr_bits - 6, 32)


class Bench:
    """The engine between memory and scratchpad."""

    def __init__(self, dut: Any, stall: str = "none", latency: int = 0) -> None:
        self.dut = dut
        self.draw = rng("bench", stall, latency)
        self.numbers = np.random.default_rng(self.draw.getrandbits(64))
        ports = Ports(dut, DmaEngine(CONFIG).signature.members, stall)
        self.command, self.go, self.done = ports.source("i_command"), ports.source("i_go"), ports.sink("o_done")
        self.memory = MemoryPlayer(ports, WINDOW, self.draw, latency=latency)
        self.scratch = ScratchPlayer(ports, CONFIG.control.scratch_words, LANES, self.draw, latency=latency)
        self.randomize()

    def randomize(self) -> None:
        """New content everywhere."""
        self.memory.content[:] = self.numbers.bytes(WINDOW)
        self.scratch.words[:] = self.numbers.integers(-(1 << 31), 1 << 31, self.scratch.words.shape)

    def give(self, opcode: int, **operands: int) -> None:
        """A command that may go at once."""
        value = operand_layout(Opcode(opcode)).const(operands).as_bits() if operands else 0
        self.command.send_nowait([{"opcode": opcode, "operands": value}])
        self.go.send_nowait([0])

    async def ends(self, error: Error = Error.NONE, detail: int = 0) -> None:
        """The next command ends so."""
        (done,) = await self.done.recv(1, timeout=20_000)
        assert (int(done["error"].value), done["detail"]) == (error, detail), done

    def rows(self, rows: int, k: int) -> np.ndarray:
        """Elements of all magnitudes."""
        bits = self.numbers.integers(0, 32, (rows, 1))
        return self.numbers.integers(-(1 << bits), 1 << bits, (rows, k)).astype(np.int32)

    async def load(self, *, address: int, rows: int, k: int, scratchpad: int, stride: int, magnitude_row: int) -> None:
        content = self.rows(rows, k)
        packed = pack_rows(content)
        at = address * LINE_BYTES
        before = np.frombuffer(packed, np.uint8).reshape(rows, -1).copy()
        before[:, 4 * k :] = self.numbers.integers(0, 256, (rows, row_bytes(k) - 4 * k))
        self.memory.content[at : at + len(packed)] = before.tobytes()
        expected = self.scratch.words.copy()
        for n, row in enumerate(content):
            expected[scratchpad + n * stride :].reshape(-1)[:k] = row
        self.scratch.magnitudes.clear()
        operands = {"address": address, "rows": rows, "k": k, "scratchpad": scratchpad, "stride": stride}
        self.give(Opcode.LOAD, **operands, magnitude=magnitude_row)
        await self.ends()
        assert (self.scratch.words == expected).all()
        lengths = magnitude(content)
        last = {}  # rows that overlap do not change their magnitudes
        for n in range(rows):
            last[magnitude_row + n] = int(lengths[n])
        assert self.scratch.magnitudes == last

    async def store(self, *, address: int, rows: int, k: int, scratchpad: int, stride: int) -> None:
        expected = bytearray(self.memory.content)
        for n in range(rows):
            row = self.scratch.row(scratchpad + n * stride, k).astype("<i4").tobytes()
            at = address * LINE_BYTES + n * row_bytes(k)
            expected[at : at + len(row)] = row
        operands = {"address": address, "rows": rows, "k": k, "scratchpad": scratchpad, "stride": stride}
        self.give(Opcode.STORE, **operands)
        await self.ends()
        assert self.memory.content == expected

    async def fill(self, *, address: int, lines: int) -> None:
        expected = bytearray(self.memory.content)
        expected[address * LINE_BYTES : (address + lines) * LINE_BYTES] = bytes(lines * LINE_BYTES)
        self.give(Opcode.FILL, address=address, lines=lines)
        await self.ends()
        assert self.memory.content == expected

    async def random_command(self) -> None:
        """A command of any kind and size that fits."""
        draw = self.draw
        if draw.random() < 0.2:
            lines = draw.choice([1, 2, 63, 64, 65, draw.randint(1, 200)])
            await self.fill(address=draw.randint(0, WINDOW // LINE_BYTES - lines), lines=lines)
            return
        k, rows = draw.choice([1, 2, draw.randint(1, 40), draw.randint(1, 130)]), draw.randint(1, 6)
        words = -(-k // LANES)
        stride = draw.randint(words, words + 3)
        operands = {
            "address": draw.randint(0, (WINDOW - rows * row_bytes(k)) // LINE_BYTES),
            "rows": rows,
            "k": k,
            "scratchpad": draw.randint(0, CONFIG.control.scratch_words - (rows - 1) * stride - words),
            "stride": stride,
        }
        if draw.random() < 0.5:
            await self.load(**operands, magnitude_row=draw.randint(0, CONFIG.control.scratch_rows - rows))
        else:
            await self.store(**operands)

    async def end(self) -> None:
        """Nothing is left."""
        await self.done.expect_nothing(30)
        assert self.memory.idle and self.command.idle and self.go.idle


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "heavy", "bursty"], latency=[0, 40])
async def moves_rows_of_all_sizes(dut, stall, latency):
    bench = Bench(dut, stall, latency)
    await start(dut)
    for _ in range(params()["commands"]):
        await bench.random_command()
    await bench.end()


@cocotb.test()
async def moves_up_to_the_ends(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    words, lines, k = CONFIG.control.scratch_words, WINDOW // LINE_BYTES, 3 * LANES + 1
    size = row_bytes(k) // LINE_BYTES
    place = {"address": lines - 2 * size, "rows": 2, "k": k, "scratchpad": words - 8, "stride": 4}
    await bench.load(**place, magnitude_row=CONFIG.control.scratch_rows - 2)
    await bench.store(**place)
    await bench.fill(address=lines - 3, lines=3)
    await bench.load(address=0, rows=3, k=1, scratchpad=5, stride=1, magnitude_row=0)
    await bench.end()
    bench.give(Opcode.NOP)
    await bench.ends()


@cocotb.test()
async def waits_for_go(dut):
    bench = Bench(dut)
    await start(dut)
    bench.command.send_nowait([{"opcode": Opcode.NOP, "operands": 0}])
    await bench.done.expect_nothing(40)
    bench.go.send_nowait([0])
    await bench.ends()


FAULTS = {
    "no rows": (Opcode.LOAD, {"rows": 0}, Error.LENGTH),
    "no elements": (Opcode.STORE, {"k": 0}, Error.LENGTH),
    "no lines": (Opcode.FILL, {"lines": 0}, Error.LENGTH),
    "behind the address bits": (Opcode.LOAD, {"address": (1 << 32) - 1}, Error.ADDRESS),
    "last row behind them": (Opcode.STORE, {"address": MEMORY_LINES - 1, "rows": 2}, Error.ADDRESS),
    "zeros behind them": (Opcode.FILL, {"address": 1, "lines": (1 << 32) - 1}, Error.ADDRESS),
    "read outside": (Opcode.LOAD, {"address": WINDOW // LINE_BYTES}, Error.ADDRESS),
    "write outside": (Opcode.STORE, {"address": WINDOW // LINE_BYTES - 1, "rows": 2}, Error.ADDRESS),
    "zeros outside": (Opcode.FILL, {"address": WINDOW // LINE_BYTES - 100, "lines": 101}, Error.ADDRESS),
    "behind the scratchpad": (Opcode.LOAD, {"scratchpad": CONFIG.control.scratch_words}, Error.SCRATCHPAD),
    "last row behind it": (
        Opcode.STORE,
        {"rows": 3, "scratchpad": CONFIG.control.scratch_words - 2 * 511, "stride": 511},
        Error.SCRATCHPAD,
    ),
    "wrapping": (Opcode.STORE, {"rows": 2, "scratchpad": (1 << 20) - 1, "stride": 1}, Error.SCRATCHPAD),
    "last word behind it": (
        Opcode.LOAD,
        {"scratchpad": CONFIG.control.scratch_words - 1, "k": LANES + 1},
        Error.SCRATCHPAD,
    ),
    "magnitudes behind it": (Opcode.LOAD, {"rows": 2, "magnitude": CONFIG.control.scratch_rows - 1}, Error.SCRATCHPAD),
}


@cocotb.test()
@cocotb.parametrize(name=list(FAULTS))
async def answers_faulty_commands(dut, name):
    bench = Bench(dut, "random", 10)
    await start(dut)
    opcode, operands, error = FAULTS[name]
    plain = {"address": 0, "rows": 1, "k": 1, "scratchpad": 0, "stride": 0}
    before = bench.scratch.words.copy(), bytes(bench.memory.content)
    given = operands if opcode == Opcode.FILL else {**plain, **operands}
    bench.give(opcode, **given)
    await bench.ends(error)
    if "outside" not in name and (MEMORY_LINES < 1 << 32 or error != Error.ADDRESS):
        assert bench.memory.requests == []
        assert (bench.scratch.words == before[0]).all() and bench.memory.content == before[1]
    await stays_stopped(bench)
    await reset(dut)
    await bench.random_command()


async def stays_stopped(bench: Bench) -> None:
    """No further command is taken."""
    bench.give(Opcode.NOP)
    await bench.done.expect_nothing(60)
    assert not bench.command.idle


@cocotb.test()
@cocotb.parametrize(opcode=[Opcode.LOAD, Opcode.STORE, Opcode.FILL])
async def reports_words_that_memory_refuses(dut, opcode):
    bench = Bench(dut, "random", 10)
    await start(dut)
    words = LINE_BYTES // bench.memory.word_bytes
    bench.memory.bad.add(5 * words)
    if opcode == Opcode.FILL:
        bench.give(opcode, address=0, lines=9)
    else:
        bench.give(opcode, address=3, rows=4, k=3, scratchpad=0, stride=2)
    await bench.ends(Error.MEMORY)
    await stays_stopped(bench)


@cocotb.test()
async def refuses_opcodes_of_other_queues(dut):
    bench = Bench(dut)
    for opcode in (Opcode.PROJECT, 200):
        await start(dut) if opcode == Opcode.PROJECT else await reset(dut)
        bench.command.send_nowait([{"opcode": opcode, "operands": 0}])
        bench.go.send_nowait([0])
        await bench.ends(Error.OPCODE, opcode)


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    for wait in (3, 8, 15, 30, 50, 90, 140):
        k = 40
        for opcode in (Opcode.LOAD, Opcode.STORE):
            bench.give(opcode, address=1, rows=3, k=k, scratchpad=7, stride=-(-k // LANES))
        await cycles(dut, wait)
        await reset(dut)
        bench.randomize()
        for _ in range(3):
            await bench.random_command()
        await bench.end()


@cocotb.test()
async def moves_a_word_a_cycle(dut):
    bench = Bench(dut)
    await start(dut)
    k, rows = 8 * max(LANES, bench.memory.word_bytes // 4), 4
    narrow = min(LANES, bench.memory.word_bytes // 4)
    words = rows * k // narrow
    place = {"address": 0, "rows": rows, "k": k, "scratchpad": 0, "stride": k // LANES}
    for what in (bench.load(**place, magnitude_row=0), bench.store(**place)):
        await what
        taken = bench.done.transfers[-1] - bench.command.transfers[-1]
        assert taken <= words + 20, taken
    assert bench.memory.read.transfers[0] - bench.command.transfers[0] == DmaEngine.LATENCY
