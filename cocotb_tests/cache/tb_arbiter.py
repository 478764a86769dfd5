"""Coroutines of the Arbiter tests: every cycle against golden."""

import random
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import reset, start
from golden.cache.arbiter import ATTENTION, GEMM, Arbitration, attention_wait, gemm_wait, grant


class Bench:
    """Drives asks, compares each grant, keeps a burst until it is granted."""

    def __init__(self, dut: Any) -> None:
        self.dut, self.ports, self.max_burst = dut, params()["ports"], params()["max_burst"]
        self.beats_bits, self.gain_bits = self.max_burst.bit_length(), (255 * self.max_burst).bit_length()
        self.beats = [0] * self.ports  # of the burst that a port has; 0: none
        self.state = Arbitration()
        self.share = self.pressure = self.under_way = 0
        self.throttled = False  # by what was under way a cycle before
        dut.ask.value = dut.beats.value = dut.en.value = 0
        dut.gains.value = dut.pressure.value = dut.under_way.value = 0

    async def step(self, en: bool = True) -> int | None:
        """One cycle; returns the port that was granted."""
        dut = self.dut
        dut.ask.value = sum((beats > 0) << port for port, beats in enumerate(self.beats))
        dut.beats.value = sum(beats << self.beats_bits * port for port, beats in enumerate(self.beats))
        dut.en.value = int(en)
        dut.gains.value = sum(self.share * beats << self.gain_bits * port for port, beats in enumerate(self.beats))
        dut.pressure.value, dut.under_way.value = self.pressure, self.under_way
        await ReadOnly()
        port = None
        if en:
            ask = [beats > 0 for beats in self.beats]
            port, self.state = grant(self.state, ask, self.beats, share=self.share, throttled=self.throttled)
        expected = 0 if port is None else 1 << port
        got = int(dut.grant.value)
        assert got == expected, f"grant {got:b}, not {expected:b}; {self.beats}, {self.state}, share {self.share}"
        self.throttled = self.under_way > self.pressure
        await RisingEdge(dut.clk)
        return port


def random_beats(draw: random.Random, most: int) -> int:
    """Lengths of bursts, often the shortest and the longest one."""
    return draw.choice([1, most, draw.randint(1, most)])


@cocotb.test()
async def matches_golden(dut):
    """Random asks, lengths, shares, pressure and pauses; the share changes while there is credit."""
    draw = rng("asks")
    bench = Bench(dut)
    await start(dut)
    for phase in range(60):
        bench.share = draw.choice([0, 1, 64, 128, 255, draw.randrange(256)])
        bench.pressure = draw.choice([0, 100, 65535])
        busy, flow = draw.choice([0.05, 0.5, 1.0]), draw.choice([0.3, 1.0])
        for _ in range(50):
            for port in range(bench.ports):
                if not bench.beats[port] and draw.random() < busy:
                    bench.beats[port] = random_beats(draw, bench.max_burst)
            bench.under_way = draw.choice([0, 99, 100, 101, 65535])
            port = await bench.step(draw.random() < flow)
            if port is not None:
                bench.beats[port] = 0
        if phase % 20 == 19:
            await reset(dut)
            bench.state = Arbitration()


async def starve(
    bench: Bench, victim: int, lengths: Callable[[int], int], goal: int, *, throttled: bool = False
) -> list[int]:
    """All others ask all the time; returns what they got before each of ``goal`` grants of the victim."""
    bench.pressure, bench.under_way = 0, int(throttled)
    waits: list[int] = []
    others = 0
    while len(waits) < goal:
        for port in range(bench.ports):
            bench.beats[port] = bench.beats[port] or lengths(port)
        port = await bench.step()
        assert port is not None
        if port == victim:
            waits.append(others)
            others = 0
        else:
            others += bench.beats[port]
        bench.beats[port] = 0
    return waits


@cocotb.test()
async def nobody_starves(dut):
    """The bounds of golden hold for attention and each GEMM port, whatever the others' bursts; GEMM's is nearly met."""
    draw = rng("starve")
    bench = Bench(dut)
    await start(dut)
    most = bench.max_burst
    lengths = [
        lambda port: most,
        lambda port: 1,
        lambda port: most if port < GEMM else 1,
        lambda port: 1 if port < GEMM else most,
        lambda port: random_beats(draw, most),
    ]
    for share in params()["shares"]:
        bench.share = share
        bound = gemm_wait(share=share, max_burst=most, gemm_ports=bench.ports - GEMM)
        longest = 0
        for number, length in enumerate(lengths):
            for victim in {GEMM, bench.ports - 1}:
                waits = await starve(bench, victim, length, 3, throttled=number % 2 == 1)
                longest = max(longest, *waits)
        assert longest <= bound, f"a GEMM port waited for {longest} beats, {bound} at most, share {share}"
        assert longest >= bound - 2 * most * (bench.ports - GEMM), f"{longest} is far from {bound}, share {share}"
        bound = attention_wait(share=share, max_burst=most)
        for length in lengths:
            waits = await starve(bench, ATTENTION, length, 8)
            assert max(waits) <= bound, f"attention waited for {max(waits)} beats, {bound} at most, share {share}"


@cocotb.test()
async def gemm_gets_its_share_of_any_interval(dut):
    """Throttled or not, and no more than a burst above it while attention asks."""
    draw = rng("share")
    bench = Bench(dut)
    await start(dut)
    for share in (1, 77, 200):
        await reset(dut)
        bench.state = Arbitration()
        bench.share, bench.under_way, bench.pressure = share, draw.randrange(2), 0
        ahead, low, high = 0, 0, 0  # what GEMM has got above its share, in 1/256 beats; its extremes
        for _ in range(1500):
            for port in range(bench.ports):
                bench.beats[port] = bench.beats[port] or random_beats(draw, bench.max_burst)
            port = await bench.step()
            ahead += (256 * (port >= GEMM) - share) * bench.beats[port]
            bench.beats[port] = 0
            low, high = min(low, ahead), max(high, ahead)
            assert high - low <= 256 * bench.max_burst, f"share {share}: {(high - low) / 256:.1f} beats"


@cocotb.test()
async def throttles_gemm_to_its_share(dut):
    """Nobody else asks: GEMM goes at once, but not while too many beats of attention are under way."""
    bench = Bench(dut)
    await start(dut)
    bench.share, bench.pressure = 64, 20
    for under_way, goes in ((20, True), (21, False), (65535, False), (0, True)):
        bench.under_way, bench.beats[GEMM] = under_way, 0
        await bench.step()
        bench.beats[GEMM] = 1
        assert (await bench.step() == GEMM) is goes
