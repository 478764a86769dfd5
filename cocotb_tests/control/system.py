"""The whole accelerator with a DRAM model behind it, and the host's view of it: registers, memory, events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge, Timer

from cocotb_tests.control.padded import PaddedAttention
from cocotb_tests.lib.bench import PERIOD_NS, cycles
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_image import DramImage
from cocotb_tests.lib.signals import child
from golden.control.commands import Error, queue_names
from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.control.registers import addresses
from rtl.top import Accelerator

__all__ = ["EVENTS", "Event", "Host", "LoggedAccelerator", "QueueError", "Registers"]

#: events that are kept
EVENTS = 1 << 16
POLL_CYCLES = 500


class LoggedAccelerator(wiring.Component):
    """The accelerator, whose attention can read padded rows, and a memory that keeps its events.

    Members
    -------
    padded : of PaddedAttention
    clear : forget all events
    events, index, event : how many there are; the one with a number, two cycles later
    others : of Accelerator, but for ``o_event``
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._attention = PaddedAttention(config)
        self._accelerator = Accelerator(config, attention=self._attention)
        members = dict(self._accelerator.signature.members.items())
        self._event = members.pop("o_event").signature.members["payload"].shape
        super().__init__(
            {
                **members,
                "padded": In(1),
                "clear": In(1),
                "events": Out(32),
                "index": In(range(EVENTS)),
                "event": Out(self._event.size),
            }
        )

    @property
    def event_shape(self) -> data.StructLayout:
        """What ``event`` shows."""
        return self._event

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.accelerator = accelerator = self._accelerator
        expose(m, accelerator, self, [name for name in accelerator.signature.members if name != "o_event"])
        m.submodules.log = log = Memory(shape=self._event.size, depth=EVENTS, init=[])
        write, read = log.write_port(), log.read_port()
        given = accelerator.o_event
        full = Signal()
        m.d.comb += [
            self._attention.padded.eq(self.padded),
            full.eq(self.events >= EVENTS),
            given.ready.eq(1),
            write.en.eq(given.valid & ~full),
            write.addr.eq(self.events),
            write.data.eq(given.payload),
            read.addr.eq(self.index),
            self.event.eq(read.data),
        ]
        with m.If(self.clear):
            m.d.sync += self.events.eq(0)
        with m.Elif(given.valid):
            m.d.sync += self.events.eq(self.events + 1)
        return m


class Registers:
    """AXI4-Lite from Python, one access at a time; nothing runs between them."""

    def __init__(self, dut: Any, config: AcceleratorConfig) -> None:
        self.dut, self.addresses = dut, addresses(config)
        for name in ("awvalid", "wvalid", "arvalid"):
            child(dut, f"axil__{name}").value = 0
        for name in ("bready", "rready"):
            child(dut, f"axil__{name}").value = 1
        child(dut, "axil__wstrb").value = 15

    async def _transfer(self, valid: str, ready: str, **values: int) -> None:
        for name, value in values.items():
            child(self.dut, f"axil__{name}").value = value
        child(self.dut, f"axil__{valid}").value = 1
        while True:
            taken = int(child(self.dut, f"axil__{ready}").value)
            await RisingEdge(self.dut.clk)
            if taken:
                break
        child(self.dut, f"axil__{valid}").value = 0

    async def _answer(self, valid: str, response: str) -> None:
        while not int(child(self.dut, f"axil__{valid}").value):
            await RisingEdge(self.dut.clk)
        assert int(child(self.dut, f"axil__{response}").value) == 0
        self.word = int(child(self.dut, "axil__rdata").value) if valid == "rvalid" else 0
        await RisingEdge(self.dut.clk)

    async def write(self, name: str, value: int) -> None:
        """Write a register by name, such as ``queue[0].head``."""
        await RisingEdge(self.dut.clk)
        await self._transfer("awvalid", "awready", awaddr=self.addresses[name])
        await self._transfer("wvalid", "wready", wdata=value)
        await self._answer("bvalid", "bresp")

    async def read(self, name: str) -> int:
        """Read a register, its lower word if it has two."""
        await RisingEdge(self.dut.clk)
        await self._transfer("arvalid", "arready", araddr=self.addresses[name])
        await self._answer("rvalid", "rresp")
        return self.word


