"""Coroutines of the AxiReader tests."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.axi import AxiChecker
from cocotb_tests.lib.axi_memory import AxiMemory
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.lib.tally import Tally
from golden.cache.axi import BOUNDARY_BYTES, DECERR, OKAY, SLVERR, bursts
from golden.cache.axi_reader import read
from rtl.cache.axi import READ, AxiConfig

Request = tuple[int, int, bool]
COUNT_BITS = 16


def faulty_words(word: int) -> int:
    """Responses of a memory some of whose words are broken, some regions of which are not there."""
    if word % 64 in (40, 41):
        return DECERR
    return SLVERR if word % 37 == 5 else OKAY


class Bench:
    """The design, a memory, a checker of the rules, and golden beside them."""

    def __init__(
        self,
        dut: Any,
        *,
        latency: int = 1,
        shuffle: bool = False,
        ar_stall: str = "none",
        r_stall: str = "none",
        request_stall: str = "none",
        o_stall: str = "none",
        response: Callable[[int], int] = lambda word: OKAY,
    ) -> None:
        self.dut = dut
        values = params()["config"]
        self.config = c = AxiConfig(**{**values, "depths": tuple(values["depths"])})
        self.draw = rng("bench", shuffle, ar_stall, r_stall, request_stall, o_stall)
        self.response = response
        self.sources = [
            StreamSource(dut, f"i_request__{k}", stall=stalls.named(request_stall, f"i{k}")) for k in range(c.ports)
        ]
        self.sinks = [StreamSink(dut, f"o__{k}", stall=stalls.named(o_stall, f"o{k}")) for k in range(c.ports)]
        self.checker = AxiChecker(
            dut,
            "axi__",
            word_bytes=c.word_bytes,
            max_burst=c.max_burst,
            outstanding=c.outstanding,
            channels=READ,
        )
        self.memory = AxiMemory(
            dut,
            "axi__",
            word_bytes=c.word_bytes,
            channels=READ,
            latency=latency,
            shuffle=self.draw if shuffle else None,
            stalls={"ar": stalls.named(ar_stall, "ar"), "r": stalls.named(r_stall, "r")},
            response=response,
        )
        dut.share.value = 64
        dut.pressure.value = 2 * c.max_burst
        dut.fault_clear.value = 0
        self.words, self.waits = (Tally(dut, name, range(c.ports)) for name in ("words", "waits"))

    @property
    def boundary(self) -> int:
        """Words between addresses that no burst crosses."""
        return BOUNDARY_BYTES // self.config.word_bytes

    def send(self, port: int, requests: list[Request]) -> None:
        """Queue requests."""
        bits = self.config.word_addr_bits
        self.sources[port].send_nowait(a | n << bits | int(bad) << bits + COUNT_BITS for a, n, bad in requests)

    async def compare(self, port: int, requests: list[Request]) -> None:
        """Take the words of requests and compare them; of bad requests the errors alone."""
        bits = self.config.data_bits
        for address, count, bad in requests:
            words = read(address, count, bad, memory=self.memory.read, response=self.response)
            expected = [data | int(error) << bits for data, error in words]
            got = await self.sinks[port].recv(count, timeout=20_000)
            if bad:
                got = [word >> bits << bits for word in got]
            wrong = next((n for n, pair in enumerate(zip(got, expected, strict=True)) if pair[0] != pair[1]), None)
            where = f"port {port}, word {wrong} of {(address, count, bad)}"
            assert wrong is None, f"{where}: {got[wrong]:#x}, not {expected[wrong]:#x}"

    async def run(self, requests: dict[int, list[Request]]) -> None:
        """Send requests to ports, compare their words and bursts."""
        c = self.config
        before = {port: len(list(self.checker.bursts_of(port))) for port in requests}
        for port, wanted in requests.items():
            self.send(port, wanted)
        for port, wanted in requests.items():
            await self.compare(port, wanted)
            split = [
                burst
                for address, count, bad in wanted
                if not bad
                for burst in bursts(address, count, max_burst=c.max_burst, word_bytes=c.word_bytes)
            ]
            assert list(self.checker.bursts_of(port))[before[port] :] == split

    def random_requests(self, count: int, draw: random.Random) -> list[Request]:
        """Requests of many lengths, half of them near a 4 KiB boundary."""
        page, last = self.boundary, (1 << self.config.word_addr_bits) - 1
        requests = []
        for _ in range(count):
            words = draw.choice([1, 1, 2, draw.randint(1, 10), draw.randint(1, 3 * self.config.max_burst)])
            near = draw.randrange(1, 5) * page - draw.randint(-2, words + 2)
            address = draw.choice([max(near, 0), draw.randint(0, last - words)])
            requests.append((address, words, draw.random() < 0.1))
        return requests

    async def end(self) -> None:
        """Nothing is left over."""
        await cycles(self.dut, 30)
        for sink in self.sinks:
            await sink.expect_nothing(1)
        assert all(source.idle for source in self.sources)
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
        (page, most, False),
        (page - most, 2 * most, False),
        (page - most + 1, most, False),
        (page - 1, most + 1, False),
        (3 * page + 1, 2 * page, False),
        (0, 0, False),
        (5, 3, True),
        (page - 1, 4, True),
        (7, 0, True),
        (9, 2, False),
    ]
    for port in (0, c.ports - 1):
        await bench.run({port: requests})
        await bench.run({port: [(4 * page - k, most, False) for k in range(most + 2)]})
    assert max(beats for _, _, beats in bench.checker.reads) == most
    await bench.end()


@cocotb.test()
@cocotb.parametrize(
    (
        ("ar_stall", "r_stall", "request_stall", "o_stall", "latency"),
        [
            ("none", "none", "none", "none", 1),
            ("random", "heavy", "none", "none", 5),
            ("heavy", "none", "random", "random", 20),
            ("bursty", "bursty", "bursty", "bursty", 9),
            ("none", "random", "none", "heavy", 40),
        ],
    )
)
async def matches_golden_under_stalls(dut, ar_stall, r_stall, request_stall, o_stall, latency):
    """All ports at once; the memory mixes their words; some of them are broken."""
    bench = Bench(
        dut,
        latency=latency,
        shuffle=True,
        ar_stall=ar_stall,
        r_stall=r_stall,
        request_stall=request_stall,
        o_stall=o_stall,
        response=faulty_words,
    )
    await start(dut)
    ports = range(bench.config.ports)
    for _ in range(params()["rounds"]):
        dut.share.value = bench.draw.choice([1, 64, 255])
        dut.pressure.value = bench.draw.choice([0, 5, 1000])
        await bench.run({port: bench.random_requests(12, bench.draw) for port in ports})
    await bench.end()
    assert bench.words.counts == [sum(beats for _, beats in bench.checker.bursts_of(port)) for port in ports], (
        "words of the bus"
    )


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """From a request to its address, from the bus to `o`; a word a cycle for bursts and for single words."""
    bench = Bench(dut)
    await start(dut)
    c, ar, r = bench.config, bench.checker.cycles["ar"], bench.checker.cycles["r"]
    for port in range(c.ports):
        await bench.run({port: [(100, 1, False)]})
        request, word = bench.sources[port].transfers[-1], bench.sinks[port].transfers[-1]
        assert ar[-1] - request == params()["address_latency"], f"{ar[-1] - request} cycles to the address"
        assert word - r[-1] == params()["word_latency"], f"{word - r[-1]} cycles to the word"
        await bench.run({port: [(100, 3, True)]})
        request, words = bench.sources[port].transfers[-1], bench.sinks[port].transfers[-3:]
        assert words == [request + params()["bad_latency"] + n for n in range(3)], f"{words} after {request}"
    for words in (1, c.max_burst, c.max_burst + 1, bench.boundary + 1):
        count = max(4, 200 // words)
        first = len(r)
        await bench.run({0: [(1000 + 3 * n, words, False) for n in range(count)]})
        taken = bench.sinks[0].transfers[-count * words :]
        for name, seen in (("bus", r[first:]), ("o", taken)):
            assert len(seen) == count * words
            took = seen[-1] - seen[0] + 1
            assert took == len(seen), f"{len(seen)} words, in requests of {words}, took {took} cycles on {name}"
    await bench.end()


@cocotb.test()
async def keeps_all_bursts_under_way(dut):
    """As many as promised, and no more, while the memory answers late."""
    bench = Bench(dut, latency=300)
    await start(dut)
    c = bench.config
    await bench.run({port: [(64 * n, 1, False) for n in range(c.outstanding)] for port in range(c.ports)})
    assert bench.checker.most_under_way["ar"] == c.outstanding
    await bench.end()


@cocotb.test()
async def slow_requester_holds_up_nobody(dut):
    """Port 0 takes no word; all others get theirs; then it gets its own."""
    bench = Bench(dut, shuffle=True)
    bench.sinks[0].stall = iter(lambda: True, None)
    await start(dut)
    c = bench.config
    stuck = [(17, 5 * c.depths[0], False), (3, 4, True), (11, 9, False)]
    bench.send(0, stuck)
    for _ in range(5):
        await bench.run({port: bench.random_requests(8, bench.draw) for port in range(1, c.ports)})
    await cycles(dut, 200)
    assert sum(beats for _, beats in bench.checker.bursts_of(0)) <= c.depths[0]
    bench.sinks[0].stall = None
    await bench.compare(0, stuck)
    await bench.end()


@cocotb.test()
async def contains_faults_and_keeps_the_first(dut):
    """Errors come to the requester whose words they are; the first one is kept until it is cleared."""
    broken = {1003: SLVERR, 1007: DECERR, 5000: DECERR}
    bench = Bench(dut, shuffle=True, latency=7, response=lambda word: broken.get(word, OKAY))
    await start(dut)
    ports = range(bench.config.ports)
    assert bench.fault()[0] == 0
    fine = {port: [(2000 * port, 40, False)] * 3 for port in ports if port != 2}
    await bench.run({**fine, 2: [(990, 10, False), (1000, 20, False), (5, 3, True)]})
    assert bench.fault() == (1, 2, 1003, SLVERR)
    await bench.run({1: [(4999, 3, False)]})
    assert bench.fault() == (1, 2, 1003, SLVERR)
    dut.fault_clear.value = 1
    await cycles(dut, 1)
    dut.fault_clear.value = 0
    await cycles(dut, 2)
    assert bench.fault()[0] == 0
    await bench.run({1: [(4999, 3, False)]})
    assert bench.fault() == (1, 1, 5000, DECERR)
    dut.fault_clear.value = 1  # while it is held, the fault that comes last is shown for a cycle
    await bench.run({1: [(4999, 3, False)], 0: [(1, 30, False)]})
    dut.fault_clear.value = 0
    await cycles(dut, 2)
    assert bench.fault()[0] == 0
    bench.send(1, [(5000, 1, False)])
    r = bench.checker.cycles["r"]
    before = len(r)
    dut.fault_clear.value = 1
    while len(r) == before:  # sees the transfer two edges before the fault is shown
        await cycles(dut, 1)
    await cycles(dut, 1)
    dut.fault_clear.value = 0
    await cycles(dut, 1)
    assert bench.fault() == (1, 1, 5000, DECERR), "a fault in the cycle of the clear is kept"
    await bench.sinks[1].recv(1)
    await bench.end()


@cocotb.test()
async def counts_words_and_waits(dut):
    """Words of the bus of each port; cycles in which its burst was not granted."""
    bench = Bench(dut)
    await start(dut)
    ports = range(bench.config.ports)
    dut.share.value = 0
    await bench.run({port: [(64 * port, 1 + port % 2, False), (1, 2, True)] for port in ports})
    assert bench.words.counts == [1 + port % 2 for port in ports]
    assert bench.waits.counts == list(ports)  # all asked in the same cycle
    await bench.run({1: [(7, 1, False)]})
    assert bench.words.counts[1] == 3
    await bench.end()


@cocotb.test()
async def attention_comes_first_and_gemm_gets_its_share(dut):
    """Everyone asks all the time: prefetch gets nothing, GEMM its share in rotation, attention the rest."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    for share in (32, 128, 200):
        await reset(dut)
        dut.share.value = share
        dut.pressure.value = 0
        for port in range(c.ports):
            bench.send(port, [(4096 * port, 60_000, False)])
        await cycles(dut, 300)
        bench.words.restart()
        await cycles(dut, 2000)
        words = Counter(dict(enumerate(bench.words.counts)))
        gemm = [words[port] for port in range(2, c.ports)]
        total = words.total()
        assert abs(sum(gemm) - total * share / 256) <= 3 * c.max_burst, f"{words} at a share of {share}"
        assert max(gemm) - min(gemm) <= 2 * c.max_burst, f"{words}"
        assert words[1] == 0 and total > 1900, f"{words}"
    await reset(dut)
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, latency=6, shuffle=True, r_stall="random", o_stall="random", response=faulty_words)
    await start(dut)
    ports = range(bench.config.ports)
    for wait in (1, 3, 9, 30, 77):
        for port in ports:
            bench.send(port, bench.random_requests(10, bench.draw))
        await cycles(dut, wait)
        await reset(dut)
        assert bench.fault()[0] == 0 and bench.words.counts == [0] * bench.config.ports
        await bench.run({port: bench.random_requests(4, bench.draw) for port in ports})
    await bench.end()
