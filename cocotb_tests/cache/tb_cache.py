"""Coroutines of the KvCache tests: attention through the page table, on a memory with timing, against golden."""

from collections.abc import Iterable, Sequence

import cocotb

from cocotb_tests.cache.system import Owner, SystemBench, Write, dram_config, new_page_table
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.mha.attention import Query, queries_of, random_cache, read_words
from golden.cache.page_table import PageOp, PageStatus
from golden.state import HeadState
from rtl.config import AcceleratorConfig, CacheConfig, DsqConfig, MhaConfig
from rtl.mha._requests import Fault

OK = PageStatus.OK
CONFIG = AcceleratorConfig(
    dsq=DsqConfig(**params()["dsq"]), mha=MhaConfig(**params()["mha"]), cache=CacheConfig(**params()["cache"])
)
DRAM = dram_config(CONFIG, **params()["dram"])
SHIFT = 15


def bench(dut, stall: str = "none") -> SystemBench:
    return SystemBench(dut, CONFIG, DRAM, stall)


def caches(label: str, *, groups: int, count: int = 2) -> list[tuple[HeadState, list[Query]]]:
    """A cache and its queries for each stream of a sequence."""
    made = []
    for stream in range(CONFIG.cache.streams):
        state, rows = random_cache(CONFIG, f"{label} {stream}", groups=groups, count=count)
        made.append((state, list(queries_of(state, rows, CONFIG, shift=SHIFT))))
    return made


async def fill(b: SystemBench, sequence: int, made: Sequence[tuple[HeadState, list[Query]]]) -> list[Write]:
    """Make a sequence grow group by group as a decoder does; what was written of what is left in the end."""
    assert (await b.give(PageOp.OPEN, sequence)).status == OK
    records, blocks = made[0][1][-1].memory.records, made[0][1][-1].memory.blocks
    writes = []
    for group in range(len(records) + len(blocks)):
        assert (await b.give(PageOp.BLOCK, sequence)).status == OK
        if group >= len(records):
            owners = [Owner(sequence, stream) for stream in range(len(made))]
            new = [
                Write(owner, True, group, queries[-1].memory.blocks[group])
                for owner, (_, queries) in zip(owners, made, strict=True)
            ]
            await b.store(new)
            writes += new
        if 0 < group <= len(records):
            writes += await compress(b, sequence, group - 1, made)
    return writes


async def compress(
    b: SystemBench, sequence: int, group: int, made: Sequence[tuple[HeadState, list[Query]]]
) -> list[Write]:
    """Write the records of a group and give up its blocks."""
    assert (await b.give(PageOp.RECORD, sequence)).status == OK
    new = [
        Write(Owner(sequence, stream), False, group, queries[-1].memory.records[group], commit=True)
        for stream, (_, queries) in enumerate(made)
    ]
    assert await b.store(new) == [OK] * len(new)
    assert (await b.give(PageOp.RELEASE, sequence)).status == OK
    return new


async def ask_all(b: SystemBench, sequences: dict[int, list[tuple[HeadState, list[Query]]]]) -> None:
    """Every query of every stream of the sequences, interleaved, and their outputs."""
    await hold(b, sequences)
    asked = []
    for number in range(max(len(queries) for made in sequences.values() for _, queries in made)):
        for sequence, made in sequences.items():
            for stream, (_, queries) in enumerate(made):
                if number < len(queries):
                    b.ask(Owner(sequence, stream), queries[number])
                    asked.append((queries[number], f"sequence {sequence}, stream {stream}, query {number}"))
    for query, where in asked:
        await b.compare(query, where)
    await drop(b, sequences)


async def hold(b: SystemBench, sequences: Iterable[int]) -> None:
    """No page of the sequences is given up."""
    for sequence in sequences:
        assert (await b.give(PageOp.HOLD, sequence)).status == OK


async def drop(b: SystemBench, sequences: Iterable[int]) -> None:
    """The end of `hold`."""
    for sequence in sequences:
        assert (await b.give(PageOp.DROP, sequence)).status == OK


