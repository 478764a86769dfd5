"""Coroutines of the AxiWriter tests."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.axi import AxiChecker
from cocotb_tests.lib.axi_memory import AxiMemory
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.lib.tally import Tally
from golden.cache.axi import BOUNDARY_BYTES, DECERR, OKAY, SLVERR, bursts
from golden.cache.axi_writer import write
from rtl.cache.axi import WRITE, AxiConfig

Request = tuple[int, int, bool]
COUNT_BITS = 16


def faulty_bursts(word: int) -> int:
    """Responses of a memory that refuses some bursts."""
    return (OKAY, OKAY, OKAY, SLVERR, OKAY, DECERR, OKAY)[word % 7]


class Bench:
    """The design, a memory, a checker of the rules, and golden beside them."""

    def __init__(
        self,
        dut: Any,
        *,
        latency: int = 1,
        shuffle: bool = False,
        bus_stall: tuple[str, str, str] = ("none",) * 3,
        request_stall: str = "none",
        i_stall: str = "none",
        o_stall: str = "none",
        response: Callable[[int], int] = lambda word: OKAY,
    ) -> None:
        self.dut = dut
        values = params()["config"]
        self.config = c = AxiConfig(**{**values, "depths": tuple(values["depths"])})
        self.draw = rng("bench", shuffle, bus_stall, request_stall, i_stall, o_stall)
        self.response = response
        ports = range(c.ports)
        self.requests = [
            StreamSource(dut, f"i_request__{k}", stall=stalls.named(request_stall, f"request{k}")) for k in ports
        ]
        self.words = [StreamSource(dut, f"i__{k}", stall=stalls.named(i_stall, f"i{k}")) for k in ports]
        self.sinks = [StreamSink(dut, f"o__{k}", stall=stalls.named(o_stall, f"o{k}")) for k in ports]
        self.checker = AxiChecker(
            dut,
            "axi__",
            word_bytes=c.word_bytes,
            max_burst=c.max_burst,
            outstanding=c.outstanding,
            channels=WRITE,
        )
        self.memory = AxiMemory(
            dut,
            "axi__",
            word_bytes=c.word_bytes,
            channels=WRITE,
            latency=latency,
            shuffle=self.draw if shuffle else None,
            stalls={name: stalls.named(stall, name) for name, stall in zip(WRITE, bus_stall, strict=True)},
            response=response,
        )
        dut.fault_clear.value = 0
        self.written = Tally(dut, "words", range(self.config.ports))

    @property
    def boundary(self) -> int:
        """Words between addresses that no burst crosses."""
        return BOUNDARY_BYTES // self.config.word_bytes

    def send_requests(self, port: int, requests: Iterable[Request]) -> None:
        """Queue requests without their words."""
        bits = self.config.word_addr_bits
        self.requests[port].send_nowait(a | n << bits | int(bad) << bits + COUNT_BITS for a, n, bad in requests)

    def send_words(self, port: int, words: Iterable[tuple[int, int]]) -> None:
        """Queue words."""
        self.words[port].send_nowait(data | strobe << self.config.data_bits for data, strobe in words)

    def random_words(self, count: int) -> list[tuple[int, int]]:
        """Words with all kinds of strobes."""
        bits, every = self.config.data_bits, (1 << self.config.word_bytes) - 1
        return [
            (self.draw.getrandbits(bits), self.draw.choice([every, every, 0, 1, self.draw.randint(0, every)]))
            for _ in range(count)
        ]

    async def run(self, requests: dict[int, list[Request]]) -> None:
        """Send requests and words to ports, compare answers, bursts and the memory.

        Ports write to places of their own, since their order is free.
        """
        c = self.config
        before = {port: len(list(self.checker.bursts_of(port, "aw"))) for port in requests}
        expected_memory = dict(self.memory.words)
        answers = {}
        for port, wanted in requests.items():
            answers[port] = []
            for address, count, bad in wanted:
                words = self.random_words(count)
                self.send_words(port, words)
                for word in range(address, address + count):
                    expected_memory.setdefault(word, self.memory.read(word))
                error = write(
                    expected_memory,
                    address,
                    words,
                    bad,
                    max_burst=c.max_burst,
                    word_bytes=c.word_bytes,
                    response=self.response,
                )
                answers[port] += [int(error)] if count else []
            self.send_requests(port, wanted)
        for port, wanted in requests.items():
            got = await self.sinks[port].recv(len(answers[port]), timeout=20_000)
            assert got == answers[port], f"port {port} answers {got}, not {answers[port]}; {wanted}"
            split = [
                burst
                for address, count, bad in wanted
                if not bad
                for burst in bursts(address, count, max_burst=c.max_burst, word_bytes=c.word_bytes)
            ]
            assert list(self.checker.bursts_of(port, "aw"))[before[port] :] == split
        for word, value in expected_memory.items():
            assert self.memory.read(word) == value, f"word {word}: {self.memory.read(word):#x}, not {value:#x}"

    def random_requests(self, port: int, count: int, draw: random.Random) -> list[Request]:
        """Requests of many lengths near 4 KiB boundaries, in a part of the memory that belongs to the port."""
        requests = []
        for _ in range(count):
            most = min(3 * self.config.max_burst, 2 * self.boundary - 2)
            words = draw.choice([1, 1, 2, draw.randint(1, min(10, most)), draw.randint(1, most)])
            near = (8 * port + draw.randrange(2, 6)) * self.boundary - draw.randint(-2, words + 2)
            requests.append((near, words, draw.random() < 0.15))
        return requests

    async def end(self) -> None:
        """Nothing is left over."""
        await cycles(self.dut, 30)
        for sink in self.sinks:
            await sink.expect_nothing(1)
        assert all(source.idle for source in (*self.requests, *self.words))
        assert self.checker.idle

    def fault(self) -> tuple[int, int, int, int]:
        """The fault register: valid, requester, address, response."""
        c, bits = self.config, int(self.dut.fault.value)
        port, address = bits >> 1 & (1 << c.id_bits) - 1, bits >> 1 + c.id_bits & (1 << c.word_addr_bits) - 1
        return bits & 1, port, address, bits >> 1 + c.id_bits + c.word_addr_bits



@cocotb.test()
async def matches_golden_on_corner_requests(dut):
    """Single words, whole bursts, all distances from a 4 KiB boundary, the ends of memory, bad ones, none."""
    bench = Bench(dut)
    await start(dut)
    c, page = bench.config, bench.boundary
    top, most = 1 << c.word_addr_bits, min(c.max_burst, page)
    requests = [
        (0, 1, False),
        (top - 1, 1, False),
        (top - page, page, False),
        (page - 1, 1, False),
        (page, 1, False),
        (page - 1, 2, False),
        (page - most, most, False),
        (page - most, 2 * most, False),
        (page - most + 1, most, False),
        (page - 1, most + 1, False),
        (0, 0, False),
        (5, 3, True),
        (page - 1, 4, True),
        (7, 0, True),
        (9, 2, False),
    ]
    for port in (0, c.ports - 1):
        await bench.run({port: requests})
        await bench.run({port: [(4 * page - k, most, False) for k in range(most + 2)]})
    assert max(beats for _, _, beats in bench.checker.writes) == most
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("bus_stall", "request_stall", "i_stall", "o_stall", "latency"),
        [
            (("none", "none", "none"), "none", "none", "none", 1),
            (("heavy", "none", "none"), "none", "none", "random", 5),
            (("none", "heavy", "none"), "heavy", "none", "none", 3),
            (("random", "random", "heavy"), "none", "heavy", "heavy", 20),
            (("bursty", "bursty", "bursty"), "bursty", "bursty", "bursty", 9),
        ],
    )
)
async def matches_golden_under_stalls(dut, bus_stall, request_stall, i_stall, o_stall, latency):
    """All ports at once; the memory mixes its answers; some bursts are refused."""
    bench = Bench(
        dut,
        latency=latency,
        shuffle=True,
        bus_stall=bus_stall,
        request_stall=request_stall,
        i_stall=i_stall,
        o_stall=o_stall,
        response=faulty_bursts,
    )
    await start(dut)
    ports = range(bench.config.ports)
    for _ in range(params()["rounds"]):
        await bench.run({port: bench.random_requests(port, 12, bench.draw) for port in ports})
    await bench.end()
    assert bench.written.counts == [sum(beats for _, beats in bench.checker.bursts_of(port, "aw")) for port in ports]


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """From the last word of a burst to its address and first word, from an answer to `o`; a word a cycle."""
    bench = Bench(dut)
    await start(dut)
    c, seen = bench.config, bench.checker.cycles
    for port in range(c.ports):
        bench.send_requests(port, [(100, 1, False)])
        await cycles(dut, 10)
        await bench.run({port: [(101, 0, False)]})
        bench.send_words(port, bench.random_words(1))
        assert await bench.sinks[port].recv(1) == [0]
        word, answer = bench.words[port].transfers[-1], bench.sinks[port].transfers[-1]
        for channel in ("aw", "w"):
            latency = seen[channel][-1] - word
            assert latency == params()["word_latency"], f"{latency} cycles to {channel}"
        assert answer - seen["b"][-1] == params()["answer_latency"], f"{answer - seen['b'][-1]} cycles to the answer"
        bench.send_words(port, bench.random_words(1))
        await cycles(dut, 10)
        bench.send_requests(port, [(100, 1, False)])
        assert await bench.sinks[port].recv(1) == [0]
        latency = seen["aw"][-1] - bench.requests[port].transfers[-1]
        assert latency == params()["address_latency"], f"{latency} cycles from the request to its address"
    for words in (1, c.max_burst, c.max_burst + 1, bench.boundary + 1):
        count = max(4, 200 // words)
        first = len(seen["w"])
        await bench.run({0: [(1000 + 3 * n, words, False) for n in range(count)]})
        sent = seen["w"][first:]
        assert len(sent) == count * words
        # The words come at this rate too, so a long burst after a short one waits for its words.
        took = sent[-1] - sent[0] + 1
        # Bursts of a port with few words take two cycles, until a longest one waits.
        assert took <= len(sent) + 2 * c.max_burst, f"{len(sent)} words of {words} took {took} cycles"
    await bench.end()


@cocotb.test()
async def keeps_all_bursts_under_way(dut):
    """As many as promised, and no more, while the memory answers late."""
    bench = Bench(dut, latency=300)
    await start(dut)
    c = bench.config
    await bench.run({p: [(4096 * p + 64 * n, 1, False) for n in range(c.outstanding)] for p in range(c.ports)})
    assert bench.checker.most_under_way["aw"] == c.outstanding
    await bench.end()


@cocotb.test()
async def slow_requester_holds_up_nobody(dut):
    """Port 0 gives half of its burst, port 1 takes no answer; the last one writes all the time."""
    bench = Bench(dut, shuffle=True)
    bench.sinks[1].stall = iter(lambda: True, None)
    await start(dut)
    c = bench.config
    bench.send_requests(0, [(17, c.max_burst + 1, False)])
    bench.send_words(0, bench.random_words(c.max_burst // 2))
    many = 3 * c.outstanding
    bench.send_requests(1, [(5000 + n, 1, n % 5 == 4) for n in range(many)])
    bench.send_words(1, bench.random_words(many))
    for _ in range(4):
        await bench.run({c.ports - 1: bench.random_requests(9, 9, bench.draw)})
    await cycles(dut, 100)
    assert not list(bench.checker.bursts_of(0, "aw"))
    assert len(list(bench.checker.bursts_of(1, "aw"))) <= c.outstanding
    bench.sinks[1].stall = None
    assert await bench.sinks[1].recv(many) == [int(n % 5 == 4) for n in range(many)]
    bench.send_words(0, bench.random_words(c.max_burst + 1 - c.max_burst // 2))
    assert await bench.sinks[0].recv(1) == [0]
    await bench.end()


@cocotb.test()
async def ports_take_turns(dut):
    """All write all the time: between two bursts of a port, each other one has one at most."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    await bench.run({p: [((p + 1) << 14, 12 * c.max_burst, False)] for p in range(c.ports)})
    order = [port for port, _, _ in bench.checker.writes]
    busy = order[c.ports : -3 * c.ports]
    for at in range(len(busy) - c.ports):
        assert sorted(busy[at : at + c.ports]) == list(range(c.ports)), f"{order}"
    await bench.end()


