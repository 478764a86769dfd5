"""Driver of `sim.memory`: queries of real heads through the accelerator and a timed DRAM, every output against golden.

The folder that the parameters name holds the heads, `heads.pkl`; the rows go to `results.json` there, the first
difference as a sentence to `difference`.
"""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.cache.load import section_rows
from cocotb_tests.cache.system import Owner, SystemBench, dram_config
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import cycles, start
from cocotb_tests.lib.stream import StreamSource
from cocotb_tests.mha.attention import Query, dense_queries, queries_of, read_words
from golden.cache.page_table import PageOp, PageStatus
from golden.heads import Head
from golden.state import HeadState
from rtl.config import AcceleratorConfig, CacheConfig, DsqConfig, MhaConfig

FOLDER = Path(params()["folder"])
CONFIG = AcceleratorConfig(
    dsq=DsqConfig(**params()["config"]["dsq"]),
    mha=MhaConfig(**params()["config"]["mha"]),
    cache=CacheConfig(**params()["config"]["cache"]),
)
DRAM = dram_config(CONFIG, **params()["dram"])
WORD_BYTES = CONFIG.dsq.bus_bits // 8


@dataclass
class Cache:
    """A head's cache in one stream of a sequence, and its queries."""

    owner: Owner
    queries: list[Query]

    @property
    def words(self) -> int:
        """Words that golden reads for all of the queries."""
        return sum(read_words(query, CONFIG) for query in self.queries)


def compressed(head: Head, stream: int) -> Cache:
    """The head as HCAP reads it."""
    queries = list(queries_of(head.state, head.q_rows, CONFIG, shift=head.shift))
    return Cache(Owner(0, stream), queries)


def dense(head: Head, stream: int) -> Cache:
    """The head as a cache of INT8 blocks."""
    state = HeadState(head.state.settings, head.state.calibration)
    state.append(head.k_rows, head.v_rows)
    return Cache(Owner(1, stream), list(dense_queries(state, head.q_rows, CONFIG, shift=head.shift)))


async def load(bench: SystemBench, caches: Sequence[Cache]) -> None:
    """Pages of the caches of one sequence, one a stream, and their content, beside the bus."""
    sequence = caches[0].owner.sequence
    assert (await bench.give(PageOp.OPEN, sequence)).status == PageStatus.OK
    memories = [cache.queries[-1].memory for cache in caches]
    records, blocks = (len(pages) for pages in (memories[0].records, memories[0].blocks))
    for group in range(records + blocks):
        assert (await bench.give(PageOp.BLOCK, sequence)).status == PageStatus.OK
        if 0 < group <= records:
            assert (await bench.give(PageOp.RECORD, sequence)).status == PageStatus.OK
            for stream in range(CONFIG.cache.streams):
                assert (await bench.give(PageOp.COMMIT, sequence, stream=stream)).status == PageStatus.OK
            assert (await bench.give(PageOp.RELEASE, sequence)).status == PageStatus.OK
    assert (await bench.give(PageOp.HOLD, sequence)).status == PageStatus.OK
    await fill(bench, caches)


async def fill(bench: SystemBench, caches: Sequence[Cache], places: NDArray[np.int64] | None = None) -> None:
    """Write records and blocks; rows of the coarse plane to other ``places[stream, group, row]``, if given."""
    pieces = {}
    for cache in caches:
        memory = cache.queries[-1].memory
        for is_block, pages in ((False, memory.records), (True, memory.blocks)):
            for group, words in pages.items():
                if places is not None and not is_block:
                    words = moved(words, places[cache.owner.stream, group], cache.queries[0].settings.salient_tokens)
                address = bench.address(cache.owner, is_block, group)
                pieces[address] = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)
    await bench.image.load(pieces)


def moved(words: Sequence[int], places: NDArray[np.int64], salient_tokens: int) -> list[int]:
    """A record whose coarse row r lies at ``places[r]``."""
    made, size = list(words), CONFIG.dsq.row_words(2)
    first, rows = section_rows(CONFIG, salient_tokens)
    for row in range(rows):
        source, target = first + row * size, first + int(places[row]) * size
        made[target : target + size] = words[source : source + size]
    return made


