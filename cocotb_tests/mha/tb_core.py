"""Coroutines of the MhaCore tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.golden.draws import generator
from cocotb_tests.lib import params, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamMonitor, StreamSink, StreamSource
from cocotb_tests.lib.word_memory import WordMemory
from cocotb_tests.mha.attention import (
    Query,
    beats,
    calibration_words,
    dense_queries,
    job_fields,
    make_query,
    queries_of,
    random_cache,
    received_rows,
    records_of,
)
from golden.dsq.record import HEADER_BYTES
from golden.state import HeadState
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.mha._requests import Fault
from rtl.mha.core import MhaCore
from sim.workloads import attention_heads

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["dsq"]), mha=MhaConfig(**params()["mha"]))
SHIFT = 15


class Bench:
    """The core's streams, a memory behind it, queries against golden."""

    def __init__(
        self, dut: Any, i_stall: str = "none", o_stall: str = "none", word_stall: str = "none", latency: int = 5
    ) -> None:
        members = MhaCore(CONFIG).signature.members
        shapes = {name: member.signature.members["payload"].shape for name, member in members.items()}
        typed = {"i_job": shapes["i_job"], "i_calibration": None, "i_query": None, "i_scan": shapes["i_scan"]}
        self.sources = {
            name: StreamSource(dut, name, shape=shape, stall=stalls.named(i_stall, name))
            for name, shape in typed.items()
        }
        self.memory = WordMemory(
            dut, shapes["o_request"], self._read, latency=latency, stall=stalls.named(word_stall, "words")
        )
        self.requests = StreamMonitor(dut, "o_request")
        self.o = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))
        self.mass = StreamSink(dut, "o_mass", shape=shapes["o_mass"], stall=stalls.named(o_stall, "mass"))
        self.status = StreamSink(dut, "o_status", shape=shapes["o_status"], stall=stalls.named(o_stall, "status"))
        self.sent = 0
        self.content = None

    def _read(self, request: Any) -> list[int]:
        return self.content.read({name: int(request[name]) for name in ("dense", "group", "word", "count")})

    def send(self, queries: Sequence[Query]) -> None:
        """All that queries on one cache need."""
        self.content = queries[-1].memory  # its blocks have the tokens of all
        for query in queries:
            load = self.sent == 0
            self.sources["i_job"].send_nowait([job_fields(query, load_calibration=load)])
            if load:
                self.sources["i_calibration"].send_nowait(calibration_words(query.state.calibration))
            self.sources["i_query"].send_nowait(beats(query.rows, CONFIG.dsq.lanes))
            self.sources["i_scan"].send_nowait(query.scan)
            self.sent += 1

    async def check(self, queries: Sequence[Query]) -> None:
        """Send queries on one cache and compare all that comes out."""
        self.sent = 0
        self.send(queries)
        for number, query in enumerate(queries):
            await self.compare(query, f"query {number}")

    async def compare(self, query: Query, where: str) -> None:
        """One query's output, masses and status."""
        words = await self.o.recv(CONFIG.mha.q_heads * CONFIG.dsq.row_beats)
        np.testing.assert_array_equal(received_rows(words, CONFIG), query.out, err_msg=where)
        tokens, groups = np.zeros_like(query.token_mass), np.zeros_like(query.group_mass)
        last = not query.token_mass.size and not query.group_mass.any()
        while not last:
            (entry,) = await self.mass.recv(1)
            last = bool(entry["last"])
            (groups if entry["group"] else tokens)[int(entry["index"])] += int(entry["mass"])
        np.testing.assert_array_equal(tokens, query.token_mass, err_msg=where)
        np.testing.assert_array_equal(groups, query.group_mass, err_msg=where)
        (status,) = await self.status.recv(1)
        fault, group = query.status
        assert (int(status["fault"].value), int(status["group"])) == (fault.value, group), f"{where}: {status}"

    async def end(self) -> None:
        """Nothing more comes, nothing is left."""
        for sink in (self.o, self.mass, self.status):
            await sink.expect_nothing(30)
        assert self.memory.idle and all(source.idle for source in self.sources.values())


def random_queries(label: str, **arguments: Any) -> list[Query]:
    """Queries on a random cache."""
    made, rows = random_cache(CONFIG, label, **arguments)
    return list(queries_of(made, rows, CONFIG, shift=SHIFT))


