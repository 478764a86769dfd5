"""Coroutines of the ValueSum tests."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.mha.softmax import MASKED, inverse, softmax_streaming
from golden.mha.value_sum import accumulate, finish_output
from rtl.config import DsqConfig, MhaConfig

DSQ, MHA = DsqConfig(**params()["dsq"]), MhaConfig(**params()["mha"])
HEADS, DIM, LANES, BUS = MHA.q_heads, DSQ.head_dim, DSQ.lanes, DSQ.bus_bits
ROW_WORDS, DELTA_WORDS = DSQ.row_words(8), DSQ.row_words(2)
BEATS = HEADS * DSQ.row_beats
HEAD_BITS = max((HEADS - 1).bit_length(), 1)
#: the largest scale code of an INT8 row
ROW_SCALE = 135
TIMEOUT = 5000


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tokens of a row: scores of each head, kinds, scale codes, V codes; its calibration slot."""

    scores: NDArray[np.int32]  # [G, T]
    delta: NDArray[np.bool_]  # [T]
    scale: NDArray[np.uint8]  # [T]
    codes: NDArray[np.int8]  # [T, head_dim]
    slot: int

    def rises(self) -> NDArray[np.int64]:
        """How far each token made the maximum rise, [G, T]."""
        maximum = softmax_streaming(self.scores)[1].astype(np.int64)
        return np.minimum(np.diff(maximum, axis=1, prepend=maximum[:, :1]), 63)


def make_row(draw: random.Random, scores: NDArray[np.int32], delta: NDArray[np.bool_], slot: int = 0) -> Row:
    """A row with random scales and codes."""
    tokens = scores.shape[1]
    numbers = np.random.default_rng(draw.getrandbits(32))
    lowest = draw.choice([0, 60, 88])
    return Row(
        scores=scores,
        delta=delta,
        scale=numbers.integers(lowest, np.where(delta, draw.choice([130, 256]), ROW_SCALE + 1), dtype=np.uint8),
        codes=np.where(
            delta[:, None], numbers.integers(0, 4, (tokens, DIM)), numbers.integers(-128, 128, (tokens, DIM))
        ).astype(np.int8),
        slot=slot,
    )


def random_row(draw: random.Random, tokens: int, slot: int | None = None) -> Row:
    """INT8 tokens, then salient ones and deltas in any order; flat, peaked or growing scores, some of them masked."""
    numbers = np.random.default_rng(draw.getrandbits(32))
    spread, growth = draw.choice([0, 300, 3000]), draw.choice([0, 0, 0, 100])
    scores = numbers.integers(-spread, spread + 1, (HEADS, tokens)) + growth * np.arange(tokens)
    scores = np.where(numbers.random((HEADS, tokens)) < 0.1, MASKED, scores).astype(np.int32)
    delta = numbers.random(tokens) < np.where(np.arange(tokens) < draw.randint(0, tokens), 0, 0.8)
    return make_row(draw, scores, delta, draw.getrandbits(2) if slot is None else slot)


def corner_rows(draw: random.Random) -> Iterator[Row]:
    """Rows without tokens or weight, of one token, extremes of codes and scales, maxima that rise by 1 to beyond 63."""

    def flat(tokens: int) -> NDArray[np.int32]:
        return np.full((HEADS, tokens), -1, np.int32)

    def uniform(row: Row, code: int, scale: int) -> Row:
        codes, scales = np.full(row.codes.shape, code, np.int8), np.full(len(row.scale), scale, np.uint8)
        return Row(scores=row.scores, delta=row.delta, scale=scales, codes=codes, slot=row.slot)

    none = np.zeros(0, bool)
    yield make_row(draw, flat(0), none)
    yield make_row(draw, np.full((HEADS, 3), MASKED, np.int32), np.array([False, True, True]))
    for delta in (False, True):
        kind = np.full(5, delta)
        yield make_row(draw, flat(1), kind[:1])
        for code in (0, 3) if delta else (-128, 127):
            for scale in (0, 87, 95, 255 if delta else ROW_SCALE):
                yield uniform(make_row(draw, flat(5), kind, slot=int(code > 0)), code, scale)
        for step in (256, 512, 70 * 256):
            yield make_row(draw, (flat(5) + step * np.arange(5)).astype(np.int32), kind)
    yield make_row(draw, (flat(6) + 256 * np.arange(6)).astype(np.int32), np.array([False, True] * 3))
    one_rises = flat(4)
    one_rises[0, 2:] = 900
    yield make_row(draw, one_rises, np.array([False, True, True, False]))
    masked_first = flat(3)
    masked_first[:, 0] = MASKED
    yield make_row(draw, masked_first, np.array([False, False, True]))
    yield make_row(draw, flat(0), none)


