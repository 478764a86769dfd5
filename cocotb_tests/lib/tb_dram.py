"""Runs inside the simulator: the DRAM model against cocotbext-axi, its figures, and traffic made in HDL."""

import json
import time
from pathlib import Path

import cocotb
import numpy as np
from cocotb.triggers import Combine

from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start, with_timeout
from cocotb_tests.lib.dram import Rule
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_image import DramImage
from cocotb_tests.lib.dram_parts import PARTS

OKAY, SLVERR, DECERR = 0, 2, 3
INCR = 1


def _config():
    return DramConfig(**params()["config"])


def _master(dut):
    from cocotbext.axi import AxiBus, AxiMaster

    master = AxiMaster(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst)
    for half in (master.read_if, master.write_if):
        half.log.setLevel("WARNING")
    return master


class _Port:
    """Single accesses at the port, with their cycles."""

    def __init__(self, dut, config):
        self.dut, self.config = dut, config
        for channel in ("ar", "aw", "w"):
            self._set(f"{channel}valid", 0)
        for channel in ("ar", "aw"):
            self._set(f"{channel}burst", INCR)
            self._set(f"{channel}size", config.word_bytes.bit_length() - 1)
        self._set("wstrb", (1 << config.word_bytes) - 1)
        self._set("rready", 1)
        self._set("bready", 1)

    def _set(self, name, value):
        getattr(self.dut, f"axi__{name}").value = value

    def get(self, name):
        return int(getattr(self.dut, f"axi__{name}").value)

    async def transfer(self, channel, **fields):
        """Offer a payload until it is taken; returns at the edge of its transfer."""
        for name, value in fields.items():
            self._set(f"{channel}{name}", value)
        self._set(f"{channel}valid", 1)
        await cycles(self.dut, 1)
        while not self.get(f"{channel}ready"):
            await cycles(self.dut, 1)
        self._set(f"{channel}valid", 0)

    async def arrival(self, channel):
        """Wait for a transfer that the memory offers; its cycles from now on."""
        for count in range(1, 5000):
            await cycles(self.dut, 1)
            if self.get(f"{channel}valid"):
                return count
        raise AssertionError(f"nothing on {channel}")

    async def read(self, word, length=1, tag=0):
        """Return cycles to the first word, cycles to the last one, all words, responses."""
        await self.transfer("ar", addr=word * self.config.word_bytes, len=length - 1, id=tag)
        arrivals, words, responses = [], [], []
        while len(words) < length:
            arrivals.append(await self.arrival("r"))
            words.append(self.get("rdata"))
            responses.append(self.get("rresp"))
            assert self.get("rid") == tag
            assert self.get("rlast") == (len(words) == length)
        return arrivals[0], sum(arrivals), words, responses

    async def write(self, word, words, tag=0, last=None):
        """Return cycles from the last word to the response, and the response."""
        await self.transfer("aw", addr=word * self.config.word_bytes, len=len(words) - 1, id=tag)
        for n, content in enumerate(words):
            await self.transfer("w", data=content, last=n == (len(words) - 1 if last is None else last))
        count = await self.arrival("b")
        assert self.get("bid") == tag
        return count, self.get("bresp")


async def _bench(dut, prefix="bench"):
    config = _config()
    image = DramImage(dut, config, prefix)
    await start(dut)
    return config, image


async def _single(dut):
    config = _config()
    port = _Port(dut, config)
    image = DramImage(dut, config, "bench")
    await start(dut)
    return config, port, image


async def _settle(dut, image):
    """Wait until nothing is under way and all rules of banks are over."""
    while not image.idle:
        await cycles(dut, 1)
    await cycles(dut, 30)