@cocotb.test()
async def attention_reads_pages(dut):
    """Sequences of several lengths and all their streams, one query after the other; memory holds what was written."""
    b = bench(dut)
    await start(dut)
    sequences = {0: caches("a", groups=5), 1: caches("b", groups=1), 2: caches("c", groups=0)}
    for number, made in sequences.items():
        for write in await fill(b, number, made):
            await b.check_memory(write)
    await ask_all(b, sequences)
    await b.end()


@cocotb.test()
@cocotb.parametrize(stall=["random", "heavy", "bursty"])
async def attention_reads_pages_under_stalls(dut, stall):
    b = bench(dut, stall)
    await start(dut)
    b.image.stall(0.4)
    sequences = {0: caches("d", groups=4), 2: caches("e", groups=2)}
    for number, made in sequences.items():
        await fill(b, number, made)
    await ask_all(b, sequences)
    b.image.stall(0)
    await b.end()


@cocotb.test()
async def bytes_at_the_port_are_those_of_golden(dut):
    """With and without prefetch, word for word."""
    b = bench(dut)
    await start(dut)
    made = caches("bytes", groups=6, count=3)
    await fill(b, 0, made)
    for prefetch in (True, False):
        b.configure(prefetch=prefetch)
        before = b.words("read")
        await b.image.clear_counters()
        await ask_all(b, {0: made})
        after = b.words("read")
        wanted = sum(read_words(query, CONFIG) for _, queries in made for query in queries)
        spent = [new - old for new, old in zip(after, before, strict=True)]
        assert sum(spent) == wanted, f"{spent} words, golden {wanted}"
        assert (spent[1] > 0) == prefetch
        assert b.image.counters["read_useful"] == wanted * CONFIG.dsq.bus_bits // 8
    await b.end()


@cocotb.test()
async def forks_share_what_is_full(dut):
    """A fork reads the same records, and its own copy of the open block; either goes on alone."""
    b = bench(dut)
    await start(dut)
    made = caches("fork", groups=3)
    await fill(b, 0, made)
    free = b.golden.records.free, b.golden.blocks.free
    reply = await b.give(PageOp.FORK, 1, source=0)
    assert reply.status == OK and reply.page != reply.other
    assert (b.golden.records.free, b.golden.blocks.free) == (free[0], free[1] - 1)
    await ask_all(b, {0: made, 1: made})
    # The open block of the first one changes, that of the fork does not.
    group = reply.group
    junk = Write(Owner(0, 0), True, group, [0x5A5A5A5A] * CONFIG.memory_map.block.words)
    await b.store([junk])
    await b.check_memory(junk)
    await ask_all(b, {1: made})
    assert (await b.give(PageOp.END, 0)).status == OK
    await ask_all(b, {1: made})
    registers = b.registers
    assert int(registers["record_pages_free"]) == b.golden.records.free
    assert int(registers["block_pages_free"]) == b.golden.blocks.free
    await b.end()


@cocotb.test()
async def freed_pages_are_not_read(dut):
    """Queries on a sequence that has ended get errors, without any access; poison in its pages is never seen."""
    b = bench(dut)
    await start(dut)
    first, second = caches("first", groups=3), caches("second", groups=3)
    await fill(b, 0, first)
    await fill(b, 1, second)
    pages = [b.address(Owner(0, stream), False, group) for stream in range(len(first)) for group in range(2)]
    assert (await b.give(PageOp.END, 0)).status == OK
    size = CONFIG.memory_map.stride(False) * CONFIG.dsq.bus_bits // 8
    await b.image.load(dict.fromkeys(pages, b"\xff" * size))
    await ask_all(b, {1: second})
    before = b.words("read")
    b.ask(Owner(0, 0), first[0][1][0])
    await b.compare(first[0][1][0], "ended", fault=Fault.MEMORY)
    assert b.words("read") == before
    assert not b.registers["read_fault"]["valid"], "the bus was not used"
    await ask_all(b, {1: second})
    # Its pages serve another sequence.
    third = caches("third", groups=2)
    await fill(b, 2, third)
    await ask_all(b, {1: second, 2: third})
    await b.end()


