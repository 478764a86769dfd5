"""Dequantizer in simulation, against golden dequantize."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.dsq.records import (
    FAULTS,
    Beat,
    Record,
    make_calibration,
    make_record,
    quantized_record,
    random_record,
    with_fault,
)
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.compressor import Calibration
from golden.dsq.quantizer import quantize
from golden.settings import default_settings
from rtl.config import DsqConfig

CONFIG = DsqConfig(**params()["config"])
TIMEOUT = 50_000


class Bench:
    """The streams of a Dequantizer: records go in as a whole, beats come out as `Beat`."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none", label: str = "") -> None:
        def pattern(name: str, stream: str) -> Any:
            return stalls.named(name, f"{rng(label, stream).random()}")

        self.dut = dut
        self.commands = StreamSource(dut, "i_record", stall=pattern(i_stall, "i_record"))
        self.calibrations = StreamSource(dut, "i_calibration", stall=pattern(i_stall, "i_calibration"))
        self.words = StreamSource(dut, "i", stall=pattern(i_stall, "i"))
        self.beats = StreamSink(dut, "o", stall=pattern(o_stall, "o"))

    def send(self, record: Record, calibration: Calibration | None = None) -> None:
        """Queue a record, with the calibration to load before it."""
        self.commands.send_nowait([int(calibration is not None)])
        if calibration is not None:
            columns = zip(calibration.k_shape, calibration.v_shape, calibration.v_mean, strict=True)
            self.calibrations.send_nowait(int(k) | int(v) << 12 | (int(mean) & 0xFFFF) << 24 for k, v, mean in columns)
        bits = CONFIG.bus_bits
        self.words.send_nowait(data | first << bits | last << bits + 1 for data, first, last in record.words)

    async def receive(self, records: Sequence[Record]) -> None:
        """Compare what comes out with what these records give."""
        for number, record in enumerate(records):
            for expected, bits in zip(record.beats, await self.beats.recv(len(record.beats), TIMEOUT), strict=True):
                beat = _unpack(bits)
                if expected.error:  # says where it came from, which is of no use
                    beat = replace(beat, section=0, row=0, channel=0)
                assert beat == expected, f"record {number} with {record.salient} salient, word {expected.word}"

    async def check(self, records: Sequence[Record]) -> None:
        """Receive everything that is under way."""
        await self.receive(records)
        await self.words.send([], TIMEOUT)  # the rest of a faulty record
        await self.beats.expect_nothing(20)
        assert self.words.idle and self.commands.idle and self.calibrations.idle


def _unpack(bits: int) -> Beat:
    values = []
    for width in params()["field_bits"]:
        values.append(bits & ((1 << width) - 1))
        bits >>= width
    section, row, channel, count, last, error = values
    elements = np.frombuffer(bits.to_bytes(CONFIG.bus_bits, "little"), "<i2")[:count]
    return Beat(section, row, channel, count, bool(last), bool(error), tuple(elements.tolist()))


def salient_counts(draw: random.Random, count: int) -> list[int]:
    """The ends of the range, the dense record, then any."""
    counts = [1, CONFIG.max_salient, CONFIG.group_tokens]
    draw.shuffle(counts)
    return [*counts, *(draw.randint(1, CONFIG.max_salient) for _ in range(count - 3))][:count]


def one_record(draw: random.Random, salient: int, calibration: Calibration) -> Record:
    """A record of random fields or, half of the time, of a quantized group."""
    if draw.random() < 0.5:
        return make_record(random_record(draw, CONFIG, salient), CONFIG, calibration)
    return make_record(quantized_record(draw, CONFIG, salient, calibration), CONFIG, calibration)


def send_random(bench: Bench, draw: random.Random, count: int, faults: bool = False) -> list[Record]:
    """Queue records, a third of them with a new calibration, and half of them faulty if asked for."""
    records, calibration = [], None
    for salient in salient_counts(draw, count):
        load = calibration is None or draw.random() < 0.33
        if load:
            calibration = make_calibration(draw, CONFIG.head_dim)
        record = one_record(draw, salient, calibration)
        if faults and draw.random() < 0.5:
            record = with_fault(draw.choice(list(FAULTS)), record, CONFIG, draw)
        bench.send(record, calibration if load else None)
        records.append(record)
    return records


STALLS = [("none", "none"), ("none", "heavy"), ("bursty", "none"), ("random", "random"), ("heavy", "every2")]


@cocotb.test()
@cocotb.parametrize((("i_stall", "o_stall"), STALLS))
async def matches_golden(dut, i_stall, o_stall):
    label = f"golden {i_stall} {o_stall}"
    bench = Bench(dut, i_stall, o_stall, label)
    await start(dut)
    await bench.check(send_random(bench, rng(label), params()["records"]))


