"""Coroutines of the Epilogue tests."""

from dataclasses import replace

import cocotb
import numpy as np

from cocotb_tests.gemm.epilogue_beats import (
    Beats,
    corner_functions,
    corner_residuals,
    corner_scales,
    random_beats,
    real_beats,
)
from cocotb_tests.gemm.projections import real_projections
from cocotb_tests.golden.draws import generator
from cocotb_tests.lib import params, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start, throughput
from cocotb_tests.lib.stream import StreamSink, StreamSource

FLAGS = {"function": 2, "add_residual": 1, "narrow": 1}


class Bench:
    """The design's streams, and beats sent through them against golden."""

    def __init__(self, dut, i_stall: str = "none", residual_stall: str = "none", o_stall: str = "none") -> None:
        self.pairs, self.acc_bits = params()["pairs"], params()["acc_bits"]
        self.draw = generator("bench", i_stall, residual_stall, o_stall)
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.residual = StreamSource(dut, "i_residual", stall=stalls.named(residual_stall, "residual"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))
        self.tag_bits = params()["tag_bits"]
        widths = {"sums": self.acc_bits, "factor": 16, "exponent": 7, "scale": 16, "shift": 7, "bias": 32}
        self.widths = {**widths, "cos": 16, "sin": 16, **FLAGS, "tag": self.tag_bits}

    def send(self, beats: Beats) -> None:
        """Queue beats."""
        for n in range(len(beats)):
            word, place = 0, 0
            for name, bits in self.widths.items():
                for value in np.atleast_1d(getattr(beats, name)[n]).tolist():
                    word |= (value & ((1 << bits) - 1)) << place
                    place += bits
            self.source.send_nowait([word])

    def send_residuals(self, beats: Beats) -> None:
        """Queue those of the beats that want one."""
        self.residual.send_nowait(self.packed(row) for row in beats.residual[beats.add_residual == 1].tolist())

    def packed(self, elements: list[int]) -> int:
        return sum((element & 0xFFFF_FFFF) << 32 * n for n, element in enumerate(elements))

    async def compare(self, beats: Beats) -> None:
        """Take as many beats as were sent."""
        got = await self.sink.recv(len(beats), timeout=2000)
        for n, (word, out) in enumerate(zip(got, beats.out.tolist(), strict=True)):
            tag = int(beats.tag[n]) & ((1 << self.tag_bits) - 1)
            want = self.packed(out) | tag << 64 * self.pairs
            if word != want:
                shown = {name: getattr(beats, name)[n].tolist() for name in (*self.widths, "residual")}
                raise AssertionError(f"beat {n}: {word:#x}, expected {want:#x} ({out}) of {shown}")

    async def check(self, beats: Beats) -> None:
        """Send all beats at once and compare all that comes out."""
        self.send(beats)
        self.send_residuals(beats)
        await self.compare(beats)

    async def end(self) -> None:
        """Nothing is left over on any side."""
        await self.sink.expect_nothing(50)
        assert self.source.idle and self.residual.idle


@cocotb.test()
async def matches_golden_on_corners(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(corner_scales(bench.draw, bench.pairs, bench.acc_bits))
    await bench.check(corner_functions(bench.draw, bench.pairs))
    await bench.check(corner_residuals(bench.draw, bench.pairs))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "residual_stall", "o_stall"),
        [
            ("none", "none", "none"),
            ("random", "none", "none"),
            ("none", "heavy", "none"),
            ("none", "none", "heavy"),
            ("bursty", "random", "every2"),
            ("heavy", "bursty", "random"),
        ],
    )
)
async def matches_golden_under_stalls(dut, i_stall, residual_stall, o_stall):
    bench = Bench(dut, i_stall, residual_stall, o_stall)
    await start(dut)
    await bench.check(random_beats(bench.draw, params()["beats"], bench.pairs, bench.acc_bits))
    await bench.end()


if params()["real_beats"]:

    @cocotb.test()
    async def matches_golden_on_real_sums(dut):
        """All projections of three layers."""
        bench = Bench(dut)
        await start(dut)
        for real in real_projections((0, 14, 29), tokens=8):
            beats = real_beats(bench.draw, real, bench.pairs, params()["act_bits"], params()["real_beats"])
            assert np.abs(beats.out).max() > 1000, "the sums of a real model leave nothing to compare"
            await bench.check(beats)
        await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """Whatever the functions, and with residuals that are there."""
    bench = Bench(dut)
    await start(dut)
    expected = params()["latency"]
    await bench.check(random_beats(bench.draw, 1, bench.pairs, bench.acc_bits))
    assert latency(bench.source, bench.sink) == expected, f"latency {latency(bench.source, bench.sink)}, not {expected}"
    await bench.check(random_beats(bench.draw, 200, bench.pairs, bench.acc_bits))
    measured = {o - i for i, o in zip(bench.source.transfers, bench.sink.transfers, strict=True)}
    assert measured == {expected}, f"latencies {measured}, not {expected}"
    assert throughput(bench.sink, 1) == 1.0, f"{throughput(bench.sink, 1)} beats a cycle, not 1"
    await bench.end()


@cocotb.test()
async def beats_ahead_of_a_missing_residual_leave(dut):
    bench = Bench(dut)
    await start(dut)
    draw, pairs = bench.draw, bench.pairs
    for ahead_count in (1, 2, 7, 40):
        ahead, behind = (random_beats(draw, count, pairs, bench.acc_bits) for count in (ahead_count, 50))
        behind = replace(behind, add_residual=behind.add_residual | (np.arange(len(behind)) == 0))
        bench.send(ahead)
        bench.send_residuals(ahead)
        bench.send(behind)
        await bench.compare(ahead)
        await bench.sink.expect_nothing(60)
        assert not bench.source.idle
        bench.send_residuals(behind)
        await bench.compare(behind)
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random", "random")
    await start(dut)
    for wait in (3, 11, 26, 60):
        traffic = random_beats(bench.draw, 80, bench.pairs, bench.acc_bits)
        bench.send(traffic)
        bench.send_residuals(traffic)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(random_beats(bench.draw, 40, bench.pairs, bench.acc_bits))
        await bench.end()
