"""Coroutines of the PageTable tests."""

from collections import deque
from collections.abc import Iterable
from copy import deepcopy

import cocotb

from cocotb_tests.cache.page_traffic import OUTCOMES, Command, apply, lookups, random_step
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.cache.page_table import MAX_USERS, PageOp, PageStatus, PageTable, Reply
from rtl.cache.page_table import PageConfig
from rtl.cache.page_table import PageTable as Hardware

OK, FULL = PageStatus.OK, PageStatus.FULL
GROUPS = (1 << 21) - 1


class Bench:
    """The design's streams, and golden beside it."""

    def __init__(self, dut, stall: str = "none", lookup_stall: str = "none") -> None:
        self.dut = dut
        self.config = PageConfig(**params()["config"])
        hardware = Hardware(self.config)
        self.page_bits = hardware.page_bits
        self.draw = rng("bench", stall, lookup_stall)
        self.command = StreamSource(dut, "i_command", stall=stalls.named(stall, "command"))
        self.reply = StreamSink(dut, "o_reply", stall=stalls.named(stall, "reply"))
        self.lookup = StreamSource(dut, "i_lookup", stall=stalls.named(lookup_stall, "lookup"))
        self.page = StreamSink(dut, "o_page", stall=stalls.named(lookup_stall, "page"))
        self.golden = self.new_golden()

    def new_golden(self) -> PageTable:
        return PageTable(**params()["config"])

    def decode(self, word: int) -> Reply:
        fields = [PageStatus(word & 7), word >> 3 & GROUPS, word >> 24 & GROUPS]
        pages = word >> 45
        return Reply(*fields, pages & (1 << self.page_bits) - 1, pages >> self.page_bits)

    def queue(self, commands: Iterable[Command]) -> None:
        """Queue commands to the hardware alone."""
        for op, sequence, source, stream in commands:
            self.command.send_nowait([op | sequence << 4 | source << 12 | stream << 20])

    async def give(self, commands: Iterable[Command]) -> list[Reply]:
        """Give commands to both and compare the replies."""
        commands = list(commands)
        self.queue(commands)
        expected = [apply(self.golden, command) for command in commands]
        replies = [self.decode(word) for word in await self.reply.recv(len(commands), timeout=10_000)]
        for at, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            assert reply == expected[at], f"{command}: {reply}, expected {expected[at]}; before it {commands[:at]}"
        return replies

    async def one(self, op: PageOp, sequence: int = 0, source: int = 0, stream: int = 0) -> Reply:
        """Give one command."""
        return (await self.give([Command(op, sequence, source, stream)]))[0]

    async def all_commit(self, sequence: int) -> None:
        """The first half of the compression of a group, and the commits of all streams."""
        commits = [Command(PageOp.COMMIT, sequence, 0, stream) for stream in range(self.config.streams)]
        replies = await self.give([Command(PageOp.RECORD, sequence), *commits])
        assert {reply.status for reply in replies} == {OK}

    def queue_lookups(self, places: Iterable[tuple[int, int, int]]) -> None:
        self.lookup.send_nowait(sequence | dense << 8 | group << 9 for sequence, dense, group in places)

    def expected_page(self, table: PageTable, place: tuple[int, int, int]) -> int:
        """The word that a lookup gives."""
        page = table.lookup(*place)
        found = 0 if page is None else page | 1 << self.page_bits
        return found | table.held(place[0]) << self.page_bits + 1

    async def beside(self, commands: list[Command], places: list[tuple[int, int, int]]) -> int:
        """Give commands and lookups at once; each lookup sees all that was replied to, all or nothing of what is not.

        Returns the number of lookups that had a choice.
        """
        self.queue(commands)
        self.queue_lookups(places)
        words = await self.page.recv(len(places))
        await self.reply.recv(len(commands))
        # One golden has done the commands that were replied to, the other those that were taken, one more at most.
        replied, taken = deepcopy(self.golden), self.golden
        pending = [
            (replied, deque(zip(commands, self.reply.transfers[-len(commands) :], strict=True)), 0),
            (taken, deque(zip(commands, self.command.transfers[-len(commands) :], strict=True)), 1),
        ]
        choices = 0
        cycles_ = self.lookup.transfers[-len(places) :]
        for place, word, cycle in zip(places, words, cycles_, strict=True):
            for table, queue, later in pending:
                while queue and queue[0][1] + later <= cycle:
                    apply(table, queue.popleft()[0])
            allowed = {self.expected_page(replied, place), self.expected_page(taken, place)}
            choices += len(allowed) - 1
            assert word in allowed, f"lookup {place} in cycle {cycle} gave {word:#x}, not one of {allowed}"
        for command, _ in pending[1][1]:
            apply(taken, command)
        return choices

    async def compare(self) -> None:
        """Look everything up, count every stream, compare the numbers of free pages."""
        places = lookups(self.golden)
        self.queue_lookups(places)
        for place, word in zip(places, await self.page.recv(len(places)), strict=True):
            assert word == self.expected_page(self.golden, place), f"lookup {place} gave {word:#x}"
        streams = range(self.config.streams)
        count = self.config.max_sequences
        await self.give(Command(PageOp.COUNT, sequence, 0, stream) for sequence in range(count) for stream in streams)
        await cycles(self.dut, 2)
        free = int(self.dut.record_pages_free.value), int(self.dut.block_pages_free.value)
        assert free == (self.golden.records.free, self.golden.blocks.free)

    async def end(self) -> None:
        """Nothing is left over on any side."""
        await self.reply.expect_nothing(self.config.streams + 2 * self.config.max_groups + 50)
        assert self.command.idle and self.lookup.idle and self.page.empty()