CASES: dict[str, dict[str, Any]] = {
    "one token": {"groups": 0, "count": 1},
    "open group": {"groups": 0, "count": 5},
    "waiting group": {"groups": 1, "count": 2},
    "one group": {"groups": 2, "count": 2},
    "one tile": {"groups": 1 + CONFIG.mha.tile_groups, "count": 2},
    "tiles": {"groups": 2 + 2 * CONFIG.mha.tile_groups, "count": 2},
    "everything": {"groups": 4, "count": 2, "prune": False},
    "no runs": {"groups": 4, "count": 2, "keep_fraction": 0.0},
    "no bases": {"groups": 4, "count": 2, "estimate_margin": 0.0},
    "little of V": {"groups": 5, "count": 2, "value_margin": 0.1},
    "one of V": {"groups": 1, "count": 2, "value_margin": 0.0},
    "all of V": {"groups": 5, "count": 2, "value_margin": 64.0, "keep_fraction": 1.0},
    "one salient": {"groups": 4, "count": 2, "salient_tokens": 1, "sink_tokens": 1},
    "most salient": {"groups": 4, "count": 2, "salient_tokens": CONFIG.dsq.max_salient},
    "zero query": {"groups": 3, "count": 2, "size": 0},
    "saturated query": {"groups": 3, "count": 2, "size": 60000},
}
if CONFIG.mha.tile_groups > 16:
    for tiled in ("one tile", "tiles"):
        CASES[tiled]["groups"] = 12


@cocotb.test()
async def matches_golden_on_corner_cases(dut):
    bench = Bench(dut)
    await start(dut)
    for label, arguments in CASES.items():
        cocotb.log.info("%s", label)
        await bench.check(random_queries(label, **arguments))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("i_stall", "o_stall", "word_stall", "latency"),
        [
            ("none", "none", "none", 1),
            ("random", "random", "random", 3),
            ("none", "heavy", "none", 20),
            ("heavy", "none", "heavy", 1),
            ("bursty", "bursty", "bursty", 70),
        ],
    )
)
async def matches_golden_under_stalls(dut, i_stall, o_stall, word_stall, latency):
    bench = Bench(dut, i_stall, o_stall, word_stall, latency)
    await start(dut)
    await bench.check(random_queries(f"stalls {latency}", groups=6, count=4))
    await bench.check(random_queries(f"more stalls {latency}", groups=3, count=2, prune=False))
    await bench.end()


@cocotb.test()
async def matches_golden_in_dense_mode(dut):
    """All tokens as INT8 blocks: the same rows, no records."""
    bench = Bench(dut)
    await start(dut)
    made, rows = random_cache(CONFIG, "dense", groups=0, count=3)
    tokens = (5 if CONFIG.dsq.group_tokens > 16 else 7) * CONFIG.dsq.group_tokens // 2
    draw = generator("dense rows")
    k, v = draw.normal(0, 3000, (2, tokens, CONFIG.dsq.head_dim)).astype(np.int16)
    made.k_codes, made.v_codes = made.k_codes[:0], made.v_codes[:0]
    made.k_scale, made.v_scale, made.mass = made.k_scale[:0], made.v_scale[:0], made.mass[:0]
    made.append(k, v)
    await bench.check(list(dense_queries(made, rows, CONFIG, shift=SHIFT)))
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, latency=10)
    await start(dut)
    queries = random_queries("reset", groups=6, count=3)
    for wait in params()["reset_waits"]:
        bench.sent = 0
        bench.send(queries)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(queries[:2])
    await bench.end()


