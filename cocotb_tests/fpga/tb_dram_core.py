"""Runs inside the simulator: a DRAM controller at the pins of a timed memory."""

import json
from dataclasses import replace
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Combine

from cocotb_tests.fpga.dram_board import Rule, broken_rules
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import PERIOD_NS, cycles, reset, start, with_timeout
from fpga.dram import CSR_BASE, Controller, ControllerConfig, initialize
from golden.errors import UserError


class Bus:
    """A Wishbone port: single accesses."""

    def __init__(self, dut, prefix):
        self.dut, self.prefix = dut, prefix
        self.signals = {name: getattr(dut, f"{prefix}__{name}") for name in ("adr", "dat_w", "sel", "cyc", "stb", "we")}
        self.answer, self.ack = (getattr(dut, f"{prefix}__{name}") for name in ("dat_r", "ack"))
        for signal in self.signals.values():
            signal.value = 0

    async def access(self, word, data=None, strobes=15):
        values = {"adr": word, "dat_w": data or 0, "sel": strobes, "cyc": 1, "stb": 1, "we": int(data is not None)}
        for name, value in values.items():
            self.signals[name].value = value
        await cycles(self.dut, 1)
        while not int(self.ack.value):
            await cycles(self.dut, 1)
        self.signals["cyc"].value = self.signals["stb"].value = 0
        return int(self.answer.value) if data is None else None