@cocotb.test()
@cocotb.parametrize((("stall", "lookup_stall"), [("none", "none"), ("random", "heavy"), ("bursty", "every2")]))
async def matches_golden(dut, stall, lookup_stall):
    """Random traffic; every command ends in every way that it can."""
    bench = Bench(dut, stall, lookup_stall)
    await start(dut)
    missing = {op: set(statuses) for op, statuses in OUTCOMES.items()} if params()["every_outcome"] else {}
    missing.get(PageOp.HOLD, set()).discard(FULL)  # takes more HOLDs than there are here
    steps = params()["steps"]
    for step in range(10 * steps):
        if step >= steps and not any(missing.values()):
            break
        commands = random_step(bench.draw, bench.golden)
        for command, reply in zip(commands, await bench.give(commands), strict=True):
            missing.get(command.op, set()).discard(reply.status)
        if step % params()["sweep"] == 0:
            await bench.compare()
    assert not any(missing.values()), f"never seen: {missing}"
    await bench.compare()
    await bench.end()


@cocotb.test()
@cocotb.parametrize((("stall", "lookup_stall"), [("none", "none"), ("random", "none"), ("none", "bursty")]))
async def lookups_see_whole_commands(dut, stall, lookup_stall):
    bench = Bench(dut, stall, lookup_stall)
    await start(dut)
    table, draw = bench.new_golden(), bench.draw
    commands, places = [], []
    for _ in range(params()["steps"]):
        new = random_step(draw, table)
        for command in new:
            apply(table, command)
        commands += new
    for _ in range(4 * len(commands)):
        number, dense = draw.randrange(bench.config.max_sequences), draw.randrange(2)
        sequence = table.sequences[number]
        low, high = (sequence.blocks_begin, sequence.blocks_end) if sequence and dense else (0, bench.config.max_groups)
        places.append((number, dense, draw.choice([draw.randint(max(low - 1, 0), high), draw.randint(0, high)])))
    await bench.beside(commands, places)
    await bench.compare()
    await bench.end()


@cocotb.test()
async def lookups_see_no_half_of_a_fork_or_an_end(dut):
    """All pages of a sequence are looked up while it is forked, grows, and ends."""
    bench = Bench(dut)
    await start(dut)
    config, draw = bench.config, bench.draw
    if config.max_sequences == 1:
        return
    choices = 0
    for _ in range(20):
        source, fork = draw.sample(range(config.max_sequences), 2)
        blocks = min(config.max_groups, config.block_pages - 1, draw.randint(2, 12))
        await bench.give([Command(PageOp.OPEN, source), *[Command(PageOp.BLOCK, source)] * blocks])
        for _ in range(draw.randint(0, min(blocks - 1, config.record_pages))):
            await bench.all_commit(source)
            await bench.one(PageOp.RELEASE, source)
        commands = [Command(PageOp.FORK, fork, source), Command(PageOp.BLOCK, fork), Command(PageOp.RECORD, fork)]
        commands += [Command(PageOp.END, source), Command(PageOp.END, fork)]
        pages = [(fork, dense, group) for dense in (0, 1) for group in range(blocks + 1)]
        choices += await bench.beside(commands, draw.choices(pages, k=8 * blocks + 60 + config.streams))
    assert choices
    await bench.compare()
    await bench.end()


