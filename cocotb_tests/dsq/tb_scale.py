"""Coroutines of the ScaleDivider tests."""

from collections.abc import Sequence
from typing import Any

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.scale import SCALE_BIAS, divide_scale


class Bench:
    """The design's streams, and divisions sent through them against golden."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        self.numerator_bits, self.denominator_bits = params()["numerator_bits"], params()["denominator_bits"]
        self.draw = rng("bench", i_stall, o_stall)
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, divisions: Sequence[tuple[int, int]]) -> None:
        self.source.send_nowait(n | d << self.numerator_bits for n, d in divisions)

    async def check(self, divisions: Sequence[tuple[int, int]]) -> None:
        self.send(divisions)
        expected = [int(divide_scale(n, d)) for n, d in divisions]
        got = await self.sink.recv(len(divisions), timeout=2000)
        wrong = [row for row in zip(divisions, got, expected, strict=True) if row[1] != row[2]]
        assert not wrong, f"{len(wrong)} scales differ, such as (numerator, denominator), scale, expected = {wrong[0]}"

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(100)
        assert self.source.idle

    def random(self, count: int) -> list[tuple[int, int]]:
        """Numerators and denominators of all lengths."""
        draw = self.draw
        return [
            (
                draw.getrandbits(draw.randint(1, self.numerator_bits)),
                draw.getrandbits(draw.randint(1, self.denominator_bits)) or 1,
            )
            for _ in range(count)
        ]

    def corners(self) -> list[tuple[int, int]]:
        """The ends of both ranges, and for every code the quotients on both sides of where it begins."""
        most, most_d = (1 << self.numerator_bits) - 1, (1 << self.denominator_bits) - 1
        divisions = [(n, d) for n in (0, 1, most) for d in (1, max(most_d - 1, 1), most_d)]
        for code in range(256):
            exponent, significand = code >> 3, 8 + (code & 7)
            # half a significand below the code's value, times two
            edge = (2 * significand - 1) << exponent
            for d in {1, min(3, most_d), min(1 << SCALE_BIAS, most_d)}:
                exact = edge * d >> SCALE_BIAS + 1
                divisions += [(n, d) for n in (exact - 1, exact, exact + 1) if 0 <= n <= most]
        return divisions


@cocotb.test()
async def matches_golden_on_corners(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(bench.corners())
    await bench.end()


@cocotb.test()
@cocotb.parametrize(i_stall=["none", "random"], o_stall=["none", "heavy", "bursty"])
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(bench.random(100))
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    most_d = (1 << bench.denominator_bits) - 1
    await bench.check([(0, most_d), (0, most_d), *bench.random(50)])
    begins, ends = bench.source.transfers, bench.sink.transfers
    latencies = [end - begin for begin, end in zip(begins, ends, strict=True)]
    assert latencies[:2] == [params()["latency"]] * 2
    assert max(latencies) == params()["latency"]
    assert [begin - end for begin, end in zip(begins[1:], ends, strict=False)] == [1] * (len(ends) - 1)


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (3, 10, 25, 47, 66):
        bench.send(bench.random(20))
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(bench.random(3))
        await bench.end()