def damaged(record: list[int], at: int, value: int) -> list[int]:
    """The record with another byte."""
    word_bytes = CONFIG.dsq.bus_bits // 8
    words = list(record)
    place = 8 * (at % word_bytes)
    words[at // word_bytes] = words[at // word_bytes] & ~(0xFF << place) | value << place
    return words


@cocotb.test()
async def faulty_records_count_as_not_scanned(dut):
    """An impossible salient count, delta width, run length or scale; the query is finished, the next one is right."""
    bench = Bench(dut)
    await start(dut)
    made, rows = random_cache(CONFIG, "faults", groups=6, count=2)
    whole = make_query(made, rows[:, 1:2], CONFIG, records_of(made, CONFIG), shift=SHIFT)
    salient = made.settings.salient_tokens
    group = [item["group"] for item in whole.scan if not item["dense"]][1]
    for fault, at, value in (
        (Fault.SALIENT_COUNT, 0, salient - 1),
        (Fault.DELTA_BITS, 1, 6 - CONFIG.dsq.delta_bits),
        (Fault.RUN_LENGTHS, HEADER_BYTES, 200),
        (Fault.SCALE, HEADER_BYTES + salient, 17 << 3),
        (Fault.SCALE, HEADER_BYTES + 3 * salient - 1, 0xFF),
    ):
        records = records_of(made, CONFIG)
        records[group] = damaged(records[group], at, value)
        query = make_query(made, rows[:, 1:2], CONFIG, records, shift=SHIFT, faulty=[group])
        query.status = (fault, group)
        await bench.check([query])
        await bench.check([whole])
    await bench.end()


@cocotb.test()
async def bad_scans_are_refused(dut):
    """Counts beyond the hardware, more groups than it keeps, failing memory, nothing to scan."""
    bench = Bench(dut)
    await start(dut)
    made, rows = random_cache(CONFIG, "scans", groups=4, count=2)
    records = records_of(made, CONFIG)
    whole = make_query(made, rows[:, 1:2], CONFIG, records, shift=SHIFT)
    most = CONFIG.dsq.max_salient
    bad = [(0, 0), (0, most + 1), (1, CONFIG.dsq.group_tokens + 1)]
    for dense, count in bad:
        query = replace(whole, scan=[*whole.scan], status=(Fault.SALIENT_COUNT, 77))
        query.scan.insert(len(query.scan) - 1, {"dense": dense, "group": 77, "count": count, "last": 0})
        await bench.check([query, whole])
    empty = replace(
        whole,
        scan=[{"dense": 1, "group": 3, "count": 0, "last": 1}],
        out=np.zeros_like(whole.out),
        token_mass=np.zeros(0, np.int64),
        group_mass=np.zeros(0, np.int64),
        status=(Fault.EMPTY, 0),
    )
    await bench.check([empty, whole, empty, whole])
    await bench.end()


@cocotb.test()
async def group_numbers_have_20_bits(dut):
    bench = Bench(dut)
    await start(dut)
    (query,) = random_queries("numbers", groups=3, count=1)
    top = (1 << 20) - 1
    numbers = {item["group"]: top - item["group"] for item in query.scan if not item["dense"]}
    query.scan = [{**item, "group": numbers.get(item["group"], item["group"])} for item in query.scan]
    query.memory.records = {numbers[group]: words for group, words in query.memory.records.items() if group in numbers}
    masses = query.group_mass
    query.group_mass = np.zeros(top + 1, np.int64)
    for group, number in numbers.items():
        query.group_mass[number] = masses[group]
    await bench.check([query])
    await bench.end()


@cocotb.test()
async def meets_throughput(dut):
    """A word a cycle, but for what is said in the docstring, when many queries follow each other."""
    bench = Bench(dut, latency=2)
    await start(dut)
    count = 6
    await bench.check(random_queries("throughput", groups=params()["throughput_groups"], count=count))
    row = CONFIG.mha.q_heads * CONFIG.dsq.row_beats
    begin, end = bench.o.transfers[row - 1], bench.o.transfers[(count - 1) * row - 1]
    words = bench.memory.words / count * (count - 2)
    cocotb.log.info("%.0f words in %d cycles", words, end - begin)
    assert words / (end - begin) >= params()["throughput"], f"{words:.0f} words in {end - begin} cycles"


if params().get("real"):

    @cocotb.test()
    async def matches_golden_on_real_heads(dut):
        """Queries, keys and values of SmolLM2, against its compressed cache; dense mode beside it."""
        bench = Bench(dut, latency=20)
        await start(dut)
        for context, heads, dense in params()["real"]:
            for head in attention_heads(CONFIG, [tuple(pair) for pair in heads], context=context, count=2):
                cocotb.log.info("layer %d, KV head %d, %d tokens", head.layer, head.kv_head, context)
                await bench.check(list(queries_of(head.state, head.q_rows, CONFIG, shift=head.shift)))
                if dense:
                    whole = HeadState(head.state.settings, head.state.calibration)
                    whole.append(head.k_rows, head.v_rows)
                    await bench.check(list(dense_queries(whole, head.q_rows, CONFIG, shift=head.shift)))
        await bench.end()