class AsyncHost:
    """What the host sees: memory, and registers of the controller."""

    def __init__(self, dut):
        self.memory, self.registers = Bus(dut, "host"), Bus(dut, "ctrl")

    def _bus(self, address):
        return (self.registers, address - CSR_BASE) if address >= CSR_BASE else (self.memory, address)

    async def read(self, address, words):
        bus, offset = self._bus(address)
        return [await bus.access(offset // 4 + n) for n in range(words)]

    async def write(self, address, words):
        bus, offset = self._bus(address)
        for n, word in enumerate(words):
            await bus.access(offset // 4 + n, int(word))


class Host:
    """The same as the object without coroutines that programs of the host have; for a thread."""

    def __init__(self, host):
        self.read, self.write = cocotb.task.resume(host.read), cocotb.task.resume(host.write)


def the_controller():
    """As test_dram.py simulates it, with pauses that are shorter where the memory's is."""
    controller = Controller.generate(ControllerConfig(**params()["config"]))
    quicker = params()["quicker"]
    steps = tuple(replace(step, cycles=step.cycles // quicker) for step in controller.sequence)
    return replace(controller, sequence=steps)


async def begin(dut):
    """Both clocks begin with a rising edge at once."""
    Clock(dut.clk2x, PERIOD_NS / 2, unit="ns").start()
    dut.clear.value = 0
    host = AsyncHost(dut)
    await start(dut)
    return host


async def clear(dut):
    dut.clear.value = 1
    await cycles(dut, 1)
    dut.clear.value = 0
    await cycles(dut, 1)


async def set_up(dut):
    """The host, with the memory initialized, and nothing broken yet."""
    host = await begin(dut)
    await cocotb.task.bridge(initialize)(Host(host), the_controller())
    await clear(dut)  # an earlier test may have left the memory without refreshes
    return host


def broken(dut):
    return broken_rules(int(dut.broken.value))


def master_of(dut):
    from cocotbext.axi import AxiBus, AxiMaster

    master = AxiMaster(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, max_burst_len=16)
    for half in (master.read_if, master.write_if):
        half.log.setLevel("WARNING")
    return master


def channels(master):
    return {
        "aw": master.write_if.aw_channel,
        "w": master.write_if.w_channel,
        "b": master.write_if.b_channel,
        "ar": master.read_if.ar_channel,
        "r": master.read_if.r_channel,
    }


@cocotb.test()
async def initializes(dut):
    master_of(dut)  # drives what would be unknown
    host = await begin(dut)
    await cocotb.task.bridge(initialize)(Host(host), the_controller())
    assert broken(dut) == []
    assert int(dut.ready.value) == 1
    await host.write(0x100_0000, [0xC0FFEE])
    before = int(dut.refreshes.value)
    await cycles(dut, 4 * the_controller().refresh_cycles + 20)
    assert int(dut.refreshes.value) - before in (4, 5)
    assert await host.read(0x100_0000, 1) == [0xC0FFEE]
    assert broken(dut) == []


@cocotb.test()
async def cannot_read(dut):
    """Words come when they are not looked at: others are found, or none."""
    master_of(dut)
    host = await begin(dut)
    try:
        await cocotb.task.bridge(initialize)(Host(host), the_controller())
    except (UserError, ValueError) as error:
        cocotb.log.info("%s", error)
        return
    raise AssertionError("the memory could be read")


@cocotb.test()
async def hastily(dut):
    master_of(dut)
    host = await begin(dut)
    controller = the_controller()
    steps = tuple(replace(step, cycles=0) for step in controller.sequence)
    await cocotb.task.bridge(initialize)(Host(host), replace(controller, sequence=steps))
    assert broken(dut) == [Rule.ORDER]


class Windows:
    """Pieces of memory, here and there, and what they should hold."""

    def __init__(self, bases):
        self.bases, self.bytes = bases, params()["window"]
        self.content = {base: bytearray(self.bytes) for base in bases}

    def place(self, draw, most):
        base = draw.choice(self.bases)
        length = draw.randint(1, most)
        return base, draw.randrange(self.bytes - length + 1), length


@cocotb.test()
async def carries_content(dut):
    """Random accesses of both ports at once, from any byte on, with pauses on all channels."""
    master = master_of(dut)
    host = await set_up(dut)
    size, window = the_controller().memory_bytes, params()["window"]
    for stall in params()["stalls"]:
        draw = rng("content", stall)
        for name, channel in channels(master).items():
            channel.set_pause_generator(stalls.named(stall, f"{stall}{name}") or iter(lambda: False, None))
        last = size // window - 1
        bases = [window * page for page in (0, last, *draw.sample(range(1, last), 7))]
        parts = [Windows(bases[n::3]) for n in range(3)]  # writes at once must not meet
        for part in parts:
            for base in part.bases:
                await master.write(base, bytes(window))

        async def work(part, pick):
            for _ in range(params()["accesses"]):
                base, offset, length = part.place(pick, pick.choice((4, 64, 300)))
                if pick.random() < 0.5:
                    content = pick.randbytes(length)
                    part.content[base][offset : offset + length] = content
                    await master.write(base + offset, content, awid=pick.randrange(8))
                else:
                    found = await master.read(base + offset, length, arid=pick.randrange(8))
                    assert bytes(found.data) == part.content[base][offset : offset + length]

        async def serve(part, pick):
            for _ in range(2 * params()["accesses"]):
                base, offset, _ = part.place(pick, 1)
                offset &= ~3
                if pick.random() < 0.5:
                    content, strobes = pick.randbytes(4), pick.randrange(16)
                    for n in range(4):
                        if strobes >> n & 1:
                            part.content[base][offset + n] = content[n]
                    await host.memory.access((base + offset) // 4, int.from_bytes(content, "little"), strobes)
                else:
                    [found] = await host.read(base + offset, 1)
                    assert found.to_bytes(4, "little") == part.content[base][offset : offset + 4]

        tasks = [cocotb.start_soon(work(part, rng(stall, n))) for n, part in enumerate(parts[:2])]
        tasks.append(cocotb.start_soon(serve(parts[2], rng(stall, "host"))))
        await with_timeout(Combine(*tasks), 400_000)
        # each port sees what the other one has written
        for part in parts[:2]:
            for base, content in part.content.items():
                for offset in range(0, window, window // 8):
                    [found] = await host.read(base + offset, 1)
                    assert found.to_bytes(4, "little") == content[offset : offset + 4]
        for base, content in parts[2].content.items():
            assert bytes((await master.read(base, window)).data) == content
        assert broken(dut) == []
    assert int(dut.refreshes.value) >= 3


@cocotb.test()
async def answers_in_order(dut):
    """Reads of all ids at once, to rows of all banks."""
    master = master_of(dut)
    await set_up(dut)
    row = 1024
    contents = [rng("order", n).randbytes(64) for n in range(32)]
    for n, content in enumerate(contents):
        await master.write(n * 5 * row, content)
    ids = []

    async def watch():
        while True:
            await cycles(dut, 1)
            if int(dut.axi__rvalid.value) and int(dut.axi__rready.value) and int(dut.axi__rlast.value):
                ids.append(int(dut.axi__rid.value))

    watching = cocotb.start_soon(watch())
    reads = [master.init_read(n * 5 * row, 64, arid=n % 8) for n in range(32)]
    for event, content in zip(reads, contents, strict=True):
        await event.wait()
        assert bytes(event.data.data) == content
    await cycles(dut, 2)
    watching.cancel()
    assert ids == [n % 8 for n in range(32)]
    assert broken(dut) == []


@cocotb.test()
async def ports_wait_until_ready(dut):
    master = master_of(dut)
    host = await begin(dut)
    pending = [
        cocotb.start_soon(master.read(64, 64)),
        cocotb.start_soon(master.write(256, bytes(range(64)))),
        cocotb.start_soon(host.memory.access(100, 0x5EED)),
    ]
    await cycles(dut, 2000)
    assert not any(task.done() for task in pending)
    assert [int(getattr(dut, name).value) for name in ("activates", "reads", "writes", "refreshes")] == [0] * 4
    # `initialize` tries the memory, where these accesses would meet; so its steps alone
    controller = the_controller()
    for step in (*controller.sequence, *controller.opening):
        await host.write(step.address, [step.value])
        await cycles(dut, step.cycles)
    for task in pending:
        await task
    assert bytes((await master.read(256, 64)).data) == bytes(range(64))
    assert await host.read(400, 1) == [0x5EED]
    assert broken(dut) == []


@cocotb.test()
async def survives_a_reset(dut):
    """In the middle of traffic; then the memory is initialized again. It is not refreshed meanwhile."""
    master = master_of(dut)
    host = await set_up(dut)
    tasks = [cocotb.start_soon(master.write(4096 * n, bytes(600))) for n in range(3)]
    tasks += [cocotb.start_soon(master.read(4096 * n, 600)) for n in range(3)]
    await cycles(dut, 60)
    for task in tasks:
        task.cancel()
    await reset(dut)
    assert int(dut.ready.value) == 0
    await cycles(dut, 100)
    assert not int(dut.axi__rvalid.value) and not int(dut.axi__bvalid.value)
    assert broken(dut) == []
    await cocotb.task.bridge(initialize)(Host(host), the_controller())
    assert broken(dut) == [Rule.REFRESH]
    await clear(dut)
    content = rng("reset").randbytes(600)
    await master.write(4096, content)
    assert bytes((await master.read(4096, 600)).data) == content
    assert broken(dut) == []


@cocotb.test()
async def single_accesses(dut):
    """Cycles from a read's address to its first word, and from a write's word to its answer."""
    master = master_of(dut)
    await set_up(dut)
    figures = {}
    row = 1 << 12  # of the same bank

    async def time(what, channel, action):
        """Not near a refresh."""
        before = int(dut.refreshes.value)
        while int(dut.refreshes.value) == before:
            await cycles(dut, 1)
        await cycles(dut, 30)
        if what != "closed row":
            await master.read(0, 4)
            await cycles(dut, 30)
        task = cocotb.start_soon(action)
        begin = None
        for count in range(200):
            await cycles(dut, 1)
            if begin is None and int(getattr(dut, f"axi__{'ar' if channel == 'r' else 'w'}valid").value):
                begin = count
            if int(getattr(dut, f"axi__{channel}valid").value):
                break
        await task
        return count - begin

    for what, address in (("open row", 8), ("other row", row), ("closed row", 0)):
        figures[f"read, {what}"] = await time(what, "r", master.read(address, 4))
        figures[f"write, {what}"] = await time(what, "b", master.write(address, bytes(4)))
    cocotb.log.info("cycles: %s", figures)
    assert figures == params()["figures"], figures
    assert broken(dut) == []


@cocotb.test()
async def gives_its_bandwidth(dut):
    """Cycles per word of each kind of traffic, written to a file."""
    for name in ("read", "write", "random", "length"):
        getattr(dut, name).value = 0
    await set_up(dut)
    span = params()["cycles"]
    table = {}
    dut.length.value = 15
    dut.write.value = 1
    while int(dut.words_written.value) < span + 1000:  # what the first kind reads
        await cycles(dut, 500)
    dut.write.value = 0
    for name, (read, write, is_random, size, _) in params()["kinds"]:
        dut.length.value = size // 4 - 1
        dut.random.value = is_random
        dut.read.value, dut.write.value = read, write
        await cycles(dut, 400)
        await clear(dut)
        await cycles(dut, span)
        assert table or int(dut.wrong.value) == 0
        words = int(dut.words_read.value) + int(dut.words_written.value)
        table[name] = {
            "cycles_per_word": span / words,
            "megabytes_per_second": words * 4 * params()["config"]["clock_hz"] / span / 1e6,
            "activates_per_kiloword": 1000 * int(dut.activates.value) / words,
            "refreshes": int(dut.refreshes.value),
        }
        dut.read.value = dut.write.value = 0
        await cycles(dut, 200)
        assert broken(dut) == [], name
        cocotb.log.info("%s: %s", name, table[name])
    Path(params()["file"]).write_text(json.dumps(table))