@cocotb.test()
async def sequences_that_nobody_holds_are_not_read(dut):
    """Their pages may be given up while they are read: errors, with scans read ahead and without, and no access."""
    b = bench(dut)
    await start(dut)
    made = caches("unheld", groups=3)
    await fill(b, 0, made)
    before = b.words("read")
    for prefetch in (True, False):
        b.configure(prefetch=prefetch)
        b.ask(Owner(0, 1), made[1][1][0])
        await b.compare(made[1][1][0], "unheld", fault=Fault.MEMORY)
    assert b.words("read") == before
    await ask_all(b, {0: made})
    await b.end()


@cocotb.test()
async def memory_errors_stay_with_their_query(dut):
    """A page that answers errors: reported with address and requester, other queries are right, also later ones."""
    b = bench(dut)
    await start(dut)
    made, other = caches("error", groups=4), caches("no error", groups=4)
    await fill(b, 0, made)
    await fill(b, 1, other)
    owner = Owner(0, CONFIG.cache.streams - 1)
    word_bytes = CONFIG.dsq.bus_bits // 8
    _, queries = made[owner.stream]
    scanned = [item for item in queries[0].scan if not item["dense"]][-1]["group"]
    word = b.address(owner, False, scanned) // word_bytes
    for prefetch, response in ((True, 2), (False, 3)):
        b.configure(prefetch=prefetch)
        b.image.error(0, word + 1, word + 1, response)
        asked = [(Owner(1, 0), other[0][1][0]), (owner, queries[0]), (Owner(1, 1), other[1][1][0])]
        await hold(b, (0, 1))
        for who, query in asked:
            b.ask(who, query)
        for who, query in asked:
            await b.compare(query, str(who), fault=Fault.MEMORY if who == owner else Fault.NONE)
        await drop(b, (0, 1))
        fault = b.registers["read_fault"]
        assert fault["valid"] and int(fault["requester"]) in ((0, 1) if prefetch else (0,))
        assert int(fault["address"]) == word + 1 and int(fault["response"]) == response
        dut.fault_clear.value = 1
        await cycles(dut, 1)
        dut.fault_clear.value = 0
        b.image.error(0, 0, 0, 0)
        await ask_all(b, {0: made, 1: other})
        assert not b.registers["read_fault"]["valid"]
    await b.end()


@cocotb.test()
async def records_count_when_they_are_complete(dut):
    """A record that memory refuses is not committed; the same write succeeds later."""
    b = bench(dut)
    await start(dut)
    made = caches("commit", groups=2)
    await fill(b, 0, made)
    group = len(made[0][1][-1].memory.records)
    assert (await b.give(PageOp.BLOCK, 0)).status == OK
    assert (await b.give(PageOp.RECORD, 0)).status == OK
    owner = Owner(0, 0)
    record = Write(owner, False, group, [7] * 5, commit=True)
    at = b.address(owner, False, group) // (CONFIG.dsq.bus_bits // 8)
    b.image.error(1, at + 4, at + 4, 2)
    await b.store([record], error=True)
    assert b.registers["write_fault"]["valid"]
    assert (await b.give(PageOp.COUNT, 0)).group == group
    b.image.error(1, 0, 0, 0)
    assert await b.store([record]) == [OK]
    await b.check_memory(record)
    assert (await b.give(PageOp.COUNT, 0)).group == group + 1
    assert await b.store([record]) == [PageStatus.REPEATED]
    await b.end()