def token_places(heads: Sequence[Head]) -> NDArray[np.int64]:
    """For each stream, group and coarse row: its place when rows lie in the order of their tokens."""
    _, rows = section_rows(CONFIG, heads[0].state.settings.salient_tokens)
    found = [[np.argsort(np.argsort(group.order[-rows:])) for group in head.state.closed] for head in heads]
    return np.array(found)


async def run(bench: SystemBench, caches: Sequence[Cache]) -> dict[str, Any]:
    """All queries, the caches in turn; cycles and words between the ends of the first and the last but one round."""
    rounds = len(caches[0].queries)
    at_first = await counted(bench)
    for number in range(rounds):
        for cache in caches:
            bench.ask(cache.owner, cache.queries[number], load_calibration=True)
    marks = []
    for number in range(rounds):
        for cache in caches:
            where = f"stream {cache.owner.stream}, query {number}"
            await bench.compare(cache.queries[number], where)
        marks.append((bench.o.transfers[-1], await counted(bench)))
    await cycles(bench.dut, 20)
    at_last = await counted(bench)
    wanted = sum(cache.words for cache in caches)
    spent = at_last["attention"] - at_first["attention"]
    if spent != wanted:
        raise AssertionError(f"attention read {spent} words, golden {wanted}")
    (begin, before), (end, after) = marks[0], marks[-2]
    spans = (rounds - 2) * len(caches)
    return {
        "queries": rounds * len(caches),
        "golden_words": wanted,
        "port_words": spent,
        "cycles": (end - begin) / spans,
        **{name: (after[name] - before[name]) / spans for name in before},
    }


async def counted(bench: SystemBench) -> dict[str, int]:
    """Counters of cache and memory."""
    words = bench.words("read")
    named = {"attention": words[0] + words[1], "prefetched": words[1], "gemm": sum(words[4:])}
    return {**named, **bench.image.counters}


@cocotb.test()
async def reads(dut):
    bench = SystemBench(dut, CONFIG, DRAM)
    places_in = StreamSource(dut, "i_place")
    dut.scatter.value, dut.gemm.value = 0, 0
    await start(dut)
    heads: list[Head] = pickle.loads((FOLDER / "heads.pkl").read_bytes())
    results: list[dict[str, Any]] = []
    context = heads[0].state.tokens

    def keep(name: str, row: dict[str, Any]) -> None:
        results.append({"context": context, "run": name, **row})
        (FOLDER / "results.json").write_text(json.dumps(results))
        (FOLDER / "progress").write_text(str(len(results)))

    made = [compressed(head, stream) for stream, head in enumerate(heads)]
    await load(bench, made)
    places = token_places(heads)
    await places_in.send(int(place) for place in places.ravel())
    # What one reader of long pieces gets.
    dut.gemm.value = 1
    await cycles(dut, 500)
    before = await counted(bench)
    await cycles(dut, params()["stream_cycles"])
    after = await counted(bench)
    dut.gemm.value = 0
    keep("stream", {"cycles": params()["stream_cycles"], **{name: after[name] - before[name] for name in before}})
    await cycles(dut, 2000)

    try:
        keep("kvo", await run(bench, made))
        bench.configure(prefetch=False)
        keep("no prefetch", await run(bench, made))
        bench.configure()
        await fill(bench, made, places)
        dut.scatter.value = 1
        keep("no run order", await run(bench, made))
        dut.scatter.value = 0
        await fill(bench, made)
        dut.gemm.value = 1
        keep("with GEMM", await run(bench, made))
        dut.gemm.value = 0
        await cycles(dut, 2000)
        uncompressed = [dense(head, stream) for stream, head in enumerate(heads)]
        await load(bench, uncompressed)
        keep("dense", await run(bench, uncompressed))
    except AssertionError as error:
        (FOLDER / "difference").write_text(str(error).strip().splitlines()[0])
        raise
    assert bench.image.violations == []
