"""Coroutines of the RecordPacker tests."""

from typing import Any

import cocotb
import numpy as np

from cocotb_tests.dsq.groups import layout, record_words
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.compressor import CompressedGroup
from golden.dsq.record import COARSE_BITS, pack
from rtl.config import DsqConfig
from rtl.dsq.record import CodeKind, section_cycles, unit_bits

LAST, END = 1 << 2, 1 << 3


class Bench:
    """The design's streams, and records sent through them against golden."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        self.config = DsqConfig(**params()["config"])
        self.draw = rng("bench", i_stall, o_stall)
        self.generator = np.random.default_rng(self.draw.getrandbits(64))
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def beat(self, kind: CodeKind, codes: list[int], flags: int) -> int:
        """Payload of one beat; the bits above the codes are random."""
        width = 8 * self.config.lanes
        used = len(codes) * kind.code_bits if kind is not CodeKind.BYTE else 8
        value = self.draw.getrandbits(width) >> used << used
        for lane, code in enumerate(codes):
            value |= code << lane * kind.code_bits
        return value | (kind.value | flags) << width

    def group(self, salient: int) -> CompressedGroup:
        """A group of random fields."""
        c, random = self.config, self.generator.integers
        others = c.group_tokens - salient

        def fields(*shape: int, bits: int = 8) -> np.ndarray:
            return random(0, 1 << bits, shape).astype(np.uint8)

        return CompressedGroup(
            k_base=fields(salient, c.head_dim).view(np.int8),
            k_base_scale=fields(salient),
            v_salient=fields(salient, c.head_dim).view(np.int8),
            v_salient_scale=fields(salient),
            run_length=random(0, c.group_tokens, salient),
            k_group_scale=int(random(256)),
            v_group_scale=int(random(256)),
            k_delta=fields(others, c.head_dim, bits=c.delta_bits),
            v_delta=fields(others, c.head_dim, bits=2),
            order=np.zeros(c.group_tokens, np.int64),
        )

    def sections(self, group: CompressedGroup) -> list[list[int]]:
        """Beats of each section of a record, header first."""
        c = self.config
        header = [len(group.k_base), c.delta_bits, group.k_group_scale, group.v_group_scale]
        header += [*group.run_length, *group.k_base_scale, *group.v_salient_scale]
        k_base, fine_bits = group.k_base.view(np.uint8), c.delta_bits - COARSE_BITS
        planes = [(CodeKind.TWO, group.k_delta >> fine_bits)]
        planes += [(CodeKind.TWO, group.k_delta & 3)] * bool(fine_bits)
        parts = [(CodeKind.FOUR, k_base >> 4), (CodeKind.FOUR, k_base & 15), *planes]
        parts += [(CodeKind.EIGHT, group.v_salient.view(np.uint8)), (CodeKind.TWO, group.v_delta)]
        rows = [(kind, [[int(code) for code in beat] for beat in codes.reshape(-1, c.lanes)]) for kind, codes in parts]
        rows = [(CodeKind.BYTE, [[int(byte)] for byte in header]), *(part for part in rows if part[1])]
        sections = []
        for number, (kind, codes) in enumerate(rows):
            flags = LAST | END * (number == len(rows) - 1)
            sections.append([self.beat(kind, beat, flags * (beat is codes[-1])) for beat in codes])
        return sections

    async def check(self, counts: list[int]) -> None:
        """Send records with these salient counts and compare all that comes out."""
        records = []
        for salient in counts:
            group = self.group(salient)
            for section in self.sections(group):
                self.source.send_nowait(section)
            records.append(record_words(pack(group, layout(self.config, salient)), self.config.bus_bits))
        for salient, words in zip(counts, records, strict=True):
            got = await self.sink.recv(len(words), timeout=5000)
            wrong = [at for at, (a, b) in enumerate(zip(got, words, strict=True)) if a != b]
            assert not wrong, (
                f"{salient} salient: {len(wrong)} of {len(words)} words differ, "
                f"word {wrong[0]} is {got[wrong[0]]:#x}, expected {words[wrong[0]]:#x}"
            )

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(100)
        assert self.source.idle

    def counts(self, count: int) -> list[int]:
        """Salient counts, the extremes often."""
        c, draw = self.config, self.draw
        return [draw.choice([1, c.max_salient, c.group_tokens, draw.randint(1, c.max_salient)]) for _ in range(count)]


@cocotb.test()
async def matches_golden_for_every_salient_count(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check([*range(1, bench.config.max_salient + 1), bench.config.group_tokens, 1])
    await bench.end()


@cocotb.test()
@cocotb.parametrize(i_stall=["none", "random", "bursty"], o_stall=["none", "random", "heavy", "bursty"])
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(bench.counts(3))
    await bench.end()


@cocotb.test()
async def meets_latency(dut):
    """A word leaves in the cycle behind that of its last unit: here the first of a V row of one or more words."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    units = CodeKind.EIGHT.code_bits * c.lanes // unit_bits(c)
    beat, unit = divmod(c.bus_bits // unit_bits(c) - 1, units)
    last = c.row_beats - 1
    bench.source.send_nowait(
        bench.beat(CodeKind.EIGHT, [7] * c.lanes, (LAST | END) * (n == last)) for n in range(c.row_beats)
    )
    await bench.sink.recv(1)
    latency = bench.sink.transfers[0] - bench.source.transfers[beat]
    assert latency == unit + 2, f"{latency} cycles, not {unit + 2}"


@cocotb.test()
async def meets_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    salient = c.max_salient
    groups = [bench.group(salient) for _ in range(2)]
    sections = [section for group in groups for section in bench.sections(group)]
    for section in sections:
        bench.source.send_nowait(section)
    words = len(record_words(pack(groups[0], layout(c, salient)), c.bus_bits))
    await bench.sink.recv(2 * words)
    at, begins = 0, []
    for section in sections:
        begins.append(bench.source.transfers[at])
        at += len(section)
    planes = c.delta_bits // COARSE_BITS
    others = c.group_tokens - salient
    bounds = [(CodeKind.FOUR, salient)] * 2 + [(CodeKind.TWO, others)] * planes
    bounds += [(CodeKind.EIGHT, salient), (CodeKind.TWO, others)]
    for number, (kind, rows) in enumerate(bounds, 1):
        taken = begins[number + 1] - begins[number]
        limit = section_cycles(c, kind, rows)
        assert 0.8 * limit < taken <= limit, f"section {number}: {taken} cycles, limit {limit}"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (3, 11, 40, 90, 151, 290):
        for section in bench.sections(bench.group(bench.config.max_salient)):
            bench.source.send_nowait(section)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(bench.counts(1))
        await bench.end()
