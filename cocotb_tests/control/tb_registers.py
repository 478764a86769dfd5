"""Coroutines of the Registers tests; the host is cocotbext-axi's."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import cocotb
from cocotb.triggers import Combine, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp
from systemrdl.node import FieldNode, RegNode

from cocotb_tests.control.rings import geometry
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.shapes import placed
from cocotb_tests.lib.signals import bits_reader
from cocotb_tests.lib.tally import Tally
from rtl.control.registers import ADDRESS_BITS, addresses, register_tree, settings_layout, status_layout

WORD = 4
CLEARS = ("control.soft_reset", "control.clear_counters")


class Field:
    """A field of the description, and what the host should see of it."""

    def __init__(self, node: FieldNode, top: str, settings: Any, status: Any) -> None:
        self.path = node.get_path().removeprefix(f"{top}.")
        self.low, self.width = node.low, node.width
        self.readable, self.writable = node.is_sw_readable, node.is_sw_writable
        self.pulse, self.interrupt = node.get_property("singlepulse"), node.get_property("intr")
        self.counter = bool(node.get_property("counter"))
        self.cleared = node.get_property("hwclr") is not False
        self.reset = self.value = node.get_property("reset") or 0
        self.setting, self.status = placed(settings, self.path), placed(status, self.path)


class CounterTally(Tally):
    """What the counters should have: it starts anew with the pulses that clear them."""

    def __init__(self, dut: Any, bits: Iterable[int], pulses: list[int]) -> None:
        super().__init__(dut, "status", bits)
        self._settings = bits_reader(dut.settings)
        self._pulses = [len(dut.settings) - 1 - bit for bit in pulses]

    def edge(self, cycle: int) -> None:
        """Count, or forget."""
        super().edge(cycle)
        text = self._settings()
        if any(text[place] == "1" for place in self._pulses):
            self.restart()


class Bench:
    """The registers, their host and a model."""

    def __init__(self, dut: Any, stall: str = "none") -> None:
        self.dut, self.draw = dut, rng("bench", stall)
        config = geometry(**params()["geometry"])
        settings, status = settings_layout(config), status_layout(config)
        self.status_bits = status.size
        self.at = addresses(config)
        top = register_tree(config)
        self.fields: dict[str, list[Field]] = {}
        self.sizes: dict[str, int] = {}
        for node in top.descendants(unroll=True):
            if isinstance(node, RegNode):
                name = node.get_path().removeprefix(f"{top.inst_name}.")
                self.fields[name] = [Field(field, top.inst_name, settings, status) for field in node.fields()]
                self.sizes[name] = node.size
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "axil_"), dut.clk, dut.rst)
        if stall != "none":
            channels = (*vars(self.master.write_if).values(), *vars(self.master.read_if).values())
            for n, channel in enumerate(c for c in channels if hasattr(c, "set_pause_generator")):
                channel.set_pause_generator(stalls.named(stall, n))
        dut.status.value = 0
        counters = [field for field in self.all_fields() if field.counter]
        pulses = [field for field in self.fields["control"] if field.path in CLEARS]
        self.tally = CounterTally(dut, (field.status[0] for field in counters), [p.setting[0] for p in pulses])
        self.counters = {field.path: n for n, field in enumerate(counters)}

    def all_fields(self) -> Iterator[Field]:
        """Of all registers."""
        for fields in self.fields.values():
            yield from fields

    def clear(self) -> None:
        """A reset."""
        for field in self.all_fields():
            field.value = field.reset

    def drive(self, value: int | None = None) -> None:
        """Give the hardware's side a value, any by default; interrupts stay where they are."""
        value = self.draw.getrandbits(self.status_bits) if value is None else value
        held = sum((1 << width) - 1 << bit for bit, width in (f.status for f in self.all_fields() if f.interrupt))
        before = int(self.dut.status.value)
        self.dut.status.value = before & held | value & ~held
        self.driven = before & held | value & ~held

    def expected(self, name: str) -> int:
        """What a register reads as."""
        word = 0
        for field in self.fields[name]:
            value = field.value
            if field.status and not field.interrupt:
                bit, width = field.status
                value = self.driven >> bit & (1 << width) - 1
            word |= value << field.low if field.readable else 0
        return word

    async def read(self, name: str) -> None:
        """Read a register; a counter has what it had at the beginning or later."""
        counter = next((self.counters[field.path] for field in self.fields[name] if field.counter), None)
        least = None if counter is None else self.tally.counts[counter] - 2  # events take two cycles
        got = await self.master.read(self.at[name], self.sizes[name])
        value = int.from_bytes(got.data, "little")
        assert got.resp == AxiResp.OKAY, name
        if counter is not None:
            assert least <= value <= self.tally.counts[counter], f"{name}: {value}, {least} before"
        else:
            assert value == self.expected(name), f"{name}: {value:#x}"

    def write(self, name: str, value: int, mask: int = 0xFFFFFFFF) -> bool:
        """Do a write in the model; whether the register can be written."""
        fields = [field for field in self.fields[name] if field.writable]
        clears = False
        for field in fields:
            part, bits = mask >> field.low & (1 << field.width) - 1, value >> field.low
            if field.interrupt:
                field.value &= ~(bits & part)
            elif field.pulse:
                clears |= field.path == "control.soft_reset" and bool(bits & part)
            else:
                field.value = field.value & ~part | bits & part
        for field in self.all_fields() if clears else ():
            field.value = 0 if field.cleared else field.value
        return bool(fields)

    def check_settings(self) -> None:
        """What the hardware sees of the storage."""
        got = int(self.dut.settings.value)
        for field in self.all_fields():
            if field.setting:
                bit, width = field.setting
                expected = 0 if field.pulse else field.value
                assert got >> bit & (1 << width) - 1 == expected, f"{field.path}, expected {expected:#x}"

    async def read_all(self) -> None:
        """Every register, in any order."""
        for name in self.draw.sample(sorted(self.fields), len(self.fields)):
            await self.read(name)


