"""The accelerator with a DRAM model behind it, and the bench's view: pages, writes, queries, all against golden."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, connect, flipped
from numpy.typing import NDArray

from cocotb_tests.cache.page_traffic import Command, apply
from cocotb_tests.lib import stalls
from cocotb_tests.lib.dram import DramModel, DramSignature, attach
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.dram_image import DramImage
from cocotb_tests.lib.signals import child
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.lib.tally import Tally
from cocotb_tests.mha.attention import Query, beats, calibration_words, job_fields, received_rows
from golden.cache.page_table import PageOp, PageStatus, PageTable, Reply
from rtl.cache.cache import KvCache
from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.mha._requests import Fault
from rtl.top import CachedAttention

__all__ = ["Owner", "System", "SystemBench", "Write", "dram_config", "new_page_table"]


def dram_config(config: AcceleratorConfig, part: str = "ideal", **changes: Any) -> DramConfig:
    """A memory that is large enough for the accelerator's pages."""
    layout = config.memory_map
    words = layout.pool_words(False) + layout.pool_words(True)
    sizes = {"data_bits": config.dsq.bus_bits, "addr_bits": config.cache.addr_bits, "words": words}
    return DramConfig(part=part, id_bits=KvCache.id_bits(config), **sizes, **changes)


def new_page_table(config: AcceleratorConfig) -> PageTable:
    """Golden's page table after a reset."""
    c = config.cache
    return PageTable(
        max_sequences=c.max_sequences,
        streams=c.streams,
        max_groups=config.mha.max_groups,
        record_pages=c.record_pages,
        block_pages=c.block_pages,
    )


