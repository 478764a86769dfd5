"""A long random life of the cache: sequences come, are read, fork and end, under stalls, errors and resets."""

from dataclasses import dataclass

import cocotb

from cocotb_tests.cache.system import Owner, Write, new_page_table
from cocotb_tests.cache.tb_cache import CONFIG, bench, caches, compress
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.mha.attention import Query
from golden.cache.page_table import PageOp, PageStatus
from rtl.mha._requests import Fault

OK = PageStatus.OK
WORD_BYTES = CONFIG.dsq.bus_bits // 8


@dataclass
class Life:
    """A sequence: its caches by stream, and how many of their groups there are already."""

    made: list
    closed: int
    blocks: int


class Soak:
    """Draws one event after the other."""

    def __init__(self, dut) -> None:
        self.dut, self.draw = dut, rng("soak")
        self.bench = bench(dut)
        shapes = {
            name: member.signature.members["payload"].shape
            for name, member in self.bench.members.items()
            if name in ("i_read", "o_read")
        }
        self.read = StreamSource(dut, "i_read__0", shape=shapes["i_read"])
        self.words = StreamSink(dut, "o_read__0", shape=shapes["o_read"])
        self.lives: dict[int, Life] = {}
        self.kinds = [caches(f"soak {groups}", groups=groups, count=3) for groups in range(params()["most_groups"] + 1)]
        self.counts = dict.fromkeys(("queries", "faults", "born", "refused", "forks", "ends", "resets", "reads"), 0)
        self.sequences = CONFIG.cache.max_sequences

    async def event(self) -> None:
        """One of them."""
        chosen = self.draw.choices(
            (self.born, self.ask, self.fork, self.end, self.stall, self.reset, self.read_pages),
            (8, 12, 4, 5, 2, 0.5, 4),
        )[0]
        await chosen()

    async def born(self) -> None:
        """A sequence grows to some length; when a pool is full it ends again, and all others live on."""
        free = [n for n in range(self.sequences) if n not in self.lives]
        if not free:
            return
        sequence, made = self.draw.choice(free), self.draw.choice(self.kinds)
        memory = made[0][1][-1].memory
        life = Life(made, len(memory.records), len(memory.blocks))
        assert (await self.bench.give(PageOp.OPEN, sequence)).status == OK
        self.counts["born"] += 1
        for group in range(life.closed + life.blocks):
            status = (await self.bench.give(PageOp.BLOCK, sequence)).status
            if status == OK and 0 < group <= life.closed and not self.bench.golden.records.free:
                status = (await self.bench.give(PageOp.RECORD, sequence)).status
            if status != OK:
                assert status == PageStatus.FULL
                self.counts["refused"] += 1
                assert (await self.bench.give(PageOp.END, sequence)).status == OK
                return
            if group >= life.closed:
                owners = [Owner(sequence, stream) for stream in range(len(made))]
                await self.bench.store(
                    Write(owner, True, group, queries[-1].memory.blocks[group])
                    for owner, (_, queries) in zip(owners, made, strict=True)
                )
            if 0 < group <= life.closed:
                await compress(self.bench, sequence, group - 1, made)
        self.lives[sequence] = life

    def touched(self, owner: Owner, query: Query, page_address: int) -> bool:
        """The query reads the first word of that page."""
        return any(self.bench.address(owner, bool(item["dense"]), item["group"]) == page_address for item in query.scan)

    async def ask(self) -> None:
        """Some queries of any sequences, one in four times with a page that fails."""
        if not self.lives:
            return
        chosen = []
        for _ in range(self.draw.randint(1, 8)):
            sequence = self.draw.choice(list(self.lives))
            stream = self.draw.randrange(len(self.lives[sequence].made))
            chosen.append((Owner(sequence, stream), self.draw.choice(self.lives[sequence].made[stream][1])))
        spoilt = None
        if self.draw.random() < 0.25:
            owner, query = self.draw.choice(chosen)
            item = self.draw.choice(query.scan)
            spoilt = self.bench.address(owner, bool(item["dense"]), item["group"])
            word = spoilt // WORD_BYTES
            self.bench.image.error(0, word, word, self.draw.choice((2, 3)))
        for sequence in {owner.sequence for owner, _ in chosen}:
            assert (await self.bench.give(PageOp.HOLD, sequence)).status == OK
            assert (await self.bench.give(PageOp.END, sequence)).status == PageStatus.BUSY
        for owner, query in chosen:
            self.bench.ask(owner, query)
        for owner, query in chosen:
            fault = Fault.NONE
            if spoilt is not None and self.touched(owner, query, spoilt):
                fault = Fault.MEMORY
                self.counts["faults"] += 1
            await self.bench.compare(query, str(owner), fault=fault)
            self.counts["queries"] += 1
        for sequence in {owner.sequence for owner, _ in chosen}:
            assert (await self.bench.give(PageOp.DROP, sequence)).status == OK
        if spoilt is not None:
            self.bench.image.error(0, 0, 0, 0)
            assert self.bench.registers["read_fault"]["valid"]
            self.dut.fault_clear.value = 1
            await cycles(self.dut, 1)
            self.dut.fault_clear.value = 0

    async def fork(self) -> None:
        """A sequence becomes two."""
        free = [n for n in range(self.sequences) if n not in self.lives]
        if not free or not self.lives:
            return
        source, sequence = self.draw.choice(list(self.lives)), self.draw.choice(free)
        if (await self.bench.give(PageOp.FORK, sequence, source=source)).status == OK:
            self.lives[sequence] = self.lives[source]
            self.counts["forks"] += 1

    async def end(self) -> None:
        """A sequence ends; its pages are poisoned if nobody else has them."""
        if not self.lives:
            return
        sequence = self.draw.choice(list(self.lives))
        life = self.lives.pop(sequence)
        golden = self.bench.golden
        pages = [
            (dense, golden.lookup(sequence, dense, group))
            for dense in (False, True)
            for group in range(life.closed + life.blocks)
        ]
        assert (await self.bench.give(PageOp.END, sequence)).status == OK
        poison = {}
        for dense, page in pages:
            pool = golden.blocks if dense else golden.records
            if page is not None and not pool.references[page]:
                for stream in range(CONFIG.cache.streams):
                    word = self.bench.bases[dense] + self.bench.layout.offset(dense, stream, page)
                    poison[word * WORD_BYTES] = b"\xff" * (self.bench.layout.stride(dense) * WORD_BYTES)
        await self.bench.image.load(poison)
        self.counts["ends"] += 1

    async def stall(self) -> None:
        """Memory becomes slower or faster; scans ahead are switched."""
        self.bench.image.stall(self.draw.choice((0, 0, 0.2, 0.6)))
        self.bench.configure(
            prefetch=self.draw.random() < 0.7, share=self.draw.randrange(256), pressure=self.draw.choice((0, 16, 400))
        )

    async def read_pages(self) -> None:
        """A GEMM core reads records."""
        if not self.lives:
            return
        sequence = self.draw.choice(list(self.lives))
        life = self.lives[sequence]
        if not life.closed:
            return
        group, stream = self.draw.randrange(life.closed), self.draw.randrange(len(life.made))
        wanted = life.made[stream][1][-1].memory.records[group]
        address = self.bench.address(Owner(sequence, stream), False, group) // WORD_BYTES
        self.read.send_nowait([{"address": address, "count": len(wanted), "bad": 0}])
        got = await self.words.recv(len(wanted))
        assert [int(word["data"]) for word in got] == wanted and not any(int(word["error"]) for word in got)
        self.counts["reads"] += 1

    async def reset(self) -> None:
        """A reset in the middle of queries; nothing is left of any sequence."""
        for sequence, life in self.lives.items():
            assert (await self.bench.give(PageOp.HOLD, sequence)).status == OK
            self.bench.ask(Owner(sequence, 0), life.made[0][1][0])
        await cycles(self.dut, self.draw.randrange(1, 800))
        await reset(self.dut)
        self.bench.golden = new_page_table(CONFIG)
        self.lives.clear()
        self.counts["resets"] += 1


@cocotb.test()
async def lives_long(dut):
    soak = Soak(dut)
    await start(dut)
    engine = soak.bench.o.engine
    begin = engine.cycle
    while engine.cycle - begin < params()["soak_cycles"]:
        await soak.event()
    soak.bench.image.stall(0)
    await soak.bench.end()
    cocotb.log.info("%d cycles: %s", engine.cycle - begin, soak.counts)
    assert all(soak.counts[name] for name in params()["must"]), soak.counts
