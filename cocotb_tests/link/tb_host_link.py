"""Coroutines of the HostLink tests: bytes at the pins, against golden."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import cocotb
from cocotb.triggers import Timer
from cocotb.utils import get_sim_time

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import PERIOD_NS, cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.link.bus import COUNTER, SILENT, WordBus
from cocotb_tests.link.pins import drive_byte, sample_byte
from cocotb_tests.link.requests import corner_requests, random_request, spoiled
from golden.link.host_link import (
    REPLY_BYTES,
    LinkModel,
    Operation,
    Reply,
    Request,
    Status,
    decode_reply,
    encode_reply,
    encode_request,
)

PERIOD_PS = 1000 * PERIOD_NS
BYTE_BITS = 10


class Bench:
    """The pins and a bus, and golden with an equal bus."""

    def __init__(self, dut: Any, access_stall: str = "none", result_stall: str = "none") -> None:
        self.dut = dut
        self.words, self.pause = params()["max_words"], params()["pause_cycles"]
        self.bit = round(PERIOD_PS * Fraction(params()["clocks_per_bit"]))
        self.draw = rng("bench", access_stall, result_stall)
        self.bus, self.golden_bus = WordBus(), WordBus()
        self.golden = LinkModel(self.golden_bus, max_words=self.words)
        self.accesses = StreamSink(dut, "o_access", stall=stalls.named(access_stall, "access"))
        self.results = StreamSource(dut, "i_result", stall=stalls.named(result_stall, "result"))
        self.received, self.begun = bytearray(), list[int]()
        self.serving: Any = None
        self.sampling: Any = None
        dut.rx.value = 1

    async def start(self) -> None:
        """Clock, reset, bus and the sampling of replies."""
        await start(self.dut)
        self.serving = cocotb.start_soon(self._serve())
        self.sampling = cocotb.start_soon(self._sample())

    async def reset(self) -> None:
        """Reset in the middle of whatever goes on; golden and bus begin anew, too."""
        self.sampling.cancel()
        await reset(self.dut)
        self.received.clear()
        self.bus, self.golden_bus = WordBus(), WordBus()
        self.golden = LinkModel(self.golden_bus, max_words=self.words)
        self.sampling = cocotb.start_soon(self._sample())

    async def _serve(self) -> None:
        while True:
            for word in await self.accesses.recv(1, timeout=1 << 40):
                result = self.bus(word & (1 << 30) - 1, bool(word >> 30 & 1), word >> 31)
                if result is not None:
                    self.results.send_nowait([result[0] | result[1] << 32])

    async def _sample(self) -> None:
        while True:
            byte = await sample_byte(self.dut.tx, self.bit)
            self.begun.append(round(get_sim_time("ps") - (BYTE_BITS - 0.5) * self.bit))
            self.received.append(byte)

    async def send(self, burst: Sequence[int | None], *, gaps: bool = False, skew: float = 1) -> None:
        """Send bytes at any time within a cycle, with gaps that are no pauses, faster or slower."""
        await Timer(self.draw.randrange(1, PERIOD_PS), "step")
        bit = round(self.bit * skew)
        for byte in burst:
            await drive_byte(
                self.dut.rx, self.draw.getrandbits(8) if byte is None else byte, bit, stop=byte is not None
            )
            if byte is None:
                self.dut.rx.value = 1
                await Timer(2 * bit, "step")
            elif gaps and self.draw.random() < 0.2:
                longest = PERIOD_PS * self.pause - (BYTE_BITS + 1) * self.bit
                await Timer(self.draw.choice([longest, self.draw.randrange(1, longest)]), "step")

    async def receive(self, count: int) -> bytes:
        """As many bytes as these, and not one more."""
        limit = self.cycles_of(count + 20) + 2 * self.pause + 40 * self.words + params()["watchdog_cycles"]
        while len(self.received) < count and limit > 0:
            await cycles(self.dut, 20)
            limit -= 20
        await cycles(self.dut, self.cycles_of(2))
        got = bytes(self.received)
        self.received.clear()
        return got

    def cycles_of(self, count: int) -> int:
        """Cycles of so many bytes on the line."""
        return count * BYTE_BITS * self.bit // PERIOD_PS + 1

    async def check(self, burst: Sequence[int | None], *, gaps: bool = False, skew: float = 1) -> None:
        """Send a burst; answer and accesses are those of golden."""
        expected = self.golden.answer(burst)
        await self.send(burst, gaps=gaps, skew=skew)
        got = await self.receive(len(expected))
        if not expected:
            await cycles(self.dut, self.pause)
        assert got == expected, f"{got.hex()}, expected {expected.hex()}, for {burst}"
        assert self.bus.accesses == self.golden_bus.accesses, f"{self.bus.accesses[-5:]} for {burst}"

    async def ask(self, request: Request, *, data: int = 0) -> Reply:
        """Send a request and return its reply, with so many bytes of data."""
        await self.send(encode_request(request))
        replied = await self.receive(REPLY_BYTES + data)
        reply, count = decode_reply(replied)
        assert reply is not None and count == len(replied), replied.hex()
        return reply

    def end(self) -> None:
        """Nothing is left over."""
        assert not self.received and self.results.idle and self.accesses.empty()


@cocotb.test()
@cocotb.parametrize(skew=[0.98, 1, 1.02])
async def matches_golden_on_corner_requests(dut, skew):
    bench = Bench(dut)
    await bench.start()
    for request in corner_requests(bench.words)[:: 1 if skew == 1 else 5]:
        await bench.check(encode_request(request), skew=skew)
    bench.end()


@cocotb.test()
@cocotb.parametrize((("access_stall", "result_stall"), [("none", "heavy"), ("heavy", "none"), ("bursty", "random")]))
async def matches_golden_under_stalls(dut, access_stall, result_stall):
    bench = Bench(dut, access_stall, result_stall)
    await bench.start()
    sequence = 0
    for _ in range(params()["requests"]):
        sequence = (sequence + bench.draw.choice([0, 1, 1])) % 256
        await bench.check(encode_request(random_request(bench.draw, sequence, bench.words)), gaps=True)
    bench.end()


@cocotb.test()
async def answers_spoiled_requests_as_golden(dut):
    """Between right ones, which get what they got without them."""
    bench = Bench(dut)
    await bench.start()
    for sequence in range(params()["requests"]):
        request = random_request(bench.draw, sequence % 256, bench.words)
        await bench.check(spoiled(bench.draw, request), gaps=True)
        await bench.check(encode_request(request))
        await bench.check(spoiled(bench.draw, random_request(bench.draw, sequence % 256, bench.words)))
        await bench.check(encode_request(request))
    bench.end()


@cocotb.test()
async def spoiled_data_do_not_change_what_is_repeated(dut):
    """A write without right CRC between a read, whose reply was lost, and its repetition."""
    bench = Bench(dut)
    await bench.start()
    read = Request(operation=Operation.READ | 0x80, sequence=7, words=bench.words, address=4 * COUNTER)
    write = Request(operation=Operation.WRITE, sequence=7, words=bench.words, data=b"\xff" * 4 * bench.words)
    await bench.check(encode_request(read))
    await bench.check([*encode_request(write)[:-1], 0])
    await bench.check(encode_request(write)[:-5])
    await bench.check(encode_request(read))
    assert len(bench.bus.accesses) == bench.words
    bench.end()


@cocotb.test()
async def ends_accesses_without_result(dut):
    """The bus gives no result, later does not even take an access; what comes late is dropped."""
    bench = Bench(dut)
    await bench.start()
    silent = Request(operation=Operation.READ, sequence=1, address=4 * SILENT)
    fine = Request(operation=Operation.READ, sequence=2, address=0x40)
    for _ in range(2):
        assert await bench.ask(silent) == Reply(status=Status.TIMEOUT, sequence=1)
    assert len(bench.bus.accesses) == 1
    assert await bench.ask(fine) == Reply(status=Status.TIMEOUT, sequence=2), "one access at a time"
    bench.results.send_nowait([0xBAD])
    await cycles(dut, 5)
    fine = Request(operation=Operation.READ, sequence=3, address=0x40)
    assert (await bench.ask(fine, data=4)).data == (~0x10 & 0xFFFFFFFF).to_bytes(4, "little")

    assert (await bench.ask(Request(operation=Operation.READ, sequence=7, address=4 * SILENT))).status == Status.TIMEOUT
    await bench.send(encode_request(Request(operation=Operation.READ, sequence=8, address=0x60)))
    await cycles(dut, 20)
    bench.results.send_nowait([0xBAD])  # while the next access waits for it
    reply, _ = decode_reply(await bench.receive(REPLY_BYTES + 4))
    assert reply is not None and reply.data == (~0x18 & 0xFFFFFFFF).to_bytes(4, "little"), reply

    bench.accesses.stall = iter(lambda: True, False)
    await cycles(dut, 2)
    for sequence in (4, 5):
        write = Request(operation=Operation.WRITE, sequence=sequence, address=4 * sequence, data=bytes(4))
        assert await bench.ask(write) == Reply(status=Status.TIMEOUT, sequence=sequence)
    bench.accesses.stall = None
    await cycles(dut, 10)
    assert bench.bus.accesses[4:] == [(4, True, 0)], "what was on offer holds, nothing follows"
    fine = Request(operation=Operation.READ, sequence=6, address=0x50)
    assert (await bench.ask(fine, data=4)).data == (~0x14 & 0xFFFFFFFF).to_bytes(4, "little")
    bench.end()


@cocotb.test()
async def ends_a_frame_after_a_pause(dut):
    """One that stops anywhere, for the stated time."""
    bench = Bench(dut)
    await bench.start()
    frame = encode_request(Request(operation=Operation.WRITE, sequence=9, data=bytes(4)))
    repeat = encode_reply(Reply(status=Status.REPEAT, sequence=9))
    for length in (1, 3, 4, 8, 12, len(frame) - 1):
        await bench.send(frame[:length])
        stopped = get_sim_time("ps")
        got = await bench.receive(REPLY_BYTES)
        assert got == (repeat if length >= 4 else encode_reply(Reply(status=Status.REPEAT, sequence=got[2])))
        waited = (bench.begun[-REPLY_BYTES] - stopped) / PERIOD_PS
        assert bench.pause - bench.cycles_of(1) < waited < bench.pause + 8, f"{waited} cycles, not {bench.pause}"
    assert not bench.bus.accesses
    bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await bench.start()
    bench.serving.cancel()
    bit, n, engine = bench.bit / PERIOD_PS, bench.words, bench.accesses.engine
    zero = get_sim_time("ps") / PERIOD_PS - engine.cycle
    for _ in range(5):
        bench.results.send_nowait(range(n))  # they wait, so that the bus takes no time
        await bench.ask(Request(operation=Operation.HELLO, sequence=0))
        bench.accesses.take_all()
        bench.begun.clear()
        await bench.send(encode_request(Request(operation=Operation.READ, sequence=1, words=n)))
        last_bit = get_sim_time("ps") / PERIOD_PS - zero - bit
        await bench.receive(REPLY_BYTES + 4 * n)
        begun = [time / PERIOD_PS - zero for time in bench.begun]
        accesses, results = bench.accesses.transfers[-n:], bench.results.transfers[-n:]
        assert 4 < accesses[0] - last_bit - bit / 2 < 8, f"access {accesses[0] - last_bit} cycles after the stop bit"
        assert accesses == [accesses[0] + 4 * k for k in range(n)]
        assert results == [access + 1 for access in accesses]
        assert round(begun[0]) - results[-1] == 3, f"reply {begun[0] - results[-1]} cycles after the last result"
        assert {round(after - before) for before, after in pairwise(begun)} == {ceil(BYTE_BITS * bit)}, "gaps"
    bench.accesses.take_all()
    bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    """While a request comes, is carried out, and is answered."""
    bench = Bench(dut, "none", "random")
    await bench.start()
    write = Request(operation=Operation.WRITE, sequence=1, words=bench.words, data=b"\x55" * 4 * bench.words)
    read = Request(operation=Operation.READ, sequence=2, words=bench.words)
    frame = encode_request(read)
    await bench.check(encode_request(write))
    for sent, wait in ((1, 0), (6, 3), (11, 0), (12, 2), (12, 7), (12, 40), (12, bench.cycles_of(3))):
        await bench.send(frame[:sent])
        await cycles(dut, wait)
        await bench.reset()
        await bench.check(encode_request(read))
        await bench.check(encode_request(write))
        await bench.check(encode_request(read))
    bench.end()
