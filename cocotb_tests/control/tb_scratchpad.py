"""Coroutines of the Scratchpad tests."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start, throughput
from cocotb_tests.lib.stream import StreamSink, StreamSource
from rtl.config import AcceleratorConfig, ControlConfig, GemmConfig
from rtl.control.scratchpad import Scratchpad, ask_layout, magnitude_layout, read_layout, word_layout, write_layout

CONFIG = AcceleratorConfig(gemm=GemmConfig(**params()["gemm"]), control=ControlConfig(**params()["control"]))
CORES, LANES = CONFIG.gemm.cores, CONFIG.gemm.row_lanes
WORDS, ROWS = CONFIG.control.scratch_words, CONFIG.control.scratch_rows
#: of each port, whose it is
READERS = [*(n // 2 for n in range(2 * CORES)), CORES, CORES + 1, CORES + 2]
WRITERS = [*range(CORES), CORES, CORES + 2]


class Log:
    """Values of a place over time; what is put in cycle c may be seen in c and must be seen after it."""

    def __init__(self) -> None:
        self.values: list[tuple[int, int]] = []

    def candidates(self, asked: int, answered: int) -> set[int]:
        """Values that a request in cycle ``asked`` may get until ``answered``."""
        before = [value for cycle, value in self.values if cycle < asked]
        return {*before[-1:], *(value for cycle, value in self.values if asked <= cycle < answered)}


class Bench:
    """Ports, and logs of what was written."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        self.dut = dut
        self.draw = rng("scratchpad", i_stall, o_stall)

        def sources(name: str, shape: Any, ports: int) -> list[StreamSource]:
            names = [f"{name}__{n}" for n in range(ports)]
            return [StreamSource(dut, port, shape=shape, stall=stalls.named(i_stall, port)) for port in names]

        def sinks(name: str, shape: Any, ports: int) -> list[StreamSink]:
            names = [f"{name}__{n}" for n in range(ports)]
            return [StreamSink(dut, port, shape=shape, stall=stalls.named(o_stall, port)) for port in names]

        self.reads = sources("i_read", read_layout(), len(READERS))
        self.words = sinks("o_read", word_layout(CONFIG), len(READERS))
        self.writes = sources("i_write", write_layout(CONFIG), len(WRITERS))
        self.sizes = sources("i_magnitude", magnitude_layout(), len(WRITERS))
        self.asks = sources("i_ask", ask_layout(), CORES)
        self.magnitudes = sinks("o_magnitude", None, CORES)
        self.outside = dut.outside

    def word(self) -> list[int]:
        return [self.draw.getrandbits(32) - (1 << 31) for _ in range(LANES)]

    async def clear(self) -> None:
        """Known content, by the first write ports."""
        words = [{"address": n, "mask": (1 << LANES) - 1, "data": [n] * LANES} for n in range(WORDS)]
        await self.writes[0].send(words)
        sizes = [{"row": n, "slot": s, "magnitude": 0, "first": 1} for n in range(ROWS) for s in range(CORES)]
        await self.sizes[0].send(sizes)
        await cycles(self.dut, 3)

    async def taken(self) -> None:
        """All requests are taken."""
        for source in (*self.writes, *self.sizes, *self.reads, *self.asks):
            await source.send([])

    async def end(self) -> None:
        for sink in (*self.words, *self.magnitudes):
            await sink.expect_nothing(20)
        assert int(self.outside.value) == 0


def ask(row: int) -> dict[str, int]:
    return {"row": row, "parts": 255}


def stalled_pairs() -> Any:
    pairs = [("none", "none"), ("random", "random"), ("heavy", "none"), ("none", "heavy"), ("bursty", "bursty")]
    return (("i_stall", "o_stall"), pairs)