class System(wiring.Component):
    """An accelerator and its memory: members of both but for the AXI port, the memory's are called ``dram``."""

    def __init__(self, accelerator: wiring.Component, dram: DramConfig) -> None:
        self._accelerator, self._memory = accelerator, DramModel(dram)
        members = {name: member for name, member in self._accelerator.signature.members.items() if name != "axi"}
        super().__init__({**members, "dram": In(DramSignature(dram))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.accelerator = accelerator = self._accelerator
        m.submodules.memory = memory = self._memory
        connect(m, flipped(self.dram), memory.bench)
        attach(m, memory.axi, accelerator.axi)
        expose(m, accelerator, self, [name for name in accelerator.signature.members if name != "axi"])
        return m


@dataclass(frozen=True)
class Owner:
    """Whose cache it is."""

    sequence: int
    stream: int


@dataclass
class Write:
    """What is written: words from one of a page on; byte strobes, all bytes if there are none."""

    owner: Owner
    dense: bool
    group: int
    words: Sequence[int]
    word: int = 0
    commit: bool = False
    strobes: Sequence[int] | None = None
    fields: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = {
            "sequence": self.owner.sequence,
            "stream": self.owner.stream,
            "dense": int(self.dense),
            "group": self.group,
            "word": self.word,
            "count": len(self.words),
            "commit": int(self.commit),
        }


@dataclass(frozen=True, kw_only=True)
class OtherPorts:
    """Reads of pages by group; reads and writes by address."""

    fetch: StreamSource
    fetched: StreamSink
    read: StreamSource
    words: StreamSink
    store: StreamSource
    store_word: StreamSource
    stored: StreamSink


class SystemBench:
    """The streams of a `System`, the memory's content, and golden's page table beside the hardware's."""

    def __init__(self, dut: Any, config: AcceleratorConfig, dram: DramConfig, stall: str = "none") -> None:
        self.dut, self.config, self.layout = dut, config, config.memory_map
        self.members = members = CachedAttention(config).signature.members
        self._shapes = {
            name: member.signature.members["payload"].shape
            for name, member in members.items()
            if member.is_signature and "payload" in member.signature.members
        }

        def source(name: str, shaped: bool = True) -> StreamSource:
            return StreamSource(
                dut, name, shape=self._shapes[name] if shaped else None, stall=stalls.named(stall, name)
            )

        def sink(name: str, shaped: bool = True) -> StreamSink:
            return StreamSink(dut, name, shape=self._shapes[name] if shaped else None, stall=stalls.named(stall, name))

        self.query, self.scan, self.command = source("i_query"), source("i_scan"), source("i_command")
        self.calibration, self.row = source("i_calibration", False), source("i_row", False)
        self.write, self.word = source("i_write"), source("i_word")
        self.o, self.mass, self.status = sink("o", False), sink("o_mass"), sink("o_status")
        self.reply, self.done = sink("o_reply"), sink("o_done")
        self.image = DramImage(dut, dram)
        self.bases = (0, self.layout.pool_words(False))
        self.golden = new_page_table(config)
        self._status_shape = CachedAttention(config).status.shape()
        self._settings_shape = CachedAttention(config).settings.shape()
        self.configure()
        child(dut, "fault_clear").value = 0
        places = {name: self._status_shape[name] for name in ("read_words", "write_words")}
        self._words = {
            name: Tally(dut, "status", range(at.offset, at.offset + at.width)) for name, at in places.items()
        }

    def other_ports(self) -> "OtherPorts":
        """The ports of those that are not attention; of arrays the last one."""

        def shape(name: str) -> Any:
            return self.members[name].signature.members["payload"].shape

        reads, writes = self.config.cache.read_ports - 1, self.config.cache.write_ports - 1
        return OtherPorts(
            fetch=StreamSource(self.dut, "i_fetch", shape=shape("i_fetch")),
            fetched=StreamSink(self.dut, "o_fetch", shape=shape("o_fetch")),
            read=StreamSource(self.dut, f"i_read__{reads}", shape=shape("i_read")),
            words=StreamSink(self.dut, f"o_read__{reads}", shape=shape("o_read")),
            store=StreamSource(self.dut, f"i_store__{writes}", shape=shape("i_store")),
            store_word=StreamSource(self.dut, f"i_store_word__{writes}", shape=shape("i_store_word")),
            stored=StreamSink(self.dut, f"o_stored__{writes}"),
        )

    def configure(self, *, prefetch: bool = True, share: int = 64, pressure: int = 256) -> None:
        """Set the registers."""
        values = {"record_base": self.bases[0], "block_base": self.bases[1]}
        values |= {"prefetch": int(prefetch), "share": share, "pressure": pressure}
        child(self.dut, "settings").value = self._settings_shape.const(values).as_bits()

    @property
    def registers(self) -> Any:
        """The status registers."""
        return self._status_shape.from_bits(int(child(self.dut, "status").value))

    def words(self, kind: str) -> list[int]:
        """Words that were ``read`` or ``write`` since the reset, of each requester."""
        return list(self._words[f"{kind}_words"].counts)

    async def give(self, op: PageOp, sequence: int, *, source: int = 0, stream: int = 0) -> Reply:
        """A command to the page tables of hardware and golden, whose replies are the same."""
        fields = {"op": op, "sequence": sequence, "source": source, "stream": stream}
        self.command.send_nowait([fields])
        (answer,) = await self.reply.recv(1)
        assert not answer["failed"]
        got = answer["reply"]
        numbers = (int(got[name]) for name in ("group", "blocks_end", "page", "other"))
        reply = Reply(PageStatus(got["status"]), *numbers)
        expected = apply(self.golden, Command(op, sequence, source, stream))
        assert reply == expected, f"{op.name} {sequence}: {reply}, expected {expected}"
        return reply

    async def store(self, writes: Iterable[Write], *, error: bool = False) -> list[PageStatus]:
        """Write, one after the other without waiting; the status of each commit. All succeed, or fail if ``error``."""
        writes = list(writes)
        full = (1 << self.config.dsq.bus_bits // 8) - 1
        for write in writes:
            self.write.send_nowait([write.fields])
            strobes = write.strobes or [full] * len(write.words)
            self.word.send_nowait({"data": w, "strb": s} for w, s in zip(write.words, strobes, strict=True))
        statuses = []
        for answer, write in zip(await self.done.recv(len(writes)), writes, strict=True):
            assert bool(answer["error"]) == error, f"{write.fields}: {answer}"
            status = PageStatus(answer["status"])
            if write.commit and not error:
                made = apply(self.golden, Command(PageOp.COMMIT, write.owner.sequence, 0, write.owner.stream))
                assert status == made.status
            statuses.append(status)
        return statuses

    def address(self, owner: Owner, dense: bool, group: int) -> int:
        """Byte address of a group, by golden's page table."""
        page = self.golden.lookup(owner.sequence, dense, group)
        assert page is not None
        word = self.bases[dense] + self.layout.offset(dense, owner.stream, page)
        return word * self.config.dsq.bus_bits // 8

    async def check_memory(self, write: Write) -> None:
        """What was written lies where golden has it."""
        size = self.config.dsq.bus_bits // 8
        content = b"".join(word.to_bytes(size, "little") for word in write.words)
        await self.image.check(self.address(write.owner, write.dense, write.group) + write.word * size, content)

    def ask(self, owner: Owner, query: Query, *, load_calibration: bool = True) -> None:
        """Send a query."""
        owned = {"sequence": owner.sequence, "stream": owner.stream}
        self.query.send_nowait([{"owner": owned, "job": job_fields(query, load_calibration=load_calibration)}])
        if load_calibration:
            self.calibration.send_nowait(calibration_words(query.state.calibration))
        self.row.send_nowait(beats(query.rows, self.config.dsq.lanes))
        self.scan.send_nowait(query.scan)

    async def compare(self, query: Query, where: str, *, fault: Fault = Fault.NONE) -> NDArray[np.int16]:
        """The next output, its masses and status; with a fault of memory only the status counts."""
        c = self.config
        words = await self.o.recv(c.mha.q_heads * c.dsq.row_beats, timeout=2_000_000)
        rows = received_rows(words, c)
        tokens, groups = np.zeros_like(query.token_mass), np.zeros_like(query.group_mass)
        last = not query.token_mass.size and not query.group_mass.any()
        while not last:
            (entry,) = await self.mass.recv(1)
            last = bool(entry["last"])
            (groups if entry["group"] else tokens)[int(entry["index"])] += int(entry["mass"])
        (status,) = await self.status.recv(1)
        assert int(status["fault"].value) == fault.value, f"{where}: {status}"
        if fault is Fault.NONE:
            np.testing.assert_array_equal(rows, query.out, err_msg=where)
            np.testing.assert_array_equal(tokens, query.token_mass, err_msg=where)
            np.testing.assert_array_equal(groups, query.group_mass, err_msg=where)
        return rows

    async def end(self) -> None:
        """Nothing more comes, nothing is left, and no rule of AXI was broken."""
        for port in (self.o, self.mass, self.status, self.reply, self.done):
            await port.expect_nothing(30)
        assert all(
            s.idle for s in (self.query, self.scan, self.command, self.calibration, self.row, self.write, self.word)
        )
        assert self.image.idle
        assert self.image.violations == []