@cocotb.test()
async def contains_faults_and_keeps_the_first(dut):
    """An error comes to the request whose burst it is; the first one is kept until it is cleared."""
    values = params()["config"]
    begin = 16 * BOUNDARY_BYTES // (values["data_bits"] // 8)  # a burst begins there
    broken = {begin: SLVERR, 5000: DECERR}
    bench = Bench(dut, shuffle=True, latency=7, response=lambda word: broken.get(word, OKAY))
    await start(dut)
    c = bench.config
    ports = range(c.ports)
    assert bench.fault()[0] == 0
    fine = {port: [(20_000 * (port + 1), 40, False)] * 3 for port in ports if port != 1}
    await bench.run({**fine, 1: [(900, 3, False), (begin - c.max_burst, 3 * c.max_burst, False), (990, 2, False)]})
    assert bench.fault() == (1, 1, begin, SLVERR)
    await bench.run({0: [(5000, 3, False)]})
    assert bench.fault() == (1, 1, begin, SLVERR)
    dut.fault_clear.value = 1
    await cycles(dut, 1)
    dut.fault_clear.value = 0
    await cycles(dut, 2)
    assert bench.fault()[0] == 0
    await bench.run({0: [(5000, 3, False), (2, 3, True)]})
    assert bench.fault() == (1, 0, 5000, DECERR)
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    stall = ("random", "random", "random")
    bench = Bench(dut, latency=6, shuffle=True, bus_stall=stall, o_stall="random", response=faulty_bursts)
    await start(dut)
    ports = range(bench.config.ports)
    for wait in (1, 3, 9, 30, 77):
        for port in ports:
            requests = bench.random_requests(port, 10, bench.draw)
            bench.send_requests(port, requests)
            bench.send_words(port, bench.random_words(sum(count for _, count, _ in requests)))
        await cycles(dut, wait)
        await reset(dut)
        assert bench.fault()[0] == 0 and bench.written.counts == [0] * bench.config.ports
        await bench.run({port: bench.random_requests(port, 4, bench.draw) for port in ports})
    await bench.end()
