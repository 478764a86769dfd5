"""Coroutines of the Prologue tests."""

from collections.abc import Iterator, Sequence

import cocotb
import numpy as np

from cocotb_tests.gemm.rows import LOWEST, Case, corner_rows, lengths, power_cases, random_case
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.gemm.prologue import EPSILON_BITS, Norm, magnitude, prepare_rows
from rtl.config import GemmConfig

CONFIG = GemmConfig(**params()["config"])
LANES, ACT_BITS, MAX_K = CONFIG.row_lanes, CONFIG.act_bits, CONFIG.max_k
K_BITS = MAX_K.bit_length()
#: beats, and rows, that wait for a sink that takes none
QUEUE = 16


def row_cycles(norm: Norm) -> int:
    """Cycles from one row of the longest kind to the next, if its beats are fewer."""
    return params()["root_cycles"][norm] + 1


class Gate:
    """Stalls while it is shut."""

    def __init__(self) -> None:
        self.shut = False

    def __iter__(self) -> Iterator[bool]:
        return self

    def __next__(self) -> bool:
        return self.shut


class Bench:
    """The design's streams, and commands sent through them against golden."""

    def __init__(self, dut, command: str = "none", row: str = "none", code: str = "none", factor: str = "none") -> None:
        self.dut = dut
        self.draw = rng("bench", command, row, code, factor)
        self.numbers = np.random.default_rng(self.draw.getrandbits(64))
        self.gates = [Gate(), Gate()]
        self.command = StreamSource(dut, "i_command", stall=stalls.named(command, "command"))
        self.row = StreamSource(dut, "i_row", stall=stalls.named(row, "row"))
        code_stall, factor_stall = (
            stalls.named(name, name) or gate for name, gate in zip((code, factor), self.gates, strict=True)
        )
        self.code = StreamSink(dut, "o_code", stall=code_stall)
        self.factor = StreamSink(dut, "o_factor", stall=factor_stall)

    def send(self, case: Case) -> None:
        """Queue a command and its rows; the last beat of a row is filled with anything."""
        rows, k = case.x.shape
        fields = ((rows, 16), (k, K_BITS), (int(case.norm), 2), (case.epsilon, EPSILON_BITS))
        bits = at = 0
        for value, width in fields:
            bits, at = bits | value << at, at + width
        self.command.send_nowait([bits])
        beats = -(-k // LANES)
        filled = self.numbers.integers(LOWEST, -LOWEST, (rows, beats * LANES))
        filled[:, :k] = case.x
        for row, size in zip(filled.astype("<i4").reshape(rows, beats, LANES), magnitude(case.x), strict=True):
            self.row.send_nowait(int.from_bytes(beat.tobytes(), "little") | int(size) << 32 * LANES for beat in row)

    async def check(self, cases: Sequence[Case]) -> None:
        """Send commands at once and compare all that comes out."""
        for case in cases:
            self.send(case)
        for number, case in enumerate(cases):
            expected = prepare_rows(case.x, act_bits=ACT_BITS, norm=case.norm, epsilon=case.epsilon)
            rows, k = case.x.shape
            where = f"command {number}, {case.norm.name} with {case.epsilon} of {rows} x {k}"
            codes = np.zeros((rows, -(-k // LANES), LANES), np.int64)
            codes.reshape(rows, -1)[:, :k] = expected.codes
            for row in range(rows):
                shown = f"{where}, row {row}: {case.x[row].tolist()}"
                wanted = [pack(beat.tolist(), n == len(codes[row]) - 1) for n, beat in enumerate(codes[row])]
                assert await self.code.recv(len(wanted)) == wanted, f"codes of {shown}"
                (got,) = await self.factor.recv(1)
                factor, exponent = int(expected.factor[row]), int(expected.exponent[row])
                assert got == factor | (exponent & 127) << 16, f"factor {got:#x}, not {factor}, {exponent} of {shown}"

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.code.expect_nothing(2 * row_cycles(Norm.LAYER))
        assert self.factor.empty() and self.row.idle and self.command.idle


def pack(codes: Sequence[int], last: bool) -> int:
    """A beat of codes as it is on the stream."""
    bits = 0
    for lane, code in enumerate(codes):
        bits |= (code & (1 << ACT_BITS) - 1) << lane * ACT_BITS
    return bits | last << LANES * ACT_BITS


@cocotb.test()
@cocotb.parametrize(norm=[norm.name for norm in Norm])
async def matches_golden_on_corner_rows(dut, norm):
    """Without norm every shift, with one some of them."""
    bench = Bench(dut)
    await start(dut)
    cases = []
    for k in lengths(LANES, min(MAX_K, params()["corner_k"])):
        parts = np.array_split(corner_rows(k, ACT_BITS, step=1 if norm == "NONE" else 6), 3)
        epsilons = [0, (1 << EPSILON_BITS) - 1, bench.draw.getrandbits(bench.draw.randint(1, EPSILON_BITS))]
        cases += [Case(x=x, norm=Norm[norm], epsilon=e) for x, e in zip(parts, epsilons, strict=True)]
    await bench.check(cases)
    await bench.end()


@cocotb.test()
async def matches_golden_for_any_power(dut):
    """Roots and quotients of powers of all lengths, of zero, and around squares."""
    bench = Bench(dut)
    await start(dut)
    await bench.check(list(power_cases(bench.draw, params()["powers"])))
    await bench.end()


@cocotb.test()
async def matches_golden_on_the_largest_powers(dut):
    """The longest rows of the largest codes; those of one sign, and of opposite ones, with no mean to take off."""
    bench = Bench(dut)
    await start(dut)
    ones = np.ones((1, MAX_K), np.int64)
    signs = 1 - 2 * (np.arange(MAX_K) % 2)
    x = np.concatenate([ones * LOWEST, ones * ~LOWEST, np.where(signs < 0, LOWEST, ~LOWEST)[None]]).astype(np.int32)
    await bench.check([Case(x=x, norm=norm, epsilon=(1 << EPSILON_BITS) - 1) for norm in Norm])
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("command", "row", "code", "factor"),
        [
            ("none", "none", "none", "none"),
            ("heavy", "none", "random", "none"),
            ("none", "random", "none", "heavy"),
            ("random", "bursty", "heavy", "random"),
            ("none", "none", "every2", "bursty"),
        ],
    )
)
async def matches_golden_under_stalls(dut, command, row, code, factor):
    """Commands of one to several rows, from one element to the longest row."""
    bench = Bench(dut, command, row, code, factor)
    await start(dut)
    draw = bench.draw
    short = [k for k in lengths(LANES, MAX_K) if k <= 2 * LANES]
    sizes = [draw.choice([*short, draw.randint(1, min(MAX_K, 9 * LANES))]) for _ in range(params()["commands"])]
    sizes[len(sizes) // 2] = MAX_K
    await bench.check([random_case(draw, draw.choice([1, 1, 2, 5, 20]), k) for k in sizes])
    await bench.end()


if params()["real"]:

    @cocotb.test()
    async def matches_golden_on_real_rows(dut):
        """Inputs of all projections of some layers of the embedded model."""
        bench = Bench(dut)
        await start(dut)
        with np.load(params()["real"]) as arrays:
            count = len(arrays.files) // 2
            cases = [
                Case(x=arrays[f"x_{n}"], norm=Norm(int(norm)), epsilon=int(epsilon))
                for n in range(count)
                for norm, epsilon in [arrays[f"command_{n}"]]
            ]
        await bench.check(cases)
        rows = sum(len(case.x) for case in cases)
        taken = bench.row.transfers[-1] - bench.row.transfers[0] + 1
        assert taken == len(bench.row.transfers), f"{len(bench.row.transfers)} beats of {rows} rows took {taken} cycles"
        await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    p, draw = params(), bench.draw

    async def one(case: Case) -> int:
        """Cycles from the last beat of the last row to its factor."""
        await bench.check([case])
        first = bench.code.transfers[-1] - bench.row.transfers[-1]
        assert first == p["latency"], f"codes after {first} cycles, not {p['latency']}"
        return bench.factor.transfers[-1] - bench.row.transfers[-1]

    # One row on its own: its codes and its factor come in the stated time.
    for k in lengths(LANES, MAX_K):
        waited = await one(random_case(draw, 1, k, Norm.NONE))
        assert waited == p["factor_latency"], f"factor after {waited} cycles, not {p['factor_latency']}"
    longest = 0
    for norm in (Norm.RMS, Norm.LAYER):
        for epsilon in (0, 1, 1 << 40, (1 << EPSILON_BITS) - 1):
            for row in (np.zeros(MAX_K), np.full(MAX_K, LOWEST), np.where(np.arange(MAX_K) == 0, ~LOWEST >> 1, 0)):
                waited = await one(Case(x=row[None].astype(np.int32), norm=norm, epsilon=epsilon))
                root, bound = waited - p["factor_latency"], p["root_cycles"][norm]
                assert root <= bound, f"the root took {root} cycles, at most {bound} are promised"
                longest = max(longest, root)
    cocotb.log.info("roots took up to %d cycles, promised %s", longest, p["root_cycles"])
    assert longest >= p["root_cycles"][Norm.LAYER] - 8, f"the longest root took {longest} cycles only"

    # Commands without norm follow each other without a gap, those of a single row too.
    before = len(bench.row.transfers)
    await bench.check([random_case(draw, rows, min(2 * LANES, MAX_K), Norm.NONE) for rows in (1, 1, 1, 3, 1, 20, 2, 1)])
    taken = bench.row.transfers[before:]
    assert taken[-1] - taken[0] == len(taken) - 1, f"{len(taken)} beats took {taken[-1] - taken[0] + 1} cycles"

    # Rows of a beat, one a cycle.
    before = len(bench.row.transfers)
    await bench.check([random_case(draw, 40, min(LANES, MAX_K), Norm.NONE)])
    taken = bench.row.transfers[before:]
    assert taken[-1] - taken[0] == len(taken) - 1, f"{len(taken)} rows took {taken[-1] - taken[0] + 1} cycles"

    # With a norm rows come in as fast if they are long, else as fast as roots are found.
    for norm in (Norm.RMS, Norm.LAYER):
        for k in {min(LANES, MAX_K), MAX_K}:
            first, before = len(bench.factor.transfers), len(bench.row.transfers)
            await bench.check([random_case(draw, 24, k, norm)])
            taken, gaps = bench.row.transfers[before:], np.diff(bench.factor.transfers[first:])
            lost = taken[-1] - taken[0] + 1 - len(taken)
            if -(-k // LANES) >= row_cycles(norm):
                assert lost == 0, f"{lost} cycles lost between rows of {k}"
            else:
                assert gaps.max() <= row_cycles(norm), f"factors {gaps.tolist()} cycles apart, not {row_cycles(norm)}"
    await bench.end()


@cocotb.test()
async def codes_and_factors_do_not_wait_for_each_other(dut):
    bench = Bench(dut)
    await start(dut)
    codes, factors = bench.gates
    rows = random_case(bench.draw, 60, 1, Norm.NONE)

    # No factor is taken: codes of as many rows as have room come out, with a root under way too.
    for norm in (Norm.NONE, Norm.RMS):
        factors.shut = True
        await cycles(dut, 2)
        before = len(bench.code.transfers)
        bench.send(Case(x=rows.x, norm=norm, epsilon=5))
        await cycles(dut, 200)
        assert len(bench.code.transfers) - before >= QUEUE, f"{len(bench.code.transfers) - before} rows came out"
        factors.shut = False
        await bench.code.recv(60, 10_000)
        await bench.factor.recv(60, 10_000)

    # No code is taken: factors of as many rows as have room come out.
    codes.shut = True
    await cycles(dut, 2)
    before = len(bench.factor.transfers)
    bench.send(rows)
    await cycles(dut, 200)
    assert len(bench.factor.transfers) - before >= QUEUE - 2, f"{len(bench.factor.transfers) - before} factors came"
    codes.shut = False
    await bench.code.recv(60)
    await bench.factor.recv(60)
    await bench.check([rows])
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random", "random", "random")
    await start(dut)
    draw = bench.draw
    for wait in (3, 9, 20, 60, 61, 90, 200):
        for norm in (Norm.LAYER, Norm.NONE, Norm.RMS):
            bench.send(random_case(draw, 4, draw.randint(1, min(MAX_K, 5 * LANES)), norm))
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([random_case(draw, 3, draw.randint(1, min(MAX_K, 5 * LANES))) for _ in range(3)])
        await bench.end()
