"""Coroutines of the DsqEngine tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.control.memory_player import MemoryPlayer, Ports, ScratchPlayer, config_of
from cocotb_tests.control.pages_player import Page, PagesPlayer
from cocotb_tests.dsq.groups import Group, corner_groups, layout, random_groups, real_groups
from cocotb_tests.dsq.rows import corner_rows, random_rows
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.mha.attention import block_content
from golden.cache.page_table import PageOp, PageStatus
from golden.control.commands import LINE_BYTES, Error, Opcode
from golden.control.memory import pack_calibration, pack_state
from golden.dsq.compressor import compress
from golden.dsq.record import pack
from golden.dsq.row_quantizer import quantize_token_rows
from golden.hcap.history import update_history
from rtl.control._dsq_engine import DsqEngine
from rtl.control._layout import operand_layout
from rtl.dsq.compressor import Compressor
from rtl.dsq.salient import SalientPicker

CONFIG = config_of(params()["config"])
DSQ, BLOCK = CONFIG.dsq, CONFIG.memory_map.block
TOKENS, LANES = DSQ.group_tokens, CONFIG.gemm.row_lanes
ROW_WORDS = -(-DSQ.head_dim // LANES)
MAX_GROUPS = CONFIG.mha.max_groups
STATE_BYTES = len(pack_state(*[np.zeros(0)] * 3, MAX_GROUPS, TOKENS))
PART_BYTES = (STATE_BYTES - 8 * TOKENS) // 2
WINDOW = 1 << 16
STATE, CALIBRATION = 5, 5 + STATE_BYTES // LINE_BYTES + 3  # lines
MEMORY_LINES = 1 << min(CONFIG.cache.addr_bits - 6, 32)
TIMEOUT = 60_000


class Bench:
    """The engine between memory, pages and scratchpad."""

    def __init__(self, dut: Any, stall: str = "none", latency: int = 0) -> None:
        self.dut = dut
        self.draw = rng("bench", stall, latency)
        self.numbers = np.random.default_rng(self.draw.getrandbits(64))
        ports = Ports(dut, DsqEngine(CONFIG).signature.members, stall)
        self.command, self.go, self.done = ports.source("i_command"), ports.source("i_go"), ports.sink("o_done")
        self.memory = MemoryPlayer(ports, WINDOW, self.draw, latency=latency)
        self.scratch = ScratchPlayer(ports, CONFIG.control.scratch_words, LANES, self.draw, latency=latency)
        self.pages = PagesPlayer(ports, self.draw, latency=latency)
        self.randomize()

    def randomize(self) -> None:
        """New content everywhere."""
        self.memory.content[:] = self.numbers.bytes(WINDOW)
        self.scratch.words[:] = self.numbers.integers(-(1 << 31), 1 << 31, self.scratch.words.shape)

    def open(self, page: Page) -> bytearray:
        """A page of random content."""
        size = CONFIG.memory_map.stride(bool(page[2])) * DSQ.bus_bits // 8
        self.pages.pages[page] = bytearray(self.numbers.bytes(size))
        return self.pages.pages[page]

    def give(self, opcode: Opcode, **operands: int) -> None:
        """A command that may go at once."""
        value = operand_layout(opcode).const(operands).as_bits() if operands else 0
        self.command.send_nowait([{"opcode": opcode, "operands": value}])
        self.go.send_nowait([0])

    async def ends(self, error: Error = Error.NONE, detail: int = 0) -> None:
        """The next command ends so."""
        (done,) = await self.done.recv(1, timeout=TIMEOUT)
        assert (int(done["error"].value), done["detail"]) == (error, detail), done

    async def stays_stopped(self) -> None:
        """No further command is taken."""
        self.give(Opcode.NOP)
        await self.done.expect_nothing(60)
        assert not self.command.idle

    async def end(self) -> None:
        """Nothing is left."""
        await self.done.expect_nothing(30)
        assert self.memory.idle and self.pages.idle and self.command.idle and self.go.idle

    # APPEND

    def append(self, page: Page, token: int, source: int, k: NDArray[np.int16], v: NDArray[np.int16]) -> bytes:
        """Give an APPEND; returns what the page will be, if it is there. Both rows begin at ``source``."""
        sources = source, source + ROW_WORDS
        for at, row in zip(sources, (k, v), strict=True):
            words = self.scratch.words[at : at + ROW_WORDS].reshape(-1)
            words[: DSQ.head_dim] = row.astype(np.int64) + (self.numbers.integers(-3, 3, DSQ.head_dim) << 16)
        sequence, stream, _, group = page
        owner = {"sequence": sequence, "stream": stream, "group": group}
        self.give(Opcode.APPEND, **owner, token=token, source_k=sources[0], source_v=sources[1])
        expected = bytearray(self.pages.pages.get(page, b""))
        if expected:
            k_codes, k_scale, v_codes, v_scale = quantize_token_rows(k, v)
            word = DSQ.bus_bits // 8
            for codes, scale, scales, rows in (
                (k_codes, k_scale, BLOCK.k_scales, BLOCK.k_rows),
                (v_codes, v_scale, BLOCK.v_scales, BLOCK.v_rows),
            ):
                expected[scales[0] * word + token] = int(scale)
                at, size = (rows[0] + token * BLOCK.row_words) * word, BLOCK.row_words * word
                expected[at : at + size] = codes.tobytes() + bytes(size - DSQ.head_dim)
        return bytes(expected)

    async def appends(self, k: NDArray[np.int16], v: NDArray[np.int16], heads: int) -> None:
        """Tokens of several heads in turn, all commands at once."""
        draw = self.draw.randrange
        pages = [(draw(4), head % CONFIG.cache.streams, 1, draw(9)) for head in range(heads)]
        for page in dict.fromkeys(pages):
            self.open(page)
        places = self.draw.sample(range(CONFIG.control.scratch_words // (2 * ROW_WORDS)), len(k))
        content = {page: bytes(self.pages.pages[page]) for page in pages}
        for n, place in enumerate(places):
            page = pages[n % heads]
            real, self.pages.pages[page] = self.pages.pages[page], bytearray(content[page])
            content[page] = self.append(page, self.draw.randrange(TOKENS), place * 2 * ROW_WORDS, k[n], v[n])
            self.pages.pages[page] = real
        for _ in k:
            await self.ends()
        for page, expected in content.items():
            assert self.pages.pages[page] == expected

    # CLOSE

    def place_state(self, groups: int, votes: Sequence[int] | None = None) -> list[NDArray[np.int64]]:
        """A random state in memory, at the end of the scale now and then."""
        parts = []
        for room in (MAX_GROUPS, MAX_GROUPS, 2 * TOKENS):
            bits = self.numbers.integers(0, 33, room)
            parts.append(self.numbers.integers(0, 1 << bits, room))
        if votes is not None:
            parts[2][:TOKENS] = votes
        self.put_state(parts)
        return parts

    def put_state(self, parts: Sequence[NDArray[np.int64]]) -> None:
        self.memory.content[STATE * LINE_BYTES : STATE * LINE_BYTES + STATE_BYTES] = self.packed(parts)

    def packed(self, parts: Sequence[NDArray[np.int64]]) -> bytes:
        """A state in memory, with what lies there behind its parts."""
        content = bytearray(self.memory.content[STATE * LINE_BYTES : STATE * LINE_BYTES + STATE_BYTES])
        for part, at in zip(parts, (0, PART_BYTES, 2 * PART_BYTES), strict=True):
            content[at : at + 4 * len(part)] = part.astype("<u4").tobytes()
        return bytes(content)

    def moved(self, parts: Sequence[NDArray[np.int64]], groups: int, compressed: bool) -> bytes:
        """The whole memory after a CLOSE of that state."""
        history, recent, votes = (part.copy() for part in parts)
        history[:groups], recent[:groups] = update_history(history[:groups], recent[:groups]), 0
        if compressed:
            votes = np.concatenate([votes[TOKENS:], np.zeros(TOKENS, np.int64)])
        expected = bytearray(self.memory.content)
        expected[STATE * LINE_BYTES : STATE * LINE_BYTES + STATE_BYTES] = self.packed([history, recent, votes])
        return bytes(expected)

    def close_fields(self, group: Group, number: int, groups: int) -> tuple[dict[str, int], bytes]:
        """Memory and pages for a CLOSE; its operands and the record."""
        page = (self.draw.randrange(4), self.draw.randrange(CONFIG.cache.streams), 1, number)
        rows = quantize_token_rows(group.k_rows, group.v_rows)
        word = DSQ.bus_bits // 8
        content = b"".join(w.to_bytes(word, "little") for w in block_content(CONFIG, rows[:2], rows[2:]))
        self.open(page)[: len(content)] = content
        self.open((*page[:2], 0, number))
        calibration = pack_calibration(group.calibration)
        at = CALIBRATION * LINE_BYTES
        self.memory.content[at : at + len(calibration)] = calibration
        compressed = compress(*rows, group.salient, group.calibration, delta_bits=DSQ.delta_bits)
        fields = {
            "state": STATE,
            "calibration": CALIBRATION,
            "sequence": page[0],
            "stream": page[1],
            "salient": group.salient_tokens,
            "groups": groups,
            "sinks": group.sink_tokens,
            "compress": 1,
            "group": number,
            "k_norm": group.calibration.k_norm,
            "v_norm": group.calibration.v_norm,
        }
        return fields, pack(compressed, layout(DSQ, group.salient_tokens)).tobytes()

    async def close(self, group: Group) -> None:
        """A CLOSE with a record, against golden."""
        number = 0 if group.first_group else self.draw.randint(1, MAX_GROUPS - 1)
        groups = self.draw.choice([0, 1, number % MAX_GROUPS + 1])
        parts = self.place_state(groups, group.mass)
        fields, record = self.close_fields(group, number, groups)
        page = (fields["sequence"], fields["stream"], 0, number)
        behind = bytes(self.pages.pages[page][len(record) :])
        expected = self.moved(parts, groups, True)
        self.pages.commits.clear()
        self.give(Opcode.CLOSE, **fields)
        await self.ends()
        assert self.pages.commits == [page]
        assert self.pages.pages[page] == record + behind, group.name
        assert self.memory.content == expected, group.name


def possible(groups: Sequence[Group]) -> list[Group]:
    """Without those that the engine refuses."""
    return [group for group in groups if group.salient_tokens <= DSQ.max_salient]


def some_groups(bench: Bench, count: int) -> list[Group]:
    """Random ones."""
    made = possible(random_groups(DSQ, bench.draw, 2 * count + 8))[:count]
    return [replace(group, load_calibration=True) for group in made]


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "heavy", "bursty"], latency=[0, 40])
async def appends_match_golden(dut, stall, latency):
    bench = Bench(dut, stall, latency)
    await start(dut)
    count = params()["appends"]
    rows = random_rows(bench.draw, 2 * count, DSQ.head_dim)
    await bench.appends(rows[:count], rows[count:], 3)
    rows = corner_rows(DSQ.head_dim)
    rows = rows[bench.numbers.integers(len(rows), size=2 * 6)]
    await bench.appends(rows[:6], rows[6:], 2)
    await bench.end()


@cocotb.test()
async def appends_overlap(dut):
    bench = Bench(dut)
    await start(dut)
    count = 12
    rows = random_rows(bench.draw, 2 * count, DSQ.head_dim)
    await bench.appends(rows[:count], rows[count:], 3)
    done = np.array(bench.done.transfers)
    cocotb.log.info("first APPEND after %d cycles, then one in %s", done[0], np.diff(done))
    assert (done[-1] - done[0]) / (count - 1) <= DsqEngine.append_cycles(CONFIG)


@cocotb.test()
async def closes_match_golden_on_corner_groups(dut):
    bench = Bench(dut)
    await start(dut)
    for group in possible(corner_groups(DSQ, bench.draw)):
        await bench.close(group)
    await bench.end()


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "heavy", "bursty"], latency=[0, 40])
async def closes_match_golden(dut, stall, latency):
    bench = Bench(dut, stall, latency)
    await start(dut)
    for group in some_groups(bench, params()["groups"]):
        await bench.close(group)
    await bench.end()


if params()["real_groups"]:

    @cocotb.test()
    async def closes_match_golden_on_real_groups(dut):
        bench = Bench(dut, "none", 20)
        await start(dut)
        for group in real_groups(DSQ, params()["real_groups"]):
            await bench.close(group)
        await bench.end()


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "heavy", "bursty"])
async def history_moves_on(dut, stall):
    bench = Bench(dut, stall, 20)
    await start(dut)
    piece = 32 * DSQ.bus_bits // 32
    sizes = {1, 2, 3, piece - 1, piece, piece + 1, 2 * piece, MAX_GROUPS - 1, MAX_GROUPS}
    for groups in sorted(size for size in sizes if 1 <= size <= MAX_GROUPS):
        parts = bench.place_state(groups)
        expected = bench.moved(parts, groups, False)
        bench.give(Opcode.CLOSE, state=STATE, groups=groups)
        await bench.ends()
        assert bench.memory.content == expected, groups
    await bench.end()


@cocotb.test()
async def closes_in_time(dut):
    """Without latency of memory: state in words, rows or picker, whatever takes longest, then the Compressor."""
    bench = Bench(dut)
    await start(dut)
    lanes = DSQ.bus_bits // 32
    words = -(-MAX_GROUPS // lanes)
    bench.place_state(MAX_GROUPS)
    bench.give(Opcode.CLOSE, state=STATE, groups=MAX_GROUPS)
    await bench.ends()
    taken = bench.done.transfers[-1] - bench.command.transfers[-1]
    cocotb.log.info("%d entries in %d cycles", MAX_GROUPS, taken)
    assert taken <= 3 * words + 12 * (words // 32 + 2)

    group = replace(some_groups(bench, 1)[0], salient_tokens=DSQ.max_salient)
    bench.place_state(1, group.mass)
    fields, _ = bench.close_fields(group, 1, MAX_GROUPS)
    bench.give(Opcode.CLOSE, **fields)
    await bench.ends()
    taken = bench.done.transfers[-1] - bench.command.transfers[-1]
    rows = 2 * TOKENS * max(BLOCK.row_words, DSQ.row_beats) + 2 * BLOCK.k_scales[1]
    picker = TOKENS + SalientPicker.latency(DSQ, DSQ.max_salient)
    state = TOKENS + 2 * TOKENS // lanes + 3 * words + 12 * (words // 32 + 2)
    cocotb.log.info("a record in %d cycles, rows %d, picker %d, state %d", taken, rows, picker, state)
    assert taken <= max(rows, picker, state) + Compressor.group_cycles(DSQ, DSQ.max_salient) + 60


@cocotb.test()
async def page_commands_pass(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    for op in [*PageOp, 12]:
        fields = {"op": op, "sequence": bench.draw.getrandbits(8), "source": 7, "stream": bench.draw.getrandbits(16)}
        bench.give(Opcode.PAGE, **fields)
        await bench.ends()
        assert bench.pages.commands == [tuple(fields.values())]
        bench.pages.commands.clear()
    bench.give(Opcode.NOP)
    await bench.ends()
    for status, failed in [*((status, 0) for status in PageStatus if status != PageStatus.OK), (PageStatus.OK, 1)]:
        bench.pages.replies.append((status, failed))
        bench.give(Opcode.PAGE, op=PageOp.FORK)
        await bench.ends(Error.PAGE, status)
        await bench.stays_stopped()
        await reset(dut)


@cocotb.test()
async def commands_end_in_order(dut):
    """What follows APPENDs begins when their writes are acknowledged."""
    bench = Bench(dut, "random", 40)
    await start(dut)
    rows = random_rows(bench.draw, 4, DSQ.head_dim)
    page = (1, 0, 1, 3)
    bench.open(page)
    expected = [bench.append(page, n, 2 * n * ROW_WORDS, rows[n], rows[n + 2]) for n in range(2)]
    bench.give(Opcode.PAGE, op=PageOp.BLOCK, sequence=1)
    (group,) = some_groups(bench, 1)
    parts = bench.place_state(2, group.mass)
    fields, _ = bench.close_fields(group, 3 if not group.first_group else 0, 2)
    moved = bench.moved(parts, 2, True)
    bench.give(Opcode.CLOSE, **fields)
    bench.give(Opcode.NOP)
    await bench.ends()
    assert bench.pages.commands == []
    await bench.ends()
    assert len(expected[1]) == len(bench.pages.pages[page])
    await bench.ends()
    assert bench.pages.commands == [(PageOp.BLOCK, 1, 0, 0)]
    assert bench.memory.requests == []
    await bench.ends()
    assert bench.memory.content == moved
    await bench.ends()
    await bench.end()


@cocotb.test()
async def waits_for_go(dut):
    bench = Bench(dut)
    await start(dut)
    append = operand_layout(Opcode.APPEND).const({}).as_bits()
    close = operand_layout(Opcode.CLOSE).const({"groups": 1}).as_bits()
    for opcode, operands in ((Opcode.NOP, 0), (Opcode.PAGE, 0), (Opcode.APPEND, append), (Opcode.CLOSE, close)):
        bench.open((0, 0, 1, 0))
        bench.command.send_nowait([{"opcode": opcode, "operands": operands}])
        await bench.done.expect_nothing(40)
        assert bench.memory.requests == [] and bench.pages.commands == [] and bench.scratch.read.transfers == []
        bench.go.send_nowait([0])
        await bench.ends()
        await reset(dut)


CLOSE = {"groups": 1, "compress": 1, "salient": 1, "k_norm": 1, "v_norm": 1}
BEHIND = CONFIG.control.scratch_words - ROW_WORDS + 1
FAULTS = {
    "token": (Opcode.APPEND, {"token": TOKENS}, Error.LENGTH, 0),
    "K behind the scratchpad": (Opcode.APPEND, {"source_k": BEHIND}, Error.SCRATCHPAD, 0),
    "V behind the scratchpad": (Opcode.APPEND, {"source_v": BEHIND}, Error.SCRATCHPAD, 0),
    "end of addresses": (Opcode.APPEND, {"source_v": (1 << 20) - 1}, Error.SCRATCHPAD, 0),
    "stream": (Opcode.APPEND, {"stream": CONFIG.cache.streams}, Error.WRITE, PageStatus.RANGE),
    "page": (Opcode.APPEND, {"group": 77}, Error.WRITE, 0),
    "nothing": (Opcode.CLOSE, {"groups": 0}, Error.LENGTH, 0),
    "groups": (Opcode.CLOSE, {"groups": MAX_GROUPS + 1}, Error.LENGTH, 0),
    "no salient": (Opcode.CLOSE, {**CLOSE, "salient": 0}, Error.LENGTH, 0),
    "many salient": (Opcode.CLOSE, {**CLOSE, "salient": DSQ.max_salient + 1}, Error.LENGTH, 0),
    "all salient": (Opcode.CLOSE, {**CLOSE, "salient": TOKENS}, Error.LENGTH, 0),
    "norm of K": (Opcode.CLOSE, {**CLOSE, "k_norm": 0}, Error.LENGTH, 0),
    "norm of V": (Opcode.CLOSE, {**CLOSE, "v_norm": 0}, Error.LENGTH, 0),
    "stream of a record": (Opcode.CLOSE, {**CLOSE, "stream": CONFIG.cache.streams}, Error.WRITE, PageStatus.RANGE),
    "state behind memory": (Opcode.CLOSE, {"groups": 1, "state": MEMORY_LINES - 1}, Error.ADDRESS, 0),
    "calibration behind memory": (Opcode.CLOSE, {**CLOSE, "calibration": MEMORY_LINES - 1}, Error.ADDRESS, 0),
    "state outside": (Opcode.CLOSE, {"groups": 1, "state": WINDOW // LINE_BYTES}, Error.ADDRESS, 0),
    "opcode": (Opcode.ATTEND, {}, Error.OPCODE, Opcode.ATTEND),
}


@cocotb.test()
@cocotb.parametrize(name=list(FAULTS))
async def answers_faulty_commands(dut, name):
    bench = Bench(dut, "random", 10)
    await start(dut)
    opcode, operands, error, detail = FAULTS[name]
    before = bytes(bench.memory.content)
    if opcode == Opcode.APPEND:
        bench.open((0, 0, 1, 0))
    bench.give(opcode, **operands)
    await bench.ends(error, detail)
    assert bench.memory.content == before
    await bench.stays_stopped()
    await reset(dut)
    rows = random_rows(bench.draw, 2, DSQ.head_dim)
    await bench.appends(rows[:1], rows[1:], 1)


def spoil(bench: Bench, what: str, fields: dict[str, int]) -> tuple[Error, int]:
    """Let something of a CLOSE fail; how it ends then."""
    words = LINE_BYTES // bench.memory.word_bytes
    owner = (fields["sequence"], fields["stream"])
    if what in ("history", "recent", "votes", "calibration"):
        offset = {"history": 0, "recent": PART_BYTES, "votes": 2 * PART_BYTES}.get(what, 0)
        line = CALIBRATION if what == "calibration" else STATE + offset // LINE_BYTES
        bench.memory.bad.add(line * words)
        return Error.MEMORY, 0
    if what == "calibration outside":
        fields["calibration"] = WINDOW // LINE_BYTES
        return Error.ADDRESS, 0
    if what == "block":
        del bench.pages.pages[(*owner, 1, fields["group"])]
        return Error.MEMORY, 0
    if what == "row":
        bench.pages.bad.add(((*owner, 1, fields["group"]), BLOCK.v_rows[0] + BLOCK.v_rows[1] - 1))
        return Error.MEMORY, 0
    if what == "record":
        del bench.pages.pages[(*owner, 0, fields["group"])]
        return Error.WRITE, 0
    bench.pages.statuses.append(PageStatus.REPEATED)
    return Error.WRITE, PageStatus.REPEATED


@cocotb.test()
@cocotb.parametrize(
    what=[
        "history",
        "recent",
        "votes",
        "calibration",
        "calibration outside",
        "block",
        "row",
        "record",
        "commit",
    ]
)
async def reports_what_fails_in_a_close(dut, what):
    bench = Bench(dut, "random", 10)
    await start(dut)
    (group,) = some_groups(bench, 1)
    parts = bench.place_state(2, group.mass)
    fields, _ = bench.close_fields(group, 1, 2)
    expected = spoil(bench, what, fields)
    before, moved = bytes(bench.memory.content), bench.moved(parts, 2, True)
    bench.give(Opcode.CLOSE, **fields)
    await bench.ends(*expected)
    assert bench.pages.commits == [] or what == "commit"
    if what == "votes":
        assert bench.memory.content == before
    elif what not in ("history", "recent"):
        assert bench.memory.content == moved
    await bench.stays_stopped()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", 10)
    await start(dut)
    for wait in params()["resets"]:
        (group,) = some_groups(bench, 1)
        fields, _ = bench.close_fields(group, 1, 2)
        rows = random_rows(bench.draw, 4, DSQ.head_dim)
        if wait % 2:
            bench.give(Opcode.CLOSE, **fields)
        for n in range(2):
            bench.append((0, 0, 1, 0), n, 2 * n * ROW_WORDS, rows[n], rows[n + 2])
        await cycles(dut, wait)
        await reset(dut)
        bench.randomize()
        await bench.appends(rows[:2], rows[2:], 2)
        await bench.close(group)
        await bench.end()