@cocotb.test()
async def full_pools_refuse_and_lose_nothing(dut):
    bench = Bench(dut)
    await start(dut)
    config = bench.config
    for round_ in range(3):
        status, last = OK, 0
        for sequence in range(config.max_sequences):  # until no block is left
            await bench.one(PageOp.OPEN, sequence)
            status = OK
            while status == OK:
                status = (await bench.one(PageOp.BLOCK, sequence)).status
            last = sequence
            if status == FULL:
                break
        if status == FULL:
            other = (last + 1) % config.max_sequences
            await bench.one(PageOp.FORK, other, 0)
        await bench.compare()
        for sequence in range(config.max_sequences):  # until no record is left
            while bench.golden.sequences[sequence] and bench.golden.sequences[sequence].blocks:
                if not bench.golden.records.free:
                    assert (await bench.one(PageOp.RECORD, sequence)).status == FULL
                    break
                await bench.all_commit(sequence)
                await bench.one(PageOp.RELEASE, sequence)
        await bench.compare()
        order = list(range(config.max_sequences))
        if round_:
            bench.draw.shuffle(order)
        for sequence in order:
            await bench.one(PageOp.END, sequence)
        await bench.compare()
        assert bench.golden.blocks.free == config.block_pages
        assert bench.golden.records.free == config.record_pages
    await bench.end()


@cocotb.test()
async def prefixes_live_as_long_as_a_fork(dut):
    """All sequences share the pages of one; they end in any order, and one that grows changes no other."""
    bench = Bench(dut)
    await start(dut)
    count, draw = bench.config.max_sequences, bench.draw
    for _ in range(4):
        order = draw.sample(range(count), count)
        first, *others = order
        await bench.one(PageOp.OPEN, first)
        blocks = min(3, bench.config.max_groups, bench.config.block_pages)
        await bench.give([Command(PageOp.BLOCK, first)] * blocks)
        if blocks > 1:
            await bench.all_commit(first)
            await bench.one(PageOp.RELEASE, first)
        for n, sequence in enumerate(others):
            await bench.one(PageOp.FORK, sequence, order[draw.randrange(n + 1)])
        await bench.compare()
        for sequence in draw.sample(order, count):
            await bench.give([Command(PageOp.BLOCK, s) for s in order])
            await bench.one(PageOp.END, sequence)
            await bench.compare()
        assert bench.golden.records.free == bench.config.record_pages
    await bench.end()


@cocotb.test()
async def counts_users(dut):
    bench = Bench(dut)
    await start(dut)
    last = bench.config.max_sequences - 1
    await bench.one(PageOp.OPEN, last)
    replies = await bench.give([Command(PageOp.HOLD, last)] * (MAX_USERS + 2))
    assert replies[MAX_USERS - 1].status == OK and replies[MAX_USERS].status == FULL
    replies = await bench.give([Command(PageOp.END, last), Command(PageOp.DROP, last)] * (MAX_USERS + 1))
    assert replies[-1].status == PageStatus.CLOSED
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    table, draw = bench.golden, bench.draw
    expected = []
    for _ in range(params()["steps"]):
        for command in random_step(draw, table):
            number = command.source if command.op == PageOp.FORK else command.sequence
            of = table.sequences[number] if number < len(table.sequences) else None
            records, blocks = (len(of.records), len(of.blocks)) if of else (0, 0)
            reply = apply(table, command)
            bench.queue([command])
            done = PageOp(command.op) if reply.status == OK else PageOp.COUNT
            latency = Hardware.latency(bench.config, done, records=records, blocks=blocks)
            expected.append((command, latency))
    await bench.reply.recv(len(expected))
    for n, (command, latency) in enumerate(expected):
        taken, replied = bench.command.transfers[n], bench.reply.transfers[n]
        assert replied - taken == latency, f"{command}: {replied - taken} cycles, not {latency}"
        if n:
            assert taken == bench.reply.transfers[n - 1] + 1
    places = lookups(table)
    bench.queue_lookups(places)
    await bench.page.recv(len(places))
    first = bench.lookup.transfers[0]
    assert bench.lookup.transfers == list(range(first, first + len(places)))
    assert bench.page.transfers == [cycle + 2 for cycle in bench.lookup.transfers]
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    """All sequences are closed and all pages free at once, whatever was under way."""
    bench = Bench(dut, "random", "random")
    await start(dut)
    for wait in (1, 7, 40, 133, 400, 1001):
        commands = [command for _ in range(20) for command in random_step(bench.draw, bench.golden)]
        opens = [Command(PageOp.OPEN, sequence) for sequence in range(bench.config.max_sequences)]
        bench.queue(opens + commands * (wait // 20 + 1))
        bench.queue_lookups(lookups(bench.golden))
        await cycles(dut, wait)
        await reset(dut)
        bench.golden = bench.new_golden()
        await bench.compare()
        for _ in range(12):
            await bench.give(random_step(bench.draw, bench.golden))
        await bench.compare()
    await bench.end()
