"""Coroutines of the MhaEngine tests."""

from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.core_player import CorePlayer
from cocotb_tests.control.memory_player import MemoryPlayer, Ports, ScratchPlayer
from cocotb_tests.golden.draws import calibration
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from golden.control.attend import scan_list
from golden.control.commands import LINE_BYTES, Error, Opcode
from golden.control.memory import pack_calibration, pack_state, unpack_state
from golden.dsq.compressor import Calibration
from golden.fixed import half_up
from golden.gemm.prologue import magnitude
from golden.hcap.mass_bank import SUM_BITS, add_masses
from rtl.config import preset
from rtl.control._layout import operand_layout
from rtl.control._mha_engine import MhaEngine
from rtl.mha._requests import Fault

CONFIG = preset(params()["preset"])
CONFIG = replace(CONFIG, gemm=replace(CONFIG.gemm, row_lanes=params()["row_lanes"]))
GROUPS, TOKENS, DIM = CONFIG.mha.max_groups, CONFIG.dsq.group_tokens, CONFIG.dsq.head_dim
LANES, SCRATCH = CONFIG.gemm.row_lanes, CONFIG.control.scratch_words
ELEMENTS = CONFIG.mha.q_heads * DIM
ROW_WORDS = -(-ELEMENTS // LANES)
CALIBRATION_LINES = -(-8 * DIM // LINE_BYTES)
STATE_LINES = len(pack_state(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), GROUPS, TOKENS)) // LINE_BYTES
STATES, CALIBRATIONS = 3, 2
CALIBRATION_AT = 1
STATE_AT = CALIBRATION_AT + CALIBRATIONS * CALIBRATION_LINES
WINDOW = (STATE_AT + STATES * STATE_LINES) * LINE_BYTES
JOB = ("shift", "keep", "run_margin", "estimate_margin", "value_margin", "prune", "load_calibration")
#: targets lie in the upper half of the scratchpad, sources in the lower one
HALF = SCRATCH // 2


class Bench:
    """The engine between memory, scratchpad and an attention core."""

    def __init__(self, dut: Any, stall: str = "none", latency: int = 0, pace: int = 0) -> None:
        self.draw = rng("bench", stall, latency, pace)
        self.numbers = np.random.default_rng(self.draw.getrandbits(64))
        ports = Ports(dut, MhaEngine(CONFIG).signature.members, stall)
        self.command, self.go, self.done = ports.source("i_command"), ports.source("i_go"), ports.sink("o_done")
        self.memory = MemoryPlayer(ports, WINDOW, self.draw, latency=latency)
        self.scratch = ScratchPlayer(ports, SCRATCH, LANES, self.draw, latency=latency)
        self.core = CorePlayer(ports, CONFIG, self.draw, pace=pace)
        self.given: list[dict[str, int]] = []
        self.begin()

    def begin(self) -> None:
        """New content everywhere; nothing has been given."""
        self.given.clear()
        self.scratch.words[:] = self.numbers.integers(-(1 << 31), 1 << 31, self.scratch.words.shape)
        self.scratch.magnitudes = dict.fromkeys(range(CONFIG.control.scratch_rows), 0)
        self.calibrations = [calibration(self.numbers, DIM) for _ in range(CALIBRATIONS)]
        for n, made in enumerate(self.calibrations):
            self._put(CALIBRATION_AT + n * CALIBRATION_LINES, pack_calibration(made))
        for n in range(STATES):
            histories = self.numbers.integers(0, 1 << self.numbers.integers(0, SUM_BITS + 1, GROUPS))
            recent = (1 << SUM_BITS) - 1 - self.numbers.integers(0, 1 << self.numbers.integers(0, 33), GROUPS)
            votes = self.numbers.integers(0, 1 << self.numbers.integers(0, SUM_BITS + 1), 2 * TOKENS)
            self._put(STATE_AT + n * STATE_LINES, pack_state(histories, recent, votes, GROUPS, TOKENS))

    def _put(self, line: int, content: bytes) -> None:
        self.memory.content[line * LINE_BYTES : line * LINE_BYTES + len(content)] = content

    def operands(self, **fixed: int) -> dict[str, int]:
        """Of a random command that can be done; groups and tokens of any number."""
        draw = self.draw
        tokens = draw.choice([0, 1, TOKENS, TOKENS + 1, 2 * TOKENS, draw.randint(0, 2 * TOKENS)])
        most = GROUPS - -(-tokens // TOKENS)
        records = draw.choice([0, 1, draw.randint(0, min(most, 9)), draw.randint(0, most), most])
        made = {
            "calibration": CALIBRATION_AT + draw.randrange(CALIBRATIONS) * CALIBRATION_LINES,
            "state": STATE_AT + draw.randrange(STATES) * STATE_LINES,
            "sequence": draw.randrange(CONFIG.cache.max_sequences),
            "stream": draw.randrange(CONFIG.cache.streams),
            "salient": draw.randint(1, CONFIG.dsq.max_salient),
            "records": records + (records + tokens == 0),
            "tokens": tokens,
            "drop_count": draw.choice([0, draw.randint(0, records), draw.getrandbits(20)]),
            "shift": draw.randint(-64, 63),
            "prune": draw.randint(0, 1),
            "load_calibration": draw.randint(0, 1),
            "use_state": draw.choice([0, 1, 1]),
            "keep": draw.randint(0, 256),
            **{name: draw.getrandbits(15) for name in ("run_margin", "estimate_margin", "value_margin")},
            "source": draw.randint(0, HALF - ROW_WORDS),
            "out_shift": draw.choice([0, 1, draw.randint(0, 15)]),
            "first": draw.randint(0, 1),
            "target": draw.randint(HALF, SCRATCH - ROW_WORDS),
            "target_magnitude": draw.randrange(CONFIG.control.scratch_rows),
        }
        return made | fixed

    def give(self, *, go: bool = True, opcode: int = Opcode.ATTEND, **operands: int) -> None:
        """A command, which may go at once."""
        value = operand_layout(Opcode.ATTEND).const(operands).as_bits()
        self.command.send_nowait([{"opcode": opcode, "operands": value}])
        if go:
            self.go.send_nowait([0])
        if opcode == Opcode.ATTEND:
            self.given.append(operands)

    def snapshot(self) -> tuple[bytearray, np.ndarray, dict[int, int]]:
        """Memory, scratchpad and magnitudes as they are now."""
        return bytearray(self.memory.content), self.scratch.words.copy(), dict(self.scratch.magnitudes)

    async def ends(self, error: Error = Error.NONE, detail: int = 0) -> None:
        """The next command ends so."""
        (done,) = await self.done.recv(1, timeout=50_000)
        assert (int(done["error"].value), done["detail"]) == (error, detail), done

    async def check(self, jobs: list[dict[str, int]]) -> None:
        """Give commands and compare all that they leave."""
        before, first = self.snapshot(), len(self.given)
        for operands in jobs:
            self.give(**operands)
        for _ in jobs:
            await self.ends()
        self.compare(before, first, first + len(jobs))

    def compare(self, before: tuple[bytearray, np.ndarray, dict[int, int]], first: int, end: int) -> None:
        """What the core got; memory and scratchpad from what they held ``before``, of commands ``first`` to ``end``."""
        memory, words, magnitudes = before
        calibrations = 0
        for number, op in enumerate(self.given[first:end], first):
            where = f"command {number}: {op}"
            query, result = self.core.queries[number], self.core.results[number]
            assert (query["owner"]["sequence"], query["owner"]["stream"]) == (op["sequence"], op["stream"]), where
            assert {name: int(query["job"][name]) for name in JOB} == {name: op[name] for name in JOB}, where
            beats = self.core.rows[number * self.core.beats : (number + 1) * self.core.beats]
            source = words[op["source"] :].reshape(-1)[:ELEMENTS].astype(np.int16)
            np.testing.assert_array_equal(np.array([list(beat) for beat in beats]).ravel(), source, err_msg=where)
            at = op["state"] * LINE_BYTES
            history, recent, votes = unpack_state(bytes(memory[at : at + STATE_LINES * LINE_BYTES]), GROUPS, TOKENS)
            fields = {name: op[name] for name in ("records", "tokens", "salient", "drop_count")}
            listed = scan_list(**fields, group_tokens=TOKENS, history=history if op["use_state"] else None)
            assert self.core.lists[number] == listed, where
            if op["use_state"]:
                entries = np.array(result.masses)
                sums = add_masses(
                    recent,
                    votes,
                    entries[:, 0] == 1,
                    entries[:, 1],
                    entries[:, 2],
                    first=op["records"],
                    group_tokens=TOKENS,
                )
                memory[at : at + STATE_LINES * LINE_BYTES] = pack_state(history, *sums, GROUPS, TOKENS)
            outputs = half_up(result.outputs, op["out_shift"])
            words[op["target"] :].reshape(-1)[:ELEMENTS] = outputs
            length = int(magnitude(outputs))
            row = op["target_magnitude"]
            magnitudes[row] = length if op["first"] else max(length, magnitudes[row])
        loads = [op["calibration"] for op in self.given[:end] if op["load_calibration"]]
        for line in loads:
            made = self.calibrations[(line - CALIBRATION_AT) // CALIBRATION_LINES]
            self._compare_calibration(self.core.calibrations[calibrations : calibrations + DIM], made)
            calibrations += DIM
        assert (self.scratch.words == words).all()
        assert self.scratch.magnitudes == magnitudes
        assert self.memory.content == memory

    def _compare_calibration(self, channels: list[Any], made: Calibration) -> None:
        for name in ("k_shape", "v_shape", "v_mean"):
            np.testing.assert_array_equal([int(channel[name]) for channel in channels], getattr(made, name))

    async def end(self) -> None:
        """Nothing is left."""
        await self.done.expect_nothing(30)
        assert self.memory.idle and self.core.idle and self.command.idle and self.go.idle
        assert len(self.core.lists) == len(self.core.results)

    async def restart(self, dut: Any) -> None:
        """A reset, in which all that was under way is lost."""
        await reset(dut)
        self.begin()


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "heavy", "bursty"], latency=[0, 40])
async def attends(dut, stall, latency):
    """Commands of all kinds and sizes, one behind the other."""
    bench = Bench(dut, stall, latency)
    await start(dut)
    await bench.check([bench.operands() for _ in range(params()["commands"])])
    await bench.end()


@cocotb.test()
async def attends_to_caches_of_all_kinds(dut):
    """Blocks alone, many of them, records alone, with a state and without, up to the most groups."""
    bench = Bench(dut, "random", 10)
    await start(dut)
    sizes = [
        (0, (0, 1), (0, 5 * TOKENS + 3), (0, GROUPS * TOKENS), (1, 0), (GROUPS, 0)),
        (1, (0, 1), (0, 2 * TOKENS), (1, 0), (GROUPS, 0), (GROUPS - 1, 1), (GROUPS - 2, TOKENS + 1), (2, 3 * TOKENS)),
    ]
    for use_state, *of_state in sizes:
        for records, tokens in of_state:
            await bench.check([bench.operands(use_state=use_state, records=records, tokens=tokens)])
    await bench.end()


@cocotb.test()
async def adds_up_masses_of_successive_queries(dut):
    """The same state again and again: each query reads what the one before has written."""
    bench = Bench(dut, "random", 60)
    await start(dut)
    fixed = {"state": STATE_AT, "use_state": 1, "records": min(GROUPS - 2, 3), "tokens": TOKENS + 3}
    await bench.check([bench.operands(**fixed) for _ in range(6)])
    await bench.end()


@cocotb.test()
async def asks_for_no_more_than_it_needs(dut):
    """Before its go a command asks for its calibration alone; then at once for the words in use of its state."""
    bench = Bench(dut)
    await start(dut)
    before = bench.snapshot()
    records, tokens = min(5, GROUPS - 2), TOKENS + 3
    operands = bench.operands(use_state=1, records=records, tokens=tokens, load_calibration=1)
    bench.give(go=False, **operands)
    await bench.done.expect_nothing(200)
    line_words = LINE_BYTES // bench.memory.word_bytes
    calibration_read = ("read", operands["calibration"] * line_words, CALIBRATION_LINES * line_words)
    assert bench.memory.requests == [calibration_read]
    assert bench.scratch.read.transfers == [] and bench.core.queries == []
    bench.go.send_nowait([0])
    await bench.ends()
    bench.compare(before, 0, 1)
    assert bench.core.first_query - bench.go.transfers[0] == MhaEngine.LATENCY
    at, part = operands["state"] * line_words, -(-GROUPS // 16) * line_words
    history, recent, votes = (-(-sums * 4 // bench.memory.word_bytes) for sums in (records, records + 2, tokens))
    sums = [(at + part, recent), (at + 2 * part, votes)]
    expected = [("read", at, history), *(("read", *one) for one in sums), *(("write", *one) for one in sums)]
    assert bench.memory.requests == [calibration_read, *expected]
    await bench.end()


@cocotb.test()
async def runs_ahead_of_the_core(dut):
    """A core that works on each query for a time never waits for the next one."""
    pace = 3 * CONFIG.mha.q_heads * DIM + 2000
    bench = Bench(dut, latency=40, pace=pace)
    await start(dut)
    records = min(62, GROUPS - 2)
    jobs = [bench.operands(use_state=1, records=records, tokens=TOKENS + 9, load_calibration=1) for _ in range(5)]
    await bench.check(jobs)
    given, handed = bench.core.given, bench.core.handed
    assert given == [given[0] + pace * n for n in range(len(jobs))]
    assert all(handed[n + 1] < given[n] for n in range(1, len(jobs) - 1)), (given, handed)
    await bench.end()


async def stays_stopped(bench: Bench) -> None:
    """No further command is taken; what the core still gives is."""
    before = bench.snapshot()
    taken = len(bench.command.transfers)
    bench.give(opcode=Opcode.NOP)
    await bench.done.expect_nothing(300)
    assert len(bench.command.transfers) == taken and bench.core.idle
    assert bench.snapshot()[0] == before[0]


OPERAND_FAULTS: dict[str, tuple[dict[str, int], Error]] = {
    "no groups": ({"records": 0, "tokens": 0}, Error.LENGTH),
    "too many records": ({"records": GROUPS + 1, "tokens": 0}, Error.LENGTH),
    "too many tokens": ({"records": 1, "tokens": (GROUPS - 1) * TOKENS + 1}, Error.LENGTH),
    "most tokens": ({"records": (1 << 20) - 1, "tokens": (1 << 21) - 1}, Error.LENGTH),
    "source behind the scratchpad": ({"source": SCRATCH - ROW_WORDS + 1}, Error.SCRATCHPAD),
    "target behind the scratchpad": ({"target": SCRATCH - ROW_WORDS + 1}, Error.SCRATCHPAD),
    "wrapping source": ({"source": (1 << 20) - 1}, Error.SCRATCHPAD),
    "magnitude behind the scratchpad": ({"target_magnitude": CONFIG.control.scratch_rows}, Error.SCRATCHPAD),
}
LINES = 1 << CONFIG.cache.addr_bits - 6
if LINES < 1 << 32:
    OPERAND_FAULTS |= {
        "state behind the address bits": ({"state": LINES - STATE_LINES + 1, "use_state": 1}, Error.ADDRESS),
        "last state": ({"state": (1 << 32) - 1, "use_state": 1}, Error.ADDRESS),
        "calibration behind the address bits": (
            {"calibration": LINES - CALIBRATION_LINES + 1, "load_calibration": 1},
            Error.ADDRESS,
        ),
    }


@cocotb.test()
async def refuses_what_cannot_be_done(dut):
    """Nothing is asked for; the commands before end well."""
    bench = Bench(dut, "random", 10, pace=300)
    await start(dut)
    for name, (operands, error) in OPERAND_FAULTS.items():
        cocotb.log.info("%s", name)
        before = bench.snapshot()
        bench.give(**bench.operands())
        bench.give(**bench.operands(**operands))
        await bench.ends()
        bench.compare(before, 0, 1)
        requests = list(bench.memory.requests)
        await bench.ends(error)
        await stays_stopped(bench)
        assert bench.memory.requests == requests and len(bench.core.queries) == 1
        await bench.restart(dut)
    for opcode in (Opcode.PROJECT, Opcode.APPEND, 200):
        bench.give(opcode=opcode)
        await bench.ends(Error.OPCODE, opcode)
        await bench.restart(dut)
    bench.give(opcode=Opcode.NOP)
    bench.give(**bench.operands())
    bench.give(opcode=Opcode.NOP)
    for _ in range(3):
        await bench.ends()
    await bench.end()


@cocotb.test()
async def reports_faults_of_the_core(dut):
    """Each in its turn, with its group; nothing is written after it, and what is under way ends."""
    bench = Bench(dut, "random", 10, pace=100)
    await start(dut)
    for fault in (Fault.SALIENT_COUNT, Fault.MEMORY, Fault.EMPTY):
        before, group = bench.snapshot(), bench.draw.getrandbits(20)
        bench.core.faults = {1: (fault, group)}
        few = {"use_state": 1, "records": 2, "tokens": TOKENS + 1}
        bench.give(**bench.operands(**few, target=HALF + ROW_WORDS, state=STATE_AT))
        for _ in range(3):
            bench.give(**bench.operands(**few, target=HALF))
        await bench.ends()
        memory = bench.memory.content[:]
        if fault is Fault.MEMORY:
            await bench.ends(Error.MEMORY)
        else:
            await bench.ends(Error.ATTENTION, fault.value | group << 3)
        await cycles(dut, 400)
        await stays_stopped(bench)
        bench.scratch.words[HALF : HALF + ROW_WORDS] = before[1][HALF : HALF + ROW_WORDS]
        bench.scratch.magnitudes = dict(before[2])
        row, op = bench.core.results[0], bench.given[0]
        length = int(magnitude(half_up(row.outputs, op["out_shift"])))
        at = op["target_magnitude"]
        bench.scratch.magnitudes[at] = length if op["first"] else max(length, before[2][at])
        bench.compare(before, 0, 1)
        assert bench.memory.content == memory
        bench.core.faults = {}
        await bench.restart(dut)
    await bench.check([bench.operands()])


@cocotb.test()
@cocotb.parametrize(which=["calibration", "history", "recent", "votes"])
async def reports_words_that_memory_refuses(dut, which):
    """In their turn, as outside the window where they are; sums of such a state are not written."""
    bench = Bench(dut, "random", 10)
    await start(dut)
    line_words, part = LINE_BYTES // bench.memory.word_bytes, -(-GROUPS // 16)
    state = {"use_state": 1, "records": 3, "tokens": TOKENS + 2, "state": STATE_AT}
    places = {
        "calibration": ("calibration", 0),
        "history": ("state", 0),
        "recent": ("state", part),
        "votes": ("state", 2 * part),
    }
    name, line = places[which]
    for outside in (False, True):
        jobs = [bench.operands(use_state=0, load_calibration=0), bench.operands(**state, load_calibration=1)]
        if outside:
            jobs[1][name] = WINDOW // LINE_BYTES - line
        else:
            bench.memory.bad = {(jobs[1][name] + line) * line_words}
        before = bench.snapshot()
        for operands in jobs:
            bench.give(**operands)
        await bench.ends()
        await bench.ends(Error.ADDRESS if outside else Error.MEMORY)
        await cycles(dut, 400)
        await stays_stopped(bench)
        assert bench.memory.content == before[0]
        bench.memory.bad = set()
        await bench.restart(dut)
    await bench.check([bench.operands(**state)])


@cocotb.test()
async def reports_writes_that_memory_refuses(dut):
    bench = Bench(dut, "random", 10, pace=800)
    await start(dut)
    line_words, part = LINE_BYTES // bench.memory.word_bytes, -(-GROUPS // 16)
    for line in (part, 2 * part):
        operands = bench.operands(use_state=1, state=STATE_AT, records=3, tokens=TOKENS + 2)
        for _ in range(2):
            bench.give(**operands)
        await bench.ends()
        await cycles(dut, 500)
        bench.memory.bad = {(STATE_AT + line) * line_words}
        await bench.ends(Error.MEMORY)
        await stays_stopped(bench)
        bench.memory.bad = set()
        await bench.restart(dut)
    await bench.check([bench.operands()])


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    for wait in (3, 20, 60, 150, 350, 700, 1000):
        for _ in range(6):
            bench.give(**bench.operands(records=min(GROUPS - 2, 9), load_calibration=1))
        await cycles(dut, wait)
        await bench.restart(dut)
        await bench.check([bench.operands(load_calibration=1) for _ in range(2)])
        await bench.end()
