"""Coroutines of the HostBus tests: accesses one after the other, Wishbone memories that answer when they like."""

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start, with_timeout
from cocotb_tests.lib.stream import StreamSink, StreamSource
from fpga.host import MAGIC
from fpga.host_bus import Space, information
from rtl.config import preset
from rtl.control.registers import addresses
from rtl.link.host_link import ACCESS_SHAPE, RESULT_SHAPE

DRAM_BYTES = 3 << 20
WORDS = information(clock_hz=25_000_000, dram_bytes=DRAM_BYTES, config_crc=0xC0FFEE00)


class Wishbone:
    """A memory of words; answers after as many cycles as it likes, with an error at word 77."""

    def __init__(self, dut, name):
        self.dut, self.words, self.delay, self.accesses = dut, {}, 0, 0
        parts = ("cyc", "stb", "we", "adr", "dat_w", "sel", "dat_r", "ack", "err")
        self.signals = {part: getattr(dut, f"{name}__{part}") for part in parts}
        for part in ("ack", "err", "dat_r"):
            self.signals[part].value = 0

    async def run(self):
        draw, s = rng("wishbone"), self.signals
        while True:
            await cycles(self.dut, 1)
            if not (int(s["cyc"].value) and int(s["stb"].value)):
                continue
            await cycles(self.dut, draw.randrange(4))
            word = int(s["adr"].value)
            assert int(s["sel"].value) == 15 and int(s["cyc"].value)
            if int(s["we"].value):
                self.words[word] = int(s["dat_w"].value)
            self.accesses += 1
            s["dat_r"].value = self.words.get(word, ~word & 0xFFFF_FFFF)
            s["err" if word == 77 else "ack"].value = 1
            await cycles(self.dut, 1)
            s["ack"].value = s["err"].value = 0


class Bench:
    def __init__(self, dut):
        stall = params()["stall"]
        self.source = StreamSource(dut, "i_access", shape=ACCESS_SHAPE, stall=stalls.named(stall, "access"))
        self.sink = StreamSink(dut, "o_result", shape=RESULT_SHAPE, stall=stalls.named(stall, "result"))
        self.dram, self.controller = Wishbone(dut, "dram"), Wishbone(dut, "controller")
        for memory in (self.dram, self.controller):
            cocotb.start_soon(memory.run())

    async def access(self, address, data=None):
        """Data and whether it is an error."""
        write = data is not None
        self.source.send_nowait([{"address": address >> 2, "write": int(write), "data": data or 0}])
        (result,) = await self.sink.recv(1, timeout=1000)
        return result.data, bool(result.error)


@cocotb.test()
async def spaces(dut):
    bench = Bench(dut)
    await start(dut)
    for n, word in enumerate(WORDS):
        assert await bench.access(Space.INFORMATION.base + 4 * n) == (word, False)
    assert WORDS[0] == MAGIC
    for memory, base in ((bench.dram, 0), (bench.controller, Space.CONTROLLER.base)):
        assert await bench.access(base + 40) == (~10 & 0xFFFF_FFFF, False)
        assert not (await bench.access(base + 40, 0x1234_5678))[1]
        assert memory.words == {10: 0x1234_5678}
        assert await bench.access(base + 40) == (0x1234_5678, False)
        assert (await bench.access(base + 4 * 77))[1]
    places = addresses(preset("tiny"))
    register = Space.REGISTERS.base + places["window_base"]
    assert not (await bench.access(register, 0x0055_AA01))[1]
    assert await bench.access(register) == (0x0055_AA01, False)


@cocotb.test()
async def errors(dut):
    bench = Bench(dut)
    await start(dut)
    assert not (await bench.access(DRAM_BYTES - 4))[1]
    before = bench.dram.accesses + bench.controller.accesses
    bad = [DRAM_BYTES, 0x7FFF_FFFC, Space.REGISTERS.base + 0x1_0000, Space.REGISTERS.base + 0xFFFC]
    bad += [Space.INFORMATION.base + 4 * len(WORDS), 0xB000_0000, 0xFFFF_FFFC]
    for address in bad:
        assert (await bench.access(address))[1], hex(address)
    assert (await bench.access(Space.INFORMATION.base, 1))[1]
    assert bench.dram.accesses + bench.controller.accesses == before
    assert await bench.access(Space.INFORMATION.base) == (MAGIC, False)


@cocotb.test()
async def random_accesses_and_a_reset(dut):
    bench, draw, model = Bench(dut), rng("accesses"), {}
    await start(dut)
    bases = (0, Space.CONTROLLER.base)
    for n in range(200):
        address = draw.choice(bases) + 4 * draw.randrange(64)
        if draw.random() < 0.5:
            model[address] = draw.getrandbits(32)
            assert not (await bench.access(address, model[address]))[1]
        else:
            expected = model.get(address, ~((address & 0x0FFF_FFFF) >> 2) & 0xFFFF_FFFF)
            assert await bench.access(address) == (expected, False)
        if n == 100:
            bench.source.send_nowait([{"address": 3, "write": 0, "data": 0}])
            await cycles(dut, 2)
            await reset(dut)
            await cycles(dut, 10)
    await with_timeout(bench.sink.expect_nothing(), 1000)
