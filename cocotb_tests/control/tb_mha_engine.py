"""Coroutines of the MhaEngine tests."""

from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.core_player import CorePlayer
from cocotb_tests.control.memory_player import MemoryPlayer, Ports, ScratchPlayer
from cocotb_tests.golden.draws import calibration
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import reset, start
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

CONFIG = preset(params()["preset"])
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

    def give(self, *, go: bool = True, **operands: int) -> None:
        """A command, which may go at once."""
        value = operand_layout(Opcode.ATTEND).const(operands).as_bits()
        self.command.send_nowait([{"opcode": Opcode.ATTEND, "operands": value}])
        if go:
            self.go.send_nowait([0])
        self.given.append(operands)

    async def ends(self, error: Error = Error.NONE, detail: int = 0) -> None:
        """The next command ends so."""
        (done,) = await self.done.recv(1, timeout=50_000)
        assert (int(done["error"].value), done["detail"]) == (error, detail), done

    async def check(self, jobs: list[dict[str, int]]) -> None:
        """Give commands and compare all that they leave."""
        before = bytearray(self.memory.content), self.scratch.words.copy(), dict(self.scratch.magnitudes)
        first = len(self.core.results)
        for operands in jobs:
            self.give(**operands)
        for _ in jobs:
            await self.ends()
        self.compare(jobs, before, first)

    def compare(self, jobs: list[dict[str, int]], before: tuple[bytearray, np.ndarray, dict], first: int) -> None:
        """What the core got, and memory and scratchpad from what they held ``before``, query ``first`` on."""
        memory, words, magnitudes = before
        calibrations = 0
        for number, op in enumerate(self.given[first:], first):
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
        loads = [op["calibration"] for op in self.given if op["load_calibration"]]
        for line in loads:
            made = self.calibrations[(line - CALIBRATION_AT) // CALIBRATION_LINES]
            self._compare_calibration(self.core.calibrations[calibrations : calibrations + DIM], made)
            calibrations += DIM
        assert calibrations == len(self.core.calibrations)
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
    for use_state in (0, 1):
        for records, tokens in (
            (0, 1),
            (0, 2 * TOKENS),
            (0, 5 * TOKENS + 3),
            (0, GROUPS * TOKENS),
            (1, 0),
            (GROUPS, 0),
            (GROUPS - 1, 1),
            (GROUPS - 2, TOKENS + 1),
            (2, 3 * TOKENS),
        ):
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
async def reads_nothing_but_calibrations_before_its_go(dut):
    """A command that may not go has asked for its calibration alone; then it goes at once."""
    bench = Bench(dut)
    await start(dut)
    before = bytearray(bench.memory.content), bench.scratch.words.copy(), dict(bench.scratch.magnitudes)
    operands = bench.operands(use_state=1, records=3, tokens=TOKENS, load_calibration=1)
    bench.give(go=False, **operands)
    await bench.done.expect_nothing(200)
    words = CALIBRATION_LINES * LINE_BYTES // bench.memory.word_bytes
    at = operands["calibration"] * LINE_BYTES // bench.memory.word_bytes
    assert bench.memory.requests == [("read", at, words)]
    assert bench.scratch.read.transfers == [] and bench.core.queries == []
    bench.go.send_nowait([0])
    await bench.ends()
    bench.compare([operands], before, 0)
    assert bench.core.first_query - bench.go.transfers[0] == MhaEngine.LATENCY
    await bench.end()
