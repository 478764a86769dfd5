"""Coroutines that let reader and writer work on the memory of cocotbext-axi, which was written independently."""

import cocotb
from cocotbext.axi import AxiBus, AxiRam, AxiResp

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.axi import AxiChecker
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.cache.axi import SLVERR
from golden.cache.axi_writer import merge
from rtl.cache.axi import AxiConfig

COUNT_BITS = 16
SIZE = 1 << 16


class Bench:
    """The design, the peer, and what its memory should hold."""

    def __init__(self, dut, stall: str = "none") -> None:
        self.dut = dut
        values = params()["config"]
        self.config = c = AxiConfig(**{**values, "depths": tuple(values["depths"])})
        self.draw = rng("peer", stall)
        ports = range(c.ports)
        self.read_requests = [StreamSource(dut, f"i_read__{k}") for k in ports]
        self.write_requests = [StreamSource(dut, f"i_write__{k}") for k in ports]
        self.words = [StreamSource(dut, f"i_word__{k}", stall=stalls.named(stall, f"word{k}")) for k in ports]
        self.read = [StreamSink(dut, f"o_read__{k}", stall=stalls.named(stall, f"read{k}")) for k in ports]
        self.answers = [StreamSink(dut, f"o_write__{k}") for k in ports]
        self.checker = AxiChecker(
            dut, "axi__", word_bytes=c.word_bytes, max_burst=c.max_burst, outstanding=c.outstanding
        )
        self.ram = AxiRam(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, size=SIZE)
        channels = (
            self.ram.write_if.aw_channel,
            self.ram.write_if.w_channel,
            self.ram.write_if.b_channel,
            self.ram.read_if.ar_channel,
            self.ram.read_if.r_channel,
        )
        for channel in channels:
            channel.log.setLevel("WARNING")
            if stall != "none":
                channel.set_pause_generator(stalls.named(stall, channel.__class__.__name__))
        self.ram.write_if.log.setLevel("WARNING")
        self.ram.read_if.log.setLevel("WARNING")
        dut.share.value, dut.pressure.value = 64, 1000
        data = self.draw.randbytes(SIZE)
        self.ram.write(0, data)
        step = c.word_bytes
        self.memory = [int.from_bytes(data[at : at + step], "little") for at in range(0, SIZE, step)]

    def request(self, address: int, count: int) -> int:
        """A packed request."""
        return address | count << self.config.word_addr_bits

    def place(self, first: int, last: int) -> tuple[int, int]:
        """A random request within these words, often at a 4 KiB boundary."""
        page = self.config.boundary_words
        count = self.draw.randint(1, min(3 * self.config.max_burst, last - first))
        near = (first // page + 1) * page - self.draw.choice([0, count, self.draw.randint(0, count)])
        address = near if first <= near <= last - count else self.draw.randint(first, last - count)
        return address, count

    async def write(self, count: int) -> None:
        """Write from all ports, each to its part of the memory, and compare the memory."""
        c, part = self.config, len(self.memory) // self.config.ports
        for port in range(c.ports):
            for _ in range(count):
                address, words = self.place(port * part, (port + 1) * part)
                self.write_requests[port].send_nowait([self.request(address, words)])
                for word in range(address, address + words):
                    data, strobe = self.draw.getrandbits(c.data_bits), self.draw.getrandbits(c.word_bytes)
                    self.words[port].send_nowait([data | strobe << c.data_bits])
                    self.memory[word] = merge(self.memory[word], data, strobe, word_bytes=c.word_bytes)
        for answers in self.answers:
            assert await answers.recv(count) == [0] * count
        data = b"".join(word.to_bytes(c.word_bytes, "little") for word in self.memory)
        assert self.ram.read(0, SIZE) == data

    async def read_back(self, count: int) -> None:
        """Read from all ports and compare."""
        c = self.config
        wanted = {port: [self.place(0, len(self.memory)) for _ in range(count)] for port in range(c.ports)}
        for port, requests in wanted.items():
            self.read_requests[port].send_nowait(self.request(*request) for request in requests)
        for port, requests in wanted.items():
            for address, words in requests:
                assert await self.read[port].recv(words) == self.memory[address : address + words]

    async def end(self) -> None:
        """Nothing is left over."""
        await cycles(self.dut, 50)
        assert self.checker.idle
        assert all(sink.empty() for sink in (*self.read, *self.answers))


@cocotb.test()
@cocotb.parametrize(stall=["none", "random", "bursty"])
async def memory_of_the_peer_holds_what_was_written(dut, stall):
    bench = Bench(dut, stall)
    await start(dut)
    for _ in range(3):
        await bench.write(6)
        await bench.read_back(8)
    await bench.end()


@cocotb.test()
async def works_after_reset_of_both(dut):
    bench = Bench(dut, "random")
    await start(dut)
    for port in range(bench.config.ports):
        bench.read_requests[port].send_nowait([bench.request(10 * n, 30) for n in range(9)])
    await cycles(dut, 60)
    await reset(dut)
    await bench.write(3)
    await bench.read_back(3)
    await bench.end()


@cocotb.test()
async def errors_of_the_peer_are_reported(dut):
    """The peer refuses what lies above its part of the memory."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    limit = SIZE // 2

    async def read(address, length):
        if address >= limit:
            raise ValueError("not there")
        return bytes(length)

    async def write(address, data):
        if address >= limit:
            raise ValueError("not there")

    bench.ram.read_if._read, bench.ram.write_if._write = read, write
    inside, outside = 40, limit // c.word_bytes + 24
    for port in range(c.ports):
        address = outside if port == 1 else inside
        bench.read_requests[port].send_nowait([bench.request(address, 5)])
        bench.write_requests[port].send_nowait([bench.request(address, 2)])
        bench.words[port].send_nowait([((1 << c.word_bytes) - 1) << c.data_bits] * 2)
    for port in range(c.ports):
        assert await bench.read[port].recv(5) == [int(port == 1) << c.data_bits] * 5
        assert await bench.answers[port].recv(1) == [int(port == 1)]
    assert AxiResp.SLVERR == SLVERR
    for fault in (dut.read_fault, dut.write_fault):
        bits = int(fault.value)
        assert bits == 1 | 1 << 1 | outside << 1 + c.id_bits | SLVERR << 1 + c.id_bits + c.word_addr_bits
    await bench.end()