@cocotb.test()
async def reads_every_register(dut):
    """After a reset, and with all kinds of values of the hardware."""
    bench = Bench(dut)
    await start(dut)
    for value in (0, (1 << bench.status_bits) - 1, None, None):
        bench.drive(value)
        bench.check_settings()
        await bench.read_all()


@cocotb.test()
@cocotb.parametrize(("stall", ["none", "random", "heavy", "bursty"]))
async def matches_a_model(dut, stall):
    """Writes of any bytes and reads of any address, at once."""
    bench = Bench(dut, stall)
    await start(dut)
    names = {address: name for name, address in bench.at.items() if bench.sizes[name] == WORD}
    wide = {address + n for name, address in bench.at.items() if bench.sizes[name] > WORD for n in (0, WORD)}
    writable = [address for address, name in names.items() if any(field.writable for field in bench.fields[name])]

    def any_address() -> int:
        own = [*writable, *names] if bench.draw.random() < 0.8 else range(0, 1 << ADDRESS_BITS, WORD)
        return bench.draw.choice([address for address in own if address not in wide] if own else [0])

    for _ in range(params()["accesses"]):
        bench.drive()
        target, source = any_address(), any_address()
        first = bench.draw.randrange(WORD)
        content = bench.draw.randbytes(bench.draw.randint(1, WORD - first))
        if source == target or bench.fields.get(names.get(target, "")) == bench.fields["control"]:
            source = bench.at["id"]  # does not depend on what is written
        counts = any(field.counter for field in bench.fields.get(names.get(source, ""), ()))
        expected = bench.expected(names[source]) if source in names and not counts else None
        writing = cocotb.start_soon(bench.master.write(target + first, content))
        reading = cocotb.start_soon(bench.master.read(source, WORD))
        await Combine(writing, reading)
        value, mask = (int.from_bytes(part, "little") << 8 * first for part in (content, b"\xff" * len(content)))
        allowed = target in names and bench.write(names[target], value, mask)
        refusal = AxiResp.SLVERR if target in names else AxiResp.DECERR
        assert writing.result().resp == (AxiResp.OKAY if allowed else refusal), hex(target)
        got = reading.result()
        assert got.resp == (AxiResp.OKAY if source in names else AxiResp.DECERR), hex(source)
        assert expected is None or int.from_bytes(got.data, "little") == expected, names[source]
        await cycles(dut, 2)
        bench.check_settings()
    await bench.read_all()
    with_words = sorted(wide)
    for address in with_words:
        assert (await bench.master.write(address, bytes(WORD))).resp == AxiResp.SLVERR


@cocotb.test()
async def wide_registers_are_read_at_once(dut):
    """The upper word is that of the time at which the lower one was read."""
    bench = Bench(dut)
    await start(dut)
    for name in [name for name, size in bench.sizes.items() if size > WORD] * 3:
        bench.drive()
        expected = bench.expected(name)
        low = await bench.master.read(bench.at[name], WORD)
        bench.drive()
        await cycles(dut, bench.draw.randint(0, 3))
        high = await bench.master.read(bench.at[name] + WORD, WORD)
        assert int.from_bytes(low.data + high.data, "little") == expected, name