@cocotb.test()
@cocotb.parametrize(stalled_pairs())
async def words_are_those_written(dut, i_stall, o_stall):
    """All ports at once, few words, any masks."""
    bench = Bench(dut, i_stall, o_stall)
    draw, count = bench.draw, params()["cases"]
    await start(dut)
    await bench.clear()
    places = [*range(6), WORDS - 2, WORDS - 1]
    given = [
        [{"address": draw.choice(places), "mask": draw.getrandbits(LANES), "data": bench.word()} for _ in range(count)]
        for _ in bench.writes
    ]
    asked = [[draw.choice(places) for _ in range(count)] for _ in bench.reads]
    for port, words in zip(bench.writes, given, strict=True):
        port.send_nowait(words)
    for port, addresses in zip(bench.reads, asked, strict=True):
        port.send_nowait({"address": address} for address in addresses)
    await bench.taken()
    got = [await sink.recv(count) for sink in bench.words]

    logs: dict[tuple[int, int], Log] = defaultdict(Log)
    for address in places:
        for lane in range(LANES):
            logs[address, lane].values.append((-1, address))
    moments = [
        (cycle, word)
        for port, words in zip(bench.writes, given, strict=True)
        for cycle, word in zip(port.transfers[-count:], words, strict=True)
    ]
    for cycle, word in sorted(moments, key=lambda moment: moment[0]):
        for lane in range(LANES):
            if word["mask"] >> lane & 1:
                logs[word["address"], lane].values.append((cycle, word["data"][lane]))
    for n, (port, sink) in enumerate(zip(bench.reads, bench.words, strict=True)):
        for address, begin, end, word in zip(asked[n], port.transfers, sink.transfers, got[n], strict=True):
            for lane, value in enumerate(word["data"]):
                wanted = logs[address, lane].candidates(begin, end)
                assert int(value) in wanted, f"port {n}, word {address}, lane {lane}: {int(value)}, not of {wanted}"
    await bench.end()


