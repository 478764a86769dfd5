"""Coroutines of the StreamingSoftmax tests."""

import random
from collections.abc import Iterator, Sequence

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start, throughput
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.mha.softmax import softmax_streaming

SCORE_BITS, MAXIMUM_BITS, WEIGHT_BITS, RISE_BITS = 26, 19, 16, 6
LOWEST, HIGHEST = -(1 << 25), (1 << 25) - 1
EMPTY = -(1 << 18)  # maximum of a row without tokens


def corner_rows() -> Iterator[list[int]]:
    """One head's scores: every fraction, shifts and rises around their limits, extremes, orders, lengths."""
    yield []
    yield from ([s] for s in (0, -1, 255, 256, -256, -257, LOWEST, LOWEST + 1, HIGHEST, HIGHEST - 1))
    yield list(range(-1, -258, -1))  # all fractions, against one maximum
    yield []
    yield list(range(-300, 40))
    yield [LOWEST, HIGHEST, LOWEST, HIGHEST]
    yield [HIGHEST, LOWEST, HIGHEST]
    yield [s - 256 * units for units in (0, 1, 14, 15, 16, 17, 31, 32, 1000) for s in (255, 128, 0, -1)]
    rise = 0
    yield [rise := rise + 256 * by for by in (1, 2, 31, 32, 33, 61, 62, 63, 64, 65, 127, 128, 129, 1000)]
    yield [-5000, -5000, -4990, -4990, -5000]
    yield [700] * 5


def random_rows(draw: random.Random, count: int, heads: int) -> Iterator[list[list[int]]]:
    """Rows of scores by token and head, of several spreads; some heads far from the others."""
    for _ in range(count):
        spread = draw.choice([20, 600, 3000, 60000, HIGHEST])
        center = [draw.randint(LOWEST + spread, HIGHEST - spread) for _ in range(heads)]
        length = draw.choice([0, 1, 2, draw.randint(3, 60)])
        yield [[c + draw.randint(-spread, spread) for c in center] for _ in range(length)]


def pack(fields: Sequence[int], bits: int) -> int:
    """Integers side by side, the first one lowest."""
    return sum((int(field) & ((1 << bits) - 1)) << (bits * n) for n, field in enumerate(fields))


class Bench:
    """The design's streams, and rows sent through them against golden."""

    def __init__(self, dut, i_stall: str = "none", o_stall: str = "none") -> None:
        self.heads, self.tag_bits = params()["q_heads"], params()["tag_bits"]
        self.draw = rng("bench", i_stall, o_stall)
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, row: list[list[int]]) -> list[tuple[bool, int]]:
        """Queue a row and its end, whose scores are any; return end and tag of each transfer."""
        marks = [(n == len(row), self.draw.getrandbits(self.tag_bits)) for n in range(len(row) + 1)]
        any_scores = [self.draw.randint(LOWEST, HIGHEST) for _ in range(self.heads)]
        for scores, (end, tag) in zip([*row, any_scores], marks, strict=True):
            upper = int(end) | tag << 1
            self.source.send_nowait([pack(scores, SCORE_BITS) | upper << (SCORE_BITS * self.heads)])
        return marks

    def expected(self, row: list[list[int]], marks: list[tuple[bool, int]]) -> list[int]:
        """The words that golden gives for a row."""
        weights, maxima = self.golden(row)
        rises = np.minimum(np.diff(maxima, axis=1, prepend=maxima[:, :1]), 63)
        final = maxima[:, -1] if row else [EMPTY] * self.heads
        zeros = [0] * self.heads
        transfers = [*zip(weights.T, rises.T, maxima.T, strict=True), (zeros, zeros, final)]
        words = []
        for (weight, rise, maximum), (end, tag) in zip(transfers, marks, strict=True):
            word = pack(weight, WEIGHT_BITS) | pack(rise, RISE_BITS) << (WEIGHT_BITS * self.heads)
            word |= pack(maximum, MAXIMUM_BITS) << ((WEIGHT_BITS + RISE_BITS) * self.heads)
            words.append(word | (int(end) | tag << 1) << ((WEIGHT_BITS + RISE_BITS + MAXIMUM_BITS) * self.heads))
        return words

    def golden(self, row: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return softmax_streaming(np.array(row, np.int32).reshape(-1, self.heads).T)

    async def check(self, rows: list[list[list[int]]]) -> None:
        """Send all rows at once and compare all that comes out."""
        marks = [self.send(row) for row in rows]
        for n, (row, mark) in enumerate(zip(rows, marks, strict=True)):
            words, expected = await self.sink.recv(len(row) + 1), self.expected(row, mark)
            for token, (word, want) in enumerate(zip(words, expected, strict=True)):
                assert word == want, f"row {n}, token {token}: {word:#x}, expected {want:#x}; scores {row[: token + 1]}"

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(50)
        assert self.source.idle


@cocotb.test()
async def matches_golden_on_corner_rows(dut):
    """Each head has the corners at another time, so that their maxima rise apart."""
    bench = Bench(dut)
    await start(dut)
    corners = list(corner_rows())
    for head in range(bench.heads):
        rest = [bench.draw.randint(-3000, 3000) for _ in range(bench.heads)]
        rows = [[[s if h == head else rest[h] for h in range(bench.heads)] for s in row] for row in corners]
        await bench.check(rows)
    await bench.check([[[s] * bench.heads for s in row] for row in corners])
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall"),
        [("none", "none"), ("random", "none"), ("none", "heavy"), ("bursty", "random"), ("heavy", "every2")],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(list(random_rows(bench.draw, params()["rows"], bench.heads)))
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    expected = params()["latency"]
    # One token alone comes out without anything behind it.
    await bench.check([[]])
    assert latency(bench.source, bench.sink) == expected, f"latency {latency(bench.source, bench.sink)}, not {expected}"
    rows = list(random_rows(bench.draw, 20, bench.heads))
    await bench.check(rows)
    measured = {o - i for i, o in zip(bench.source.transfers, bench.sink.transfers, strict=True)}
    assert measured == {expected}, f"latencies {measured}, not {expected}"
    assert throughput(bench.sink, 1) == 1.0, f"{throughput(bench.sink, 1)} transfers a cycle, not 1"
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (3, 10, 37):
        for row in random_rows(bench.draw, 8, bench.heads):
            bench.send(row)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([[], *random_rows(bench.draw, 4, bench.heads)])
        await bench.end()