if params()["real_groups"]:

    @cocotb.test()
    async def matches_golden_on_real_groups(dut):
        """Groups of a language model's KV cache from several layers."""
        from cocotb_tests.lib.real import real_groups  # takes a second, which only this test needs

        settings = default_settings()
        bench = Bench(dut)
        await start(dut)
        records = []
        for group in real_groups(params()["real_groups"]):
            packed = quantize(
                group.k_rows,
                group.v_rows,
                group.mass,
                group.first_group,
                group.calibration,
                salient_tokens=settings.salient_tokens,
                sink_tokens=settings.sink_tokens,
                delta_bits=CONFIG.delta_bits,
                bus_bits=CONFIG.bus_bits,
            )
            records.append(make_record(packed, CONFIG, group.calibration))
            bench.send(records[-1], group.calibration)
        await bench.check(records)


@cocotb.test()
@cocotb.parametrize((("i_stall", "o_stall"), [("none", "none"), ("random", "heavy")]))
async def recovers_from_faults(dut, i_stall, o_stall):
    """Every fault, each followed by a good record, then any mixture."""
    draw = rng("faults", i_stall, o_stall)
    bench = Bench(dut, i_stall, o_stall, "faults")
    await start(dut)
    calibration = make_calibration(draw, CONFIG.head_dim)
    records = []
    for name in FAULTS:
        for salient in (1, draw.randint(1, CONFIG.max_salient), CONFIG.group_tokens):
            faulty = with_fault(name, one_record(draw, salient, calibration), CONFIG, draw)
            good = one_record(draw, draw.randint(1, CONFIG.max_salient), calibration)
            bench.send(faulty, None if records else calibration)
            bench.send(good)
            records += [faulty, good]
    await bench.check(records)
    await bench.check(send_random(bench, draw, params()["records"], faults=True))


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """Back to back without pauses: the stated cycles a record and, where nothing waits, the stated latency."""
    draw = rng("timing")
    bench = Bench(dut)
    await start(dut)
    calibration = make_calibration(draw, CONFIG.head_dim)
    counts = [1, CONFIG.max_salient, *(int(n) for n in params()["record_cycles"]), CONFIG.group_tokens, 1]
    records = [one_record(draw, salient, calibration) for salient in counts]
    for number, record in enumerate(records):
        bench.send(record, calibration if number == 0 else None)
    await bench.receive(records)
    word, beat = 0, 0
    taken, given = bench.words.transfers, bench.beats.transfers
    for number, record in enumerate(records):
        cycles_stated = params()["record_cycles"][str(record.salient)]
        if 0 < number < len(records) - 1:
            spent = taken[word + len(record.words)] - taken[word]
            assert spent == cycles_stated, f"{record.salient} salient: {spent} cycles, not {cycles_stated}"
            if cycles_stated == len(record.words):
                for i, expected in enumerate(record.beats):
                    assert given[beat + i] - taken[word + expected.word] == params()["latency"]
        word, beat = word + len(record.words), beat + len(record.beats)


@cocotb.test()
async def loads_calibration_in_stated_time(dut):
    """Calibration begins when the last beat of the record before stands at the output; a channel a cycle."""
    draw = rng("load")
    bench = Bench(dut)
    await start(dut)
    first, second = (make_calibration(draw, CONFIG.head_dim) for _ in range(2))
    records = [one_record(draw, CONFIG.max_salient, c) for c in (first, first, second)]
    for record, calibration in zip(records, (first, None, second), strict=True):
        bench.send(record, calibration)
    await bench.check(records)
    loads = bench.calibrations.transfers[CONFIG.head_dim :]
    last_beat = bench.beats.transfers[sum(len(record.beats) for record in records[:2]) - 1]
    assert loads[0] == last_beat  # which leaves the output as the first channel comes
    assert loads[-1] - loads[0] == CONFIG.head_dim - 1


@cocotb.test()
async def survives_reset_during_traffic(dut):
    """Resets while a calibration loads and at any moment, then correct traffic; the calibration stays."""
    draw = rng("reset")
    bench = Bench(dut, "random", "random", "reset")
    await start(dut)
    for number in range(params()["resets"]):
        send_random(bench, draw, 4, faults=True)
        if number == 0:
            while len(bench.calibrations.transfers) < CONFIG.head_dim // 2:
                await cycles(dut, 1)
        else:
            await cycles(dut, draw.randrange(1, 400))
        await reset(dut)
        await bench.check(send_random(bench, draw, 2))
    calibration = make_calibration(draw, CONFIG.head_dim)
    record = one_record(draw, CONFIG.max_salient, calibration)
    bench.send(record, calibration)
    await bench.check([record])
    await reset(dut)
    bench.send(record)
    await bench.check([record])