class QueueError(Exception):
    """A queue has stopped."""

    def __init__(self, queue: str, error: Error, detail: int, command: int) -> None:
        super().__init__(f"queue {queue} stopped at command {command}: {error.name}, detail {detail:#x}")
        self.queue, self.error, self.detail, self.command = queue, error, detail, command


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened in a queue, at a cycle since reset."""

    time: int
    queue: int
    kind: int
    tag: int


@dataclass
class Host:
    """Drives a `System` of a `LoggedAccelerator`: registers, memory, rings."""

    dut: Any
    config: AcceleratorConfig
    dram: DramConfig
    registers: Registers = field(init=False)
    image: DramImage = field(init=False)
    heads: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.registers = Registers(self.dut, self.config)
        self.image = DramImage(self.dut, self.dram)
        self.heads = [0] * len(self.queues)
        for name in ("padded", "clear", "index"):
            child(self.dut, name).value = 0

    @property
    def queues(self) -> list[str]:
        """Names of the queues."""
        return queue_names(self.config.gemm.cores)

    async def configure(self, settings: Mapping[str, int], rings: Mapping[int, tuple[int, int]]) -> None:
        """Set registers, and each ring's first line and log2 of its size; then let the queues go."""
        for name, value in settings.items():
            await self.registers.write(name, value)
        for queue, (line, size) in rings.items():
            await self.registers.write(f"queue[{queue}].ring_base", line)
            await self.registers.write(f"queue[{queue}].ring_size", size)
        await self.registers.write("control", 1)

    async def give(self, queue: int, count: int) -> None:
        """So many more commands are in the ring of a queue."""
        self.heads[queue] += count
        await self.registers.write(f"queue[{queue}].head", self.heads[queue] % (1 << 32))

    async def finish(self, limit: int, progress: Callable[[int], None] | None = None) -> None:
        """Until all commands are done.

        Raises `QueueError` when a queue has stopped, `TimeoutError` after ``limit`` cycles.
        """
        begun = 0
        while True:
            await Timer(PERIOD_NS * POLL_CYCLES, unit="ns")
            begun += POLL_CYCLES
            status = await self.registers.read("status")
            if progress:
                progress(sum([await self.registers.read(f"queue[{n}].done") for n in range(len(self.queues))]))
            if status >> 2 & 1:
                raise await self.error()
            if not status & 1:
                return
            if begun > limit:
                raise TimeoutError(f"not done after {limit} cycles: {await self.state()}")

    async def error(self) -> QueueError:
        """The error of the first queue that has one."""
        for n, name in enumerate(self.queues):
            word = await self.registers.read(f"queue[{n}].error")
            if word & 15:
                command = await self.registers.read(f"queue[{n}].error_command")
                return QueueError(name, Error(word & 15), word >> 8, command)
        raise AssertionError("no queue has stopped")

    async def state(self) -> dict[str, str]:
        """How far each queue is, for messages."""
        made = {}
        for n, name in enumerate(self.queues):
            done, status = [await self.registers.read(f"queue[{n}].{part}") for part in ("done", "status")]
            made[name] = f"{done} of {self.heads[n]}, status {status:#x}"
        return made

    async def soft_reset(self) -> None:
        """Reset what is behind the AXI4 port."""
        await self.registers.write("control", 2)
        while await self.registers.read("status") >> 1 & 1:
            await cycles(self.dut, 10)
        self.heads = [0] * len(self.queues)

    async def counters(self) -> dict[str, Any]:
        """All counters: cycles, of each queue, of each requester, and the memory's."""
        made: dict[str, Any] = {"cycles": await self.registers.read("cycles")}
        for n, name in enumerate(self.queues):
            parts = ("busy", "waiting", "idle")
            made[name] = {part: await self.registers.read(f"queue[{n}].{part}") for part in parts}
        for kind in ("read_words", "write_words"):
            ports = sum(name.startswith(f"{kind}[") for name in self.registers.addresses)
            made[kind] = [await self.registers.read(f"{kind}[{n}]") for n in range(ports)]
        made["dram"] = self.image.counters
        return made

    async def clear_counters(self) -> None:
        """Counters, those of memory and events start anew."""
        await self.registers.write("control", 1 | 4)
        await self.image.clear_counters()
        child(self.dut, "clear").value = 1
        await cycles(self.dut, 1)
        child(self.dut, "clear").value = 0

    async def events(self, shape: data.StructLayout) -> list[Event]:
        """What has happened since the counters were cleared; at most `EVENTS`."""
        made = []
        for n in range(min(int(child(self.dut, "events").value), EVENTS)):
            child(self.dut, "index").value = n
            await cycles(self.dut, 3)
            got = shape.from_bits(int(child(self.dut, "event").value))
            numbers = {name: int(getattr(got[name], "value", got[name])) for name in ("time", "queue", "kind", "tag")}
            made.append(Event(**numbers))
        return made