async def _refresh(dut, config, image):
    """Wait for the next refresh to begin; return the cycles that it lasts."""
    await image.clear_counters()
    while not image.counters["refreshes"]:
        await cycles(dut, 1)
    return (PARTS[config.part].rp + PARTS[config.part].rfc) * config.clock / 1000


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.8])
async def carries_content(dut, stall):
    """Random accesses of cocotbext-axi, from any byte on, several at once."""
    master = _master(dut)
    config, image = await _bench(dut)
    draw = rng("content", stall)
    image.stall(stall)
    image.restart_stalls(draw.getrandbits(32) | 1)
    size = config.words * config.word_bytes
    mirror = np.frombuffer(draw.randbytes(size), np.uint8).copy()
    await image.load({0: mirror})

    parts = 4  # writes at once must not meet
    async def work(part):
        first, count = part * size // parts, size // parts
        pick = rng("content", stall, part)
        for _ in range(params()["accesses"]):
            length = pick.randint(1, pick.choice((4, 64, 600)))
            address = first + pick.randrange(count - length)
            if pick.random() < 0.5:
                content = pick.randbytes(length)
                mirror[address : address + length] = np.frombuffer(content, np.uint8)
                await master.write(address, content)
            else:
                found = await master.read(address, length)
                assert bytes(found.data) == mirror[address : address + length].tobytes()

    await with_timeout(Combine(*(cocotb.start_soon(work(part)) for part in range(parts))), 400_000)
    await _settle(dut, image)
    await image.check(0, mirror)
    assert image.violations == []


@cocotb.test()
async def loads_and_dumps_pieces(dut):
    config, image = await _bench(dut)
    size = config.word_bytes
    await image.load({0: bytes(8 * size), 2 * size: bytes(range(1, 1 + size)), 5 * size: bytes([0xFE] * size)})
    found = (await image.dump(0, 8 * size)).reshape(8, size)
    assert found[2].tolist() == list(range(1, 1 + size))
    assert found[5].tolist() == [0xFE] * size
    assert not found[[0, 1, 3, 4, 6, 7]].any()
    assert (await image.dump(2 * size + 1, 2)).tolist() == [2, 3]
    message = ""
    try:
        await image.check(2 * size, bytes(size))
    except AssertionError as error:
        message = str(error)
    assert message == f"{size} of {size} bytes differ, the first at address {2 * size:#x}: 0x01 instead of 0x00"


@cocotb.test()
async def strobes_choose_bytes(dut):
    config, port, image = await _single(dut)
    size = config.word_bytes
    await image.load({0: bytes([0xAA] * size)})
    port._set("wstrb", 0b0101)
    await port.write(0, [(1 << 8 * size) - 1])
    await image.check(0, bytes([0xFF, 0xAA, 0xFF, 0xAA] + [0xAA] * (size - 4)))


def _other_row(config):
    """A word in another row of the bank of word 0."""
    return config.burst_bytes // config.word_bytes << config.fields["row"].start


@cocotb.test()
async def single_accesses_take_their_figures(dut):
    config, port, image = await _single(dut)
    other = _other_row(config)
    await cycles(dut, int(await _refresh(dut, config, image)) + 1)  # none comes in between
    await image.clear_counters()
    for kind, word in (("open", 0), ("hit", 1), ("miss", other), ("miss", 0), ("hit", 2)):
        found = (await port.read(word))[0]
        assert found == config.read_latency(kind), f"{kind}: {found} instead of {config.read_latency(kind)} cycles"
        await _settle(dut, image)
    for kind, word in (("hit", 1), ("miss", other), ("hit", other + 1)):
        found = (await port.write(word, [1]))[0]
        assert found == config.write_latency(kind), f"{kind}: {found} instead of {config.write_latency(kind)} cycles"
        await _settle(dut, image)
    counters = image.counters
    assert [counters[name] for name in ("row_hits", "row_misses", "row_opens")] == [4, 3, 1]
    assert counters["read_bytes"] == 5 * config.burst_bytes
    assert counters["read_useful"] == 5 * config.word_bytes
    assert counters["write_bytes"] == 3 * config.burst_bytes
    assert counters["write_useful"] == 3 * config.word_bytes
    assert counters["busy"] == 8 * config.data_ticks // 1024
    assert counters["refreshes"] == 0


@cocotb.test()
async def ideal_latency_is_fixed(dut):
    config, port, image = await _single(dut)
    for word in (0, 5, config.words - 1, 0):
        assert (await port.read(word))[0] == config.latency + 3
        assert (await port.write(word, [word]))[0] == config.latency + 2
    first, last, _, _ = await port.read(0, 100)
    assert (first, last) == (config.latency + 3, config.latency + 102)
    assert image.counters["refreshes"] == 0


