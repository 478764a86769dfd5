"""Receiver and transmitter of HostLink: rates, start bits, stop bits."""

from fractions import Fraction

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from cocotb_tests.lib import rng
from rtl.link._uart import UartReceiver, UartTransmitter, phase_step

RATES = [
    (4, 1),
    (50_000_000, 3_000_000),
    (9, 2),
    (25_000_000, 3_000_000),
    (12_000_000, 1_000_000),
    (48_000_000, 115_200),
]


@pytest.mark.parametrize("clock_hz, baud", [*RATES, (100_000_000, 9_600), (50_000_000, 12_500_000), (33, 7)])
def test_rates_are_met_within_a_thousandth(clock_hz, baud):
    step, bits = phase_step(clock_hz, baud)
    assert 1 <= Fraction(step, 1 << bits) / Fraction(baud, clock_hz) <= Fraction(1001, 1000)


def _received(levels: list[int], clock_hz: int, baud: int) -> list[int | None]:
    """What a receiver takes from a line; None is a wrong stop bit."""
    receiver = UartReceiver(clock_hz, baud)
    found: list[int | None] = []

    async def bench(ctx) -> None:
        for level in levels:
            ctx.set(receiver.rx, level)
            await ctx.tick()
            if ctx.get(receiver.valid):
                found.append(ctx.get(receiver.data))
            if ctx.get(receiver.error):
                found.append(None)

    simulator = Simulator(receiver)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found


def _levels(bits: list[int], clocks: Fraction, phase: Fraction = Fraction(0)) -> list[int]:
    """The line in each cycle, idle at the end; each bit takes ``clocks`` cycles."""
    count = int(len(bits) * clocks) + 1
    places = [int((cycle + phase) / clocks) for cycle in range(count)]
    return [1] * 5 + [bits[place] if place < len(bits) else 1 for place in places] + [1] * int(12 * clocks)


def _frame(byte: int, stop: int = 1) -> list[int]:
    return [0, *(byte >> n & 1 for n in range(8)), stop]


@pytest.mark.parametrize("clock_hz, baud", [*RATES[:4], (17, 4), (19, 4), (5, 1), (13, 2)])
@pytest.mark.parametrize("skew", [-2, 0, 2])
def test_receives_bytes_of_senders_that_are_a_little_off(clock_hz, baud, skew):
    """Back to back, 2 % faster and slower, wherever edges lie in a cycle."""
    draw = rng("bytes", clock_hz, skew)
    sent = [0x00, 0xFF, 0x55, 0xAA, 0x01, 0x80, *draw.randbytes(10)]
    bits = [bit for byte in sent for bit in _frame(byte)]
    clocks = Fraction(clock_hz, baud) * Fraction(100 + skew, 100)
    for phase in (Fraction(0), Fraction(3, 10), Fraction(7, 10)) if clocks < 10 else (Fraction(1, 2),):
        assert _received(_levels(bits, clocks, phase), clock_hz, baud) == sent


@pytest.mark.parametrize("clock_hz, baud", RATES[:3])
def test_reports_wrong_stop_bits_and_waits_for_the_line(clock_hz, baud):
    clocks = Fraction(clock_hz, baud)
    bits = [*_frame(0x12), *_frame(0x34, stop=0), 1, 1, *_frame(0x56)]
    assert _received(_levels(bits, clocks), clock_hz, baud) == [0x12, None, 0x56]
    # A break is one wrong byte, however long it is.
    assert _received(_levels([0] * 55 + [1] + _frame(0x78), clocks), clock_hz, baud) == [None, 0x78]


@pytest.mark.parametrize("clock_hz, baud", RATES[1:5:2])
def test_ignores_what_is_too_short_for_a_start_bit(clock_hz, baud):
    clocks = Fraction(clock_hz, baud)
    short = [0] * int(clocks / 2 - 2)
    levels = [1] * 9 + short + [1] * 40 + short + [1] * 40 + _levels(_frame(0x9A), clocks)
    assert _received(levels, clock_hz, baud) == [0x9A]


@pytest.mark.parametrize("clock_hz, baud", RATES[:4])
def test_sends_bits_of_equal_length_back_to_back(clock_hz, baud):
    """Edges lie within a cycle and a thousandth of where they belong."""
    m = Module()
    m.submodules.transmitter = transmitter = UartTransmitter(clock_hz, baud)
    clocks, sent = Fraction(clock_hz, baud), [0x55, 0x00, 0xA7]
    line: list[int] = []

    async def send(ctx) -> None:
        ctx.set(transmitter.i.valid, 1)
        for byte in sent:
            ctx.set(transmitter.i.payload, byte)
            await ctx.tick().until(transmitter.i.ready)
        ctx.set(transmitter.i.valid, 0)

    async def watch(ctx) -> None:
        for _ in range(int(10 * clocks * (len(sent) + 1)) + 10):
            line.append(ctx.get(transmitter.tx))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(send)
    simulator.add_testbench(watch)
    simulator.run()
    byte_cycles = -(-10 * clocks.numerator // clocks.denominator)
    start = line.index(0)
    assert start == 1
    for n, byte in enumerate(sent):
        first = start + n * byte_cycles
        for k, bit in enumerate(_frame(byte)):
            begin, end = first + k * clocks, first + (k + 1) * clocks
            assert set(line[int(begin + Fraction(11, 10)) : int(end)]) == {bit}, f"bit {k} of byte {n}"
    assert set(line[start + len(sent) * byte_cycles :]) == {1}