def packed(values: Sequence[int], bits: int) -> int:
    """Values side by side, the first in the lowest bits."""
    return sum((int(value) & ((1 << bits) - 1)) << bits * place for place, value in enumerate(values))


def word_cycles(delta: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Cycles of each word of tokens of these kinds: of deltas, `delta_cycles` but for the rest of a row."""
    lanes = BUS // 2 // MHA.delta_cycles
    chunks = [min(MHA.delta_cycles, -(-DIM // lanes) - MHA.delta_cycles * n) for n in range(DELTA_WORDS)]
    return np.concatenate([chunks if kind else [1] * ROW_WORDS for kind in delta])


class Bench:
    """The streams of a ValueSum; rows go in, output rows and inverses are compared with golden."""

    def __init__(self, dut, i_stall: str = "none", o_stall: str = "none") -> None:
        self.dut = dut
        self.draw = rng("value", i_stall, o_stall)
        self.token = StreamSource(dut, "i_token", stall=stalls.named(i_stall, "token"))
        self.word = StreamSource(dut, "i_word", stall=stalls.named(i_stall, "word"))
        self.beat = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))
        self.row = StreamSink(dut, "o_row", stall=stalls.named(o_stall, "o_row"))
        self.shape, self.mean = np.zeros((4, DIM), np.int64), np.zeros((4, DIM), np.int64)
        dut.c_en.value = 0

    async def load(self, slot: int) -> None:
        """Write a random calibration with extremes in it."""
        numbers = np.random.default_rng(self.draw.getrandbits(32))
        self.shape[slot], self.mean[slot] = numbers.integers(1, 4096, DIM), numbers.integers(-32768, 32768, DIM)
        self.shape[slot, :4], self.mean[slot, :4] = (4095, 4095, 1, 0), (32767, -32768, -32768, 32767)
        for channel in range(DIM):
            self.dut.c_en.value, self.dut.c_slot.value, self.dut.c_channel.value = 1, slot, channel
            mean = packed([self.mean[slot, channel]], 16)
            self.dut.c_data.value = int(self.shape[slot, channel]) | mean << 12
            await cycles(self.dut, 1)
        self.dut.c_en.value = 0

    def send(self, row: Row) -> None:
        """Queue a row's tokens, words and end."""
        self.send_tokens(row)
        self.send_end(row)

    def send_end(self, row: Row) -> None:
        """Queue the end of a row; bits without meaning are random."""
        flags = 22 * HEADS + 8
        self.token.send_nowait([self.draw.getrandbits(flags + 1) | 1 << flags + 1 | row.slot << flags + 2])

    def send_tokens(self, row: Row) -> None:
        """Queue a row's tokens and words; bits without meaning are random."""
        weights, rises = softmax_streaming(row.scores)[0], row.rises()
        flags = 22 * HEADS + 8
        for token, delta in enumerate(row.delta):
            bits = packed(weights[:, token], 16) | packed(rises[:, token], 6) << 16 * HEADS
            bits |= int(row.scale[token]) << flags - 8 | int(delta) << flags | self.draw.getrandbits(1) << flags + 2
            self.token.send_nowait([bits])
            code_bits, words = (2, DELTA_WORDS) if delta else (8, ROW_WORDS)
            codes = packed(row.codes[token], code_bits) | self.draw.getrandbits(BUS) << DIM * code_bits
            self.word.send_nowait((codes >> BUS * n) % (1 << BUS) for n in range(words))

    async def receive(self, rows: Sequence[Row]) -> None:
        """Compare what comes out with what these rows give."""
        for number, row in enumerate(rows):
            sums = accumulate(*softmax_streaming(row.scores), row.delta, row.scale, row.codes)
            factor, length = inverse(sums.total)
            expected = finish_output(sums, self.shape[row.slot], self.mean[row.slot])
            where = f"row {number}, {len(row.delta)} tokens, scores {row.scores.tolist()}"
            (bits,) = await self.row.recv(1, TIMEOUT)
            assert bits == packed(factor, 19) | packed(length, 6) << 19 * HEADS, f"{where}: {factor} {length}"
            made = np.zeros((HEADS, DIM), np.int16)
            for n, beat in enumerate(await self.beat.recv(BEATS, TIMEOUT)):
                head, place = divmod(n, DSQ.row_beats)
                assert beat % (1 << HEAD_BITS) == head and beat >> HEAD_BITS + 16 * LANES == (n == BEATS - 1), where
                lanes = (beat >> HEAD_BITS).to_bytes(2 * LANES + 1, "little")[: 2 * LANES]
                made[head, place * LANES : (place + 1) * LANES] = np.frombuffer(lanes, "<i2")
            np.testing.assert_array_equal(made, expected, err_msg=where)

    async def check(self, rows: Sequence[Row]) -> None:
        """Send all rows at once, compare all that comes out, and leave nothing behind."""
        for row in rows:
            self.send(row)
        await self.receive(rows)
        await self.beat.expect_nothing(2 * DIM)
        assert self.row.empty() and self.token.idle and self.word.idle

    async def begin(self) -> None:
        """Reset, then load both calibrations."""
        await start(self.dut)
        await self.load(0)
        await self.load(1)


@cocotb.test()
async def matches_golden_on_corner_rows(dut):
    bench = Bench(dut)
    await bench.begin()
    await bench.check(list(corner_rows(bench.draw)))


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("none", "heavy"), ("random", "none"), ("random", "random"), ("bursty", "bursty")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await bench.begin()
    await bench.check([random_row(bench.draw, bench.draw.randint(1, 60)) for _ in range(params()["rows"])])


@cocotb.test()
async def matches_golden_on_a_long_row(dut):
    """Sums larger than any single product, with scales at their limits."""
    bench = Bench(dut)
    await bench.begin()
    rows = []
    for delta, code, scale in ((False, -128, ROW_SCALE), (True, 3, 255), (True, 0, 255)):
        kind = np.full(120, delta)
        row = make_row(bench.draw, np.full((HEADS, 120), 255, np.int32), kind)
        codes, scales = np.full(row.codes.shape, code, np.int8), np.full(120, scale, np.uint8)
        rows.append(Row(scores=row.scores, delta=kind, scale=scales, codes=codes, slot=1))
    await bench.check(rows)


@cocotb.test()
async def keeps_the_slots_apart(dut):
    """One calibration changes while a row is finished with the other."""
    bench = Bench(dut)
    await bench.begin()
    for slot in (0, 1, 0):
        row = random_row(bench.draw, 9, slot)
        bench.send(row)
        await bench.load(1 - slot)
        await bench.receive([row])
    await bench.beat.expect_nothing(2 * DIM)


@cocotb.test()
async def meets_latency(dut):
    """From the end of a row to its inverses and to its last beat, when nothing else is under way."""
    bench = Bench(dut)
    await bench.begin()
    for tokens in (0, 1, 7):
        await reset(dut)
        row = make_row(bench.draw, np.full((HEADS, tokens), 7, np.int32), np.arange(tokens) % 3 > 0)
        bench.send_tokens(row)
        await cycles(dut, 100 * (tokens + 1))
        bench.send_end(row)
        await bench.receive([row])
        ended = bench.token.transfers[-1]
        for sink, expected in ((bench.row, params()["inverse_latency"]), (bench.beat, params()["row_latency"])):
            measured = sink.transfers[-1] - ended
            assert measured == expected, f"{sink.name}: latency {measured} cycles, not {expected}"


@cocotb.test()
async def takes_a_word_per_cycle(dut):
    """Tokens of both kinds back to back; a rise takes its passes, finishing a row at most a cycle in four."""
    bench = Bench(dut)
    await bench.begin()
    tokens = 400 // HEADS
    kind = np.arange(tokens) % 5 != 0
    flat = np.full((HEADS, tokens), -1, np.int32)
    needed = word_cycles(kind)
    risen = flat.copy()
    risen[HEADS - 1, tokens // 2 :] += 3 * 256
    for scores, passes in ((flat, 0), (risen, 3)):
        await reset(dut)
        await bench.check([make_row(bench.draw, scores, kind)])
        spent = bench.word.transfers[-1] - bench.word.transfers[1]  # the first word waits for its token
        expected = needed[1:-1].sum() + passes * ROW_WORDS
        assert spent == expected, f"{len(needed)} words in {spent} cycles, not {expected}, {passes} passes"
    await reset(dut)
    await bench.check([make_row(bench.draw, flat[:, :1], kind[:1]), make_row(bench.draw, flat, kind)])
    taken = bench.word.transfers[ROW_WORDS + 1 :]  # without the row's first word, which waits for the end before it
    needed = needed[1:-1]
    reads = np.diff(taken) - needed
    assert reads.min() == 0 and reads.sum() > 0
    done, read = (np.concatenate([[0], counts.cumsum()]) for counts in (needed, reads))
    for n in range(len(needed)):  # the last read is before the last cycle of its word
        between = done[n + 1 :] - done[n] - 1
        assert (read[n + 1 :] - read[n] <= between // 3 + 1).all(), f"fewer than three cycles between reads, word {n}"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    """Resets at any moment; the calibration stays."""
    bench = Bench(dut, "none", "random")
    await bench.begin()
    for wait in (3, 40, 90, 150, 260, 420):
        for _ in range(4):
            bench.send(random_row(bench.draw, bench.draw.randint(1, 25)))
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([random_row(bench.draw, bench.draw.randint(0, 12)) for _ in range(2)])