@cocotb.test()
async def bursts_follow_without_gaps(dut):
    """Words of a long read within a row come in each cycle, when the part gives that many."""
    config, port, image = await _single(dut)
    await image.load({0: np.arange(64 * config.word_bytes // 4, dtype="<u4").tobytes()})
    await port.read(0, 64)  # opens the rows of all bank groups
    await _settle(dut, image)
    first, last, words, _ = await port.read(1, 48)
    assert first == config.read_latency("hit")
    assert last - first <= 47 * max(1, 1 / config.ratio) + 1
    assert [word & 0xFFFFFFFF for word in words] == [n * config.word_bytes // 4 for n in range(1, 49)]


@cocotb.test()
async def refreshes_in_time(dut):
    """A read during a refresh waits for its end; the rows are closed then."""
    config, port, image = await _single(dut)
    await port.read(0)
    pause = await _refresh(dut, config, image)
    first, *_ = await port.read(0)
    # The counter shows it two cycles after it began, the read is planned two cycles after its address.
    expected = config.read_latency("open") + pause - 4
    assert abs(first - expected) <= 1.5, f"{first} instead of {expected} cycles"
    assert image.counters["row_opens"] == 1
    await cycles(dut, int(2 * PARTS[config.part].refi * config.clock / 1000))
    assert image.counters["refreshes"] in (2, 3)


@cocotb.test()
async def ids_and_errors(dut):
    config, port, image = await _single(dut)
    ones = (1 << config.data_bits) - 1
    await image.load({0: bytes(range(256)) * (8 * config.word_bytes // 256 + 1)})
    before = await image.dump(0, 8 * config.word_bytes)
    image.error(0, 2, 3, SLVERR)
    image.error(1, 5, 5, DECERR)
    for tag in range(1 << config.id_bits):
        _, _, words, responses = await port.read(0, 8, tag)
        assert responses == [0, 0, SLVERR, SLVERR, 0, DECERR, 0, 0]
        content = [int.from_bytes(row.tobytes(), "little") for row in before.reshape(8, -1)]
        assert words == [w ^ (ones if r else 0) for w, r in zip(content, responses, strict=True)]
    assert (await port.write(2, [0], tag=1))[1] == SLVERR
    assert (await port.write(4, [0, 0], tag=2))[1] == DECERR  # the words that are not at fault are written
    assert (await port.write(6, [0], tag=3))[1] == OKAY
    await image.check(0, before[: 4 * config.word_bytes])
    assert not (await image.dump(4 * config.word_bytes, config.word_bytes)).any()
    await image.check(5 * config.word_bytes, before[5 * config.word_bytes : 6 * config.word_bytes])
    image.error(0, 0, 0, OKAY)
    image.error(1, 0, 0, OKAY)
    assert (await port.read(config.words - 1))[3] == [OKAY]
    assert (await port.read(config.words))[3] == [DECERR]
    assert (await port.write(config.words, [0]))[1] == DECERR
    assert (await port.read(2))[3] == [OKAY]
    assert image.violations == []


@cocotb.test()
async def notices_broken_rules(dut):
    config, port, image = await _single(dut)
    size = config.word_bytes.bit_length() - 1
    for fields in ({"burst": 0}, {"burst": 2}, {"size": size - 1}):
        await port.transfer("ar", addr=0, len=0, **fields)
        await _settle(dut, image)
        assert image.violations == [Rule.KIND]
        await image.clear_counters()
        assert image.violations == []
        port._set("arburst", INCR)
        port._set("arsize", size)
    await port.read(4096 // config.word_bytes - 2, 2)
    assert image.violations == []
    await port.read(4096 // config.word_bytes - 1, 2)
    assert image.violations == [Rule.BOUNDARY]
    await image.clear_counters()
    await port.write(0, [1, 2], last=0)
    assert image.violations == [Rule.LAST]
    await image.clear_counters()
    image.stall(255 / 256, "ar")
    port._set("araddr", 0)
    port._set("arlen", 0)
    await cycles(dut, 2)
    port._set("arvalid", 1)
    await cycles(dut, 2)
    port._set("araddr", 64)
    await cycles(dut, 3)
    assert image.violations == [Rule.HELD]


@cocotb.test()
async def survives_a_reset(dut):
    config, port, image = await _single(dut)
    await image.load({0: bytes([7] * 64 * config.word_bytes)})
    await port.transfer("ar", addr=0, len=63, id=1)
    await port.transfer("aw", addr=0, len=63, id=1)
    await port.transfer("w", data=9, last=0)
    await cycles(dut, 12)
    await reset(dut)
    await cycles(dut, 40)
    assert image.idle and not port.get("rvalid") and not port.get("bvalid")
    _, _, words, _ = await port.read(1, 2)
    assert words == [int.from_bytes(bytes([7] * config.word_bytes), "little")] * 2
    await image.check(0, (9).to_bytes(config.word_bytes, "little") + bytes([7] * config.word_bytes))
    assert (await port.write(1, [3, 4]))[1] == OKAY
    assert (await port.read(1, 2))[2] == [3, 4]


async def _traffic(dut):
    for name in ("read", "write", "random", "length"):
        getattr(dut, name).value = 0
    return await _bench(dut, "dram")


@cocotb.test()
async def traffic_writes_what_it_should(dut):
    config, image = await _traffic(dut)
    image.stall(params()["stall"])
    dut.length.value = 3
    dut.read.value = dut.write.value = 1
    while image.counters["write_useful"] < config.words * config.word_bytes // 2:
        await cycles(dut, 200)
    dut.read.value = dut.write.value = 0
    await _settle(dut, image)
    expected = np.zeros((config.words // 2, config.word_bytes // 4), "<u4")
    expected[:, 0] = np.arange(config.words // 2)
    await image.check(0, expected.tobytes())
    assert image.violations == []


@cocotb.test()
async def stalls_take_their_share(dut):
    config, image = await _traffic(dut)
    dut.length.value = 15
    dut.read.value = 1
    for share in (0.25, 0.75):
        image.stall(share, "r")
        await cycles(dut, 200)
        await image.clear_counters()
        await cycles(dut, 4000)
        words = image.counters["read_useful"] / config.word_bytes
        assert abs(words / 4000 - (1 - share)) < 0.04, words


@cocotb.test()
async def gives_its_bandwidth(dut):
    """Shares of the peak, of the bus or of the part, that each kind of traffic reaches; written to a file."""
    config, image = await _traffic(dut)
    span = params()["cycles"]
    peak = config.word_bytes * min(1.0, config.ratio)
    table = {}
    kinds = params()["kinds"]
    for name, (read, write, is_random, size) in kinds.items():
        dut.length.value = max(1, size // config.word_bytes) - 1
        dut.random.value = is_random
        dut.read.value, dut.write.value = read, write
        await cycles(dut, 300)
        await image.clear_counters()
        await cycles(dut, span)
        counters = image.counters
        dut.read.value = dut.write.value = 0
        while not image.idle:
            await cycles(dut, 1)
        useful = counters["read_useful"] + counters["write_useful"]
        bursts = counters["row_hits"] + counters["row_misses"] + counters["row_opens"]
        table[name] = {
            "useful": useful / counters["cycles"] / peak,
            "busy": counters["busy"] / counters["cycles"],
            "hits": counters["row_hits"] / max(1, bursts),
        }
        cocotb.log.info("%s: %s", name, table[name])
    Path(params()["file"]).write_text(json.dumps(table))
    assert image.violations == []


@cocotb.test()
async def loads_and_runs_fast(dut):
    config, image = await _traffic(dut)
    size = config.words * config.word_bytes
    content = np.frombuffer(rng("speed").randbytes(size), np.uint8)
    loading = time.process_time()
    await image.load({0: content})
    loaded = time.process_time()
    await image.check(0, content)
    checked = time.process_time()
    cocotb.log.info("%d bytes: loaded in %.2f s, checked in %.2f s", size, loaded - loading, checked - loaded)
    dut.length.value = 15
    dut.read.value = dut.write.value = 1
    began = time.process_time()
    await cycles(dut, params()["cycles"])
    rate = params()["cycles"] / (time.process_time() - began)
    cocotb.log.info("%d cycles per CPU second", rate)
    assert checked - loading < params()["seconds"], f"{checked - loading:.1f} CPU s for {size} bytes"
    assert rate >= params()["minimum"], f"{rate:.0f} cycles per CPU second"