@cocotb.test()
async def bad_writes_are_refused(dut):
    """No words, words behind a page, a page that does not exist: an error, and nothing is written or read."""
    b = bench(dut)
    await start(dut)
    made = caches("bad", groups=1)
    await fill(b, 0, made)
    stride = CONFIG.memory_map.stride(True)
    before = b.words("write")
    bad = [
        Write(Owner(0, 0), True, 0, []),
        Write(Owner(0, 0), True, 0, [1, 2], word=stride - 1),
        Write(Owner(0, 0), True, 9, [1, 2, 3]),
        Write(Owner(1, 0), False, 0, [1], commit=True),
    ]
    await b.store(bad, error=True)
    assert b.words("write") == before
    part = Write(Owner(0, 1), True, 0, [0x12345678, 0x9ABCDEF0], word=2, strobes=[0b0011, 0b1000])
    kept = made[1][1][-1].memory.blocks[0]
    await b.store([part])
    expected = [kept[2] & ~0xFFFF | 0x5678, kept[3] & ~0xFF000000 | 0x9A000000]
    await b.check_memory(Write(Owner(0, 1), True, 0, expected, word=2))
    await b.end()


@cocotb.test()
async def others_read_and_write_beside_attention(dut):
    """Words of pages by group, with errors while nobody holds the sequence; words by address, read and written."""
    b = bench(dut)
    ports = b.other_ports()
    await start(dut)
    made = caches("others", groups=2)
    await fill(b, 0, made)
    memory = made[0][1][-1].memory
    owner = {"sequence": 0, "stream": 0}
    spans = [(0, min(memory.records), 3), (1, min(memory.blocks), 7)]
    for held in (False, True):
        if held:
            await hold(b, [0])
        for dense, group, word in spans:
            content = (memory.blocks if dense else memory.records)[group][word:]
            ports.fetch.send_nowait([{**owner, "dense": dense, "group": group, "word": word, "count": len(content)}])
            got = await ports.fetched.recv(len(content))
            assert [bool(w["error"]) for w in got] == [not held] * len(content)
            if held:
                assert [int(w["data"]) for w in got] == content
    await drop(b, [0])
    address = b.address(Owner(0, 1), True, spans[1][1]) // (CONFIG.dsq.bus_bits // 8)
    ports.store.send_nowait([{"address": address + 1, "count": 5, "bad": 0}])
    ports.store_word.send_nowait([{"data": n + 1, "strb": ~0} for n in range(5)])
    assert await ports.stored.recv(1) == [0]
    ports.read.send_nowait([{"address": address, "count": 7, "bad": 0}, {"address": address, "count": 2, "bad": 1}])
    got = await ports.words.recv(9)
    kept = made[1][1][-1].memory.blocks[spans[1][1]]
    assert [int(w["data"]) for w in got[:7]] == [kept[0], 1, 2, 3, 4, 5, kept[6]]
    assert [bool(w["error"]) for w in got] == [False] * 7 + [True] * 2
    await b.end()


@cocotb.test()
async def full_pools_lose_nothing(dut):
    b = bench(dut)
    await start(dut)
    made = caches("full", groups=1)
    await fill(b, 0, made)
    statuses = []
    while not statuses or statuses[-1] == OK:
        statuses.append((await b.give(PageOp.BLOCK, 0)).status)
    assert statuses[-1] == PageStatus.FULL and int(b.registers["block_pages_free"]) == 0
    assert (await b.give(PageOp.FORK, 1, source=0)).status == PageStatus.FULL
    await ask_all(b, {0: made})
    assert (await b.give(PageOp.END, 0)).status == OK
    assert int(b.registers["block_pages_free"]) == CONFIG.cache.block_pages
    await fill(b, 1, made)
    await ask_all(b, {1: made})
    await b.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    b = bench(dut)
    await start(dut)
    made = caches("reset", groups=3)
    draw = rng("reset waits")
    await fill(b, 0, made)
    for _ in range(params()["resets"]):
        await hold(b, [int(b.golden.sequences[0] is None)])
        for stream, (_, queries) in enumerate(made):
            for query in queries:
                b.ask(Owner(0, stream), query)
        await cycles(dut, draw.randrange(10, 1500))
        await reset(dut)
        b.golden = new_page_table(CONFIG)
        await fill(b, 1, made)
        await ask_all(b, {1: made})
        assert (await b.give(PageOp.END, 1)).status == OK
        await fill(b, 0, made)
    await b.end()