@cocotb.test()
@cocotb.parametrize(stalled_pairs())
async def magnitudes_are_the_largest_of_their_parts(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    draw, count = bench.draw, params()["cases"]
    await start(dut)
    await bench.clear()
    rows = [0, 1, ROWS - 1]
    given = [
        [
            {
                "row": draw.choice(rows),
                "slot": draw.randrange(CORES),
                "magnitude": draw.randrange(32),
                "first": int(draw.random() < 0.3),
            }
            for _ in range(count)
        ]
        for _ in bench.sizes
    ]
    asked = [[(draw.choice(rows), draw.getrandbits(8)) for _ in range(count)] for _ in bench.asks]
    for port, sizes in zip(bench.sizes, given, strict=True):
        port.send_nowait(sizes)
    for port, pairs in zip(bench.asks, asked, strict=True):
        port.send_nowait({"row": row, "parts": parts} for row, parts in pairs)
    await bench.taken()
    got = [await sink.recv(count) for sink in bench.magnitudes]

    logs: dict[tuple[int, int], Log] = defaultdict(Log)
    for row in rows:
        for slot in range(CORES):
            logs[row, slot].values.append((-1, 0))
    moments = [
        (cycle, size)
        for port, sizes in zip(bench.sizes, given, strict=True)
        for cycle, size in zip(port.transfers[-count:], sizes, strict=True)
    ]
    for cycle, size in sorted(moments, key=lambda moment: moment[0]):
        values = logs[size["row"], size["slot"]].values
        before = 0 if size["first"] else values[-1][1]
        values.append((cycle, max(before, size["magnitude"])))
    for n, (port, sink) in enumerate(zip(bench.asks, bench.magnitudes, strict=True)):
        for (row, parts), begin, end, value in zip(asked[n], port.transfers, sink.transfers, got[n], strict=True):
            slots = [logs[row, slot].candidates(begin, end) for slot in range(CORES) if parts >> slot & 1] or [{0}]
            assert any(value in slot for slot in slots) and all(min(slot) <= value for slot in slots), (
                f"core {n}, row {row}, parts {parts:#b}: {value}, not of {slots}"
            )
    await bench.end()


def stuck() -> Iterator[bool]:
    return repeat(True)


@cocotb.test()
async def ports_whose_answers_are_not_taken_hold_up_no_other(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.clear()
    bench.words[1].stall, bench.magnitudes[0].stall = stuck(), stuck()
    await cycles(dut, 2)
    for port in bench.reads:
        port.send_nowait({"address": n % WORDS} for n in range(40))
    for port in bench.asks:
        port.send_nowait({"row": 0, "parts": 255} for _ in range(40))
    for n, sink in enumerate(bench.words):
        if n != 1:
            assert [int(word["data"][0]) for word in await sink.recv(40)] == [n % WORDS for n in range(40)]
    for sink in bench.magnitudes[1:]:
        assert await sink.recv(40) == [0] * 40
    assert not bench.reads[1].idle and not bench.asks[0].idle
    bench.words[1].stall = bench.magnitudes[0].stall = None
    assert [int(word["data"][0]) for word in await bench.words[1].recv(40)] == [n % WORDS for n in range(40)]
    assert await bench.magnitudes[0].recv(40) == [0] * 40
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    """One port alone; then all of them, in turn."""
    bench = Bench(dut)
    await start(dut)
    await bench.clear()
    for port, sink, request in (
        (bench.reads[0], bench.words[0], {"address": 0}),
        (bench.asks[0], bench.magnitudes[0], ask(0)),
    ):
        port.send_nowait([request] * 50)
        await sink.recv(50)
        assert latency(port, sink) == Scratchpad.LATENCY
        assert throughput(sink) == 1
        sink.transfers.clear()
    for port in bench.reads:
        port.send_nowait([{"address": 0}] * 20)
    for port in bench.writes:
        port.send_nowait([{"address": 0, "mask": 1, "data": [0] * LANES}] * 20)
    await bench.taken()
    for sink in bench.words:
        await sink.recv(20)
    answered = sorted(cycle for sink in bench.words for cycle in sink.transfers)
    assert answered[-1] - answered[0] == 20 * len(READERS) - 1
    written = sorted(cycle for port in bench.writes for cycle in port.transfers[-20:])
    assert written[-1] - written[0] == 20 * len(WRITERS) - 1
    for port in bench.writes:
        gaps = [after - before for before, after in zip(port.transfers[-19:], port.transfers[-18:], strict=False)]
        assert max(gaps) == len(WRITERS), "not in rotation"
    await bench.end()


@cocotb.test()
async def what_lies_outside_is_told_by_user(dut):
    """Reads give 0, writes are dropped; the flag stays until a reset."""
    bench = Bench(dut)
    await start(dut)
    far = [WORDS, (1 << 20) - 1] if WORDS < 1 << 20 else []
    beyond = [ROWS, (1 << 16) - 1]
    everything = {"mask": (1 << LANES) - 1, "data": [-1] * LANES}

    async def told(user: int) -> None:
        await cycles(dut, 8)
        assert int(bench.outside.value) == 1 << user
        await bench.words[0].expect_nothing(5)
        await reset(dut)
        assert int(bench.outside.value) == 0

    await bench.clear()
    for n, user in enumerate(READERS):
        for address in far:
            bench.reads[n].send_nowait([{"address": address}, {"address": WORDS - 1}])
            words = await bench.words[n].recv(2)
            assert [[int(value) for value in word["data"]] for word in words] == [[0] * LANES, [WORDS - 1] * LANES]
            await told(user)
    for n, user in enumerate(WRITERS):
        for address in far:
            await bench.writes[n].send([{"address": address, **everything}])
            await told(user)
        for row in beyond:
            await bench.sizes[n].send([{"row": row, "slot": 0, "magnitude": 31, "first": 1}])
            await told(user)
    for n in range(CORES):
        for row in beyond:
            bench.asks[n].send_nowait([ask(row)])
            assert await bench.magnitudes[n].recv(1) == [0]
            await told(n)
    # Nothing of it was written anywhere.
    bench.reads[0].send_nowait({"address": n} for n in range(WORDS))
    assert [int(word["data"][0]) for word in await bench.words[0].recv(WORDS)] == list(range(WORDS))
    bench.asks[0].send_nowait(ask(n) for n in range(ROWS))
    assert await bench.magnitudes[0].recv(ROWS) == [0] * ROWS
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random", "random")
    await start(dut)
    for wait in (3, 10, 37):
        for port in bench.reads:
            port.send_nowait([{"address": 1}] * 40)
        for port in bench.asks:
            port.send_nowait([ask(0)] * 40)
        for port in bench.writes:
            port.send_nowait([{"address": 2, "mask": 1, "data": bench.word()} for _ in range(40)])
        await cycles(dut, wait)
        await reset(dut)
        await bench.clear()
        for port in bench.reads:
            port.send_nowait([{"address": n} for n in range(5)])
        for sink in bench.words:
            assert [int(word["data"][-1]) for word in await sink.recv(5)] == list(range(5))
        for port, sink in zip(bench.asks, bench.magnitudes, strict=True):
            port.send_nowait([ask(0)])
            assert await sink.recv(1) == [0]
    await bench.end()