@cocotb.test()
async def pulses_last_a_cycle(dut):
    """Each pulse by itself; a soft reset takes the heads of all rings back, and nothing else."""
    bench = Bench(dut)
    await start(dut)
    for name in [name for name in bench.at if any(field.writable for field in bench.fields[name])]:
        value = bench.draw.getrandbits(32)
        if name != "control":
            await bench.master.write(bench.at[name], value.to_bytes(WORD, "little"))
            bench.write(name, value)
    await bench.master.write(bench.at["control"], b"\x01")
    bench.write("control", 1)
    for pulse in [field for field in bench.fields["control"] if field.pulse]:
        bit, _ = pulse.setting
        writing = cocotb.start_soon(bench.master.write(bench.at["control"], bytes([1 << pulse.low | 1])))
        seen = 0
        for _ in range(12):
            await RisingEdge(dut.clk)
            settings = int(dut.settings.value)
            others = [field.setting[0] for field in bench.fields["control"] if field.pulse and field is not pulse]
            seen += settings >> bit & 1
            assert not any(settings >> other & 1 for other in others)
        assert seen == 1
        await writing
        bench.write("control", 1 << pulse.low | 1)
        bench.check_settings()
        bench.drive(0)
        await cycles(dut, 2)
        await bench.read_all()


@cocotb.test()
async def interrupts_stay_until_they_are_cleared(dut):
    """Set by a rising edge alone, also in the cycle of a clear; let through one by one."""
    bench = Bench(dut)
    await start(dut)
    places = {field.path.split(".")[1]: (field.low, field.status[0]) for field in bench.fields["irq_status"]}
    assert list(places) == ["idle", "error"]

    async def status() -> int:
        return (await bench.master.read(bench.at["irq_status"], WORD)).data[0]

    assert await status() == 0
    for low, bit in places.values():
        await bench.master.write(bench.at["irq_enable"], bytes([3 & ~(1 << low)]))
        dut.status.value = 1 << bit
        await cycles(dut, 4)
        assert await status() == 1 << low
        assert dut.irq.value == 0
        await bench.master.write(bench.at["irq_enable"], bytes([1 << low]))
        await cycles(dut, 4)
        assert dut.irq.value == 1
        await bench.master.write(bench.at["irq_status"], bytes([3 & ~(1 << low)]))
        assert await status() == 1 << low
        await bench.master.write(bench.at["irq_status"], bytes([1 << low]))
        assert await status() == 0
        await cycles(dut, 2)
        assert dut.irq.value == 0
        dut.status.value = 0
        await cycles(dut, 4)
        assert await status() == 0
    # A second edge in each cycle around a clear.
    low, bit = places["error"]
    kept = 0
    for delay in range(12):
        dut.status.value = 1 << bit
        await cycles(dut, 2)
        dut.status.value = 0
        writing = cocotb.start_soon(bench.master.write(bench.at["irq_status"], bytes([1 << low])))
        await cycles(dut, delay + 1)
        dut.status.value = 1 << bit
        await writing
        await cycles(dut, 3)
        got = await status()
        kept += got >> low & 1
        assert delay < 8 or got == 1 << low
        dut.status.value = 0
        await bench.master.write(bench.at["irq_status"], bytes([3]))
    assert kept >= 8


@cocotb.test()
async def meets_latency(dut):
    """Two cycles from the last of a request to its response."""
    bench = Bench(dut)
    await start(dut)
    reading = cocotb.start_soon(bench.master.read(bench.at["id"], WORD))
    writing = cocotb.start_soon(bench.master.write(bench.at["watchdog"], bytes(WORD)))
    asked: dict[str, int] = {}
    answered: dict[str, int] = {}
    for n in range(20):
        await RisingEdge(dut.clk)
        for request, response in (("ar", "r"), ("aw", "b")):
            if getattr(dut, f"axil__{request}valid").value and getattr(dut, f"axil__{request}ready").value:
                asked[request] = n
            if getattr(dut, f"axil__{response}valid").value:
                answered.setdefault(request, n)
    await Combine(reading, writing)
    assert {name: answered[name] - asked[name] for name in asked} == {"ar": 2, "aw": 2}


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "random")
    await start(dut)
    for _ in range(4):
        for name in bench.draw.sample(sorted(bench.at), 8):
            cocotb.start_soon(bench.master.write(bench.at[name], random.randbytes(WORD)))
            cocotb.start_soon(bench.master.read(bench.at[name], WORD))
        await cycles(dut, bench.draw.randint(1, 40))
        await reset(dut, 10)
        bench.clear()
        bench.drive()
        await cycles(dut, 3)
        bench.check_settings()
        await bench.read_all()
