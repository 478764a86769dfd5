"""The accelerator: cores, cache, scratchpad and what controls them. Submodules and connections, no logic."""

from typing import Any

from amaranth.hdl import Module, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from golden.control.commands import LINE_BYTES, Queue
from rtl.cache.cache import KvCache
from rtl.common.ports import expose
from rtl.common.stage import Stage
from rtl.config import AcceleratorConfig
from rtl.control._dma_engine import DmaEngine
from rtl.control._dsq_engine import DsqEngine
from rtl.control._gemm_unit import GemmUnit
from rtl.control._mha_engine import MhaEngine
from rtl.control._window import WindowGuard
from rtl.control.axi_gate import AxiGate
from rtl.control.processor import CommandProcessor
from rtl.control.registers import Registers
from rtl.control.scratchpad import Scratchpad
from rtl.emit import SharedModule
from rtl.mha.core import MhaCore

__all__ = ["Accelerator", "CachedAttention"]

#: between core and cache
INNER = ("o_job", "o_scan", "i_request", "o")
CORE_INNER = ("i_job", "i_scan", "o_request", "i")


class CachedAttention(wiring.Component):
    """`MhaCore` and `KvCache`: attention of query after query, of any caches, on records in DRAM.

    Members
    -------
    i_row : ``i_query`` of MhaCore, rows of the queries
    i_calibration, o, o_mass, o_status : of MhaCore
    others : of KvCache
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self._core, self._cache = MhaCore(config), KvCache(config)
        super().__init__(self._members())

    def _members(self) -> dict[str, wiring.Member]:
        core, cache = self._core.signature.members, self._cache.signature.members
        members = {name: member for name, member in cache.items() if name not in INNER}
        members |= {name: member for name, member in core.items() if name not in (*CORE_INNER, "i_query")}
        return {**members, "i_row": core["i_query"]}

    def _connect_requests(self, m: Module, core: MhaCore, cache: KvCache) -> None:
        """Requests of the core, and their words."""
        connect(m, core.o_request, cache.i_request)
        connect(m, cache.o, core.i)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = self._core
        m.submodules.cache = cache = self._cache
        connect(m, cache.o_job, core.i_job)
        connect(m, cache.o_scan, core.i_scan)
        self._connect_requests(m, core, cache)
        connect(m, flipped(self.i_row), core.i_query)
        for block, inner in ((core, (*CORE_INNER, "i_query")), (cache, INNER)):
            members = self.signature.members
            expose(m, block, self, [name for name in block.signature.members if name not in inner and name in members])
        return m


class Accelerator(wiring.Component):
    """Decoder layers of language models on a compressed KV cache, as commands in memory tell.

    Registers and the gate at the AXI port are reset by ``rst`` alone; all else also by the host (register ``control``).

    Parameters
    ----------
    config : raises `ValueError` when its parts do not fit together
    attention : in place of `CachedAttention`

    Members
    -------
    axil : registers, AXI4-Lite, as subordinate
    axi : memory, AXI4, as manager
    irq : of Registers
    o_event : of CommandProcessor
    """

    def __init__(self, config: AcceleratorConfig, *, attention: CachedAttention | None = None) -> None:
        config.check_accelerator()
        self.config = config
        self._registers, self._processor = Registers(config), CommandProcessor(config)
        self._attention = CachedAttention(config) if attention is None else attention
        super().__init__(
            {
                "axil": In(self._registers.axil.signature.flip()),
                "axi": Out(self._attention.axi.signature),
                "irq": Out(1),
                "o_event": Out(self._processor.o_event.signature),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, attention, processor = self.config, self._attention, self._processor
        m.submodules.registers = registers = self._registers
        m.submodules.gate = gate = AxiGate(self.axi.signature)
        reset = ResetInserter(gate.manager_reset)
        scratchpad = Scratchpad(config)
        mha, dsq, dma = MhaEngine(config), DsqEngine(config), DmaEngine(config)
        unit = SharedModule(GemmUnit(config), "gemm")
        gemm = [unit.create() for _ in range(config.gemm.cores)]
        for name, block in {
            "attention": attention,
            "processor": processor,
            "scratchpad": scratchpad,
            "mha": mha,
            "dsq": dsq,
            "dma": dma,
        }.items():
            m.submodules[name] = reset(block)
        connect(m, flipped(self.axil), registers.axil)
        connect(m, attention.axi, gate.i)
        connect(m, gate.o, flipped(self.axi))
        connect(m, processor.o_event, flipped(self.o_event))
        m.d.comb += self.irq.eq(registers.irq)
        self._status(m, gate)
        engines = [mha, dsq, dma, *gemm]
        for q, engine in enumerate(engines):
            connect(m, processor.o_command[q], engine.i_command)
            connect(m, processor.o_go[q], engine.i_go)
            connect(m, engine.o_done, processor.i_done[q])
        self._memory(m, reset, [processor, *engines], [mha, dsq, dma])
        self._scratchpad(m, reset, scratchpad, gemm, {Queue.MHA: mha, Queue.DSQ: dsq, Queue.DMA: dma})
        self._pages(m, reset, mha, dsq)
        for n, block in enumerate(gemm):
            m.submodules[f"gemm_{n}"] = block
            m.d.comb += [block.core.eq(n), block.reset.eq(gate.manager_reset)]
        return m

    def _status(self, m: Module, gate: AxiGate) -> None:
        """Registers to what they set, and what they show."""
        settings, status = self._registers.settings, self._registers.status
        attention, processor = self._attention, self._processor
        cache, report = attention.settings, attention.status
        shift = ceil_log2(LINE_BYTES * 8 // self.config.dsq.bus_bits)
        word = ceil_log2(self.config.dsq.bus_bits // 8)
        m.d.comb += [
            cache.record_base.eq(settings.record_base.line << shift),
            cache.block_base.eq(settings.block_base.line << shift),
            *(cache[name].eq(settings.cache[name]) for name in ("prefetch", "share", "pressure")),
            attention.fault_clear.eq(settings.control.clear_faults),
            processor.settings.eq(settings),
            gate.reset.eq(settings.control.soft_reset),
            status.status.busy.eq(processor.status.busy),
            status.status.resetting.eq(gate.busy),
            status.status.error.eq(processor.status.error),
            status.irq_status.idle.eq(~processor.status.busy),
            status.irq_status.error.eq(processor.status.error),
            status.record_pages_free.count.eq(report.record_pages_free),
            status.block_pages_free.count.eq(report.block_pages_free),
            status.cycles.count.eq(processor.status.cycles),
            status.events_lost.count.eq(processor.status.events_lost),
            status.queue.eq(processor.status.queue),
        ]
        for kind in ("read", "write"):
            fault, shown = report[f"{kind}_fault"], status[f"{kind}_fault"]
            m.d.comb += [
                status.status[f"{kind}_fault"].eq(fault.valid),
                *(shown[name].eq(fault[name]) for name in ("valid", "response", "requester")),
                status[f"{kind}_fault_address"].address.eq(fault.address << word),
            ]
        for name in ("read_words", "read_waits", "write_words"):
            m.d.comb += [end.count.eq(count) for end, count in zip(status[name], report[name], strict=True)]

    def _memory(self, m: Module, reset: ResetInserter, readers: list[Any], writers: list[Any]) -> None:
        """Requests of memory by address, if they lie in the window, and their words."""
        attention, settings = self._attention, self._registers.settings
        outside: dict[int, Any] = {}

        def guard(name: str, n: int, block: Any, request: Any) -> None:
            made = WindowGuard(KvCache.axi_configs(self.config)[0])
            m.submodules[f"{name}_window_{n}"] = reset(made)
            m.d.comb += [made.base.eq(settings.window_base.line), made.end.eq(settings.window_end.line)]
            connect(m, getattr(block, f"o_{name}"), made.i)
            connect(m, made.o, request)
            outside[id(block)] = outside.get(id(block), 0) | made.outside

        for n, block in enumerate(readers):
            guard("read", n, block, attention.i_read[n])
            connect(m, attention.o_read[n], block.i_read)
        for n, block in enumerate(writers):
            guard("write", n, block, attention.i_store[n])
            connect(m, block.o_word, attention.i_store_word[n])
            connect(m, attention.o_stored[n], block.i_written)
        m.d.comb += [block.outside.eq(outside[id(block)]) for block in readers]

    def _scratchpad(
        self, m: Module, reset: ResetInserter, scratchpad: Scratchpad, gemm: list[Any], others: dict[Queue, Any]
    ) -> None:
        """Who reads and writes rows."""
        cores = len(gemm)
        for n, engine in enumerate(gemm):
            for port, name in ((2 * n, "row"), (2 * n + 1, "residual")):
                connect(m, getattr(engine, f"o_{name}_read"), scratchpad.i_read[port])
                connect(m, scratchpad.o_read[port], getattr(engine, f"i_{name}"))
            connect(m, engine.o_ask, scratchpad.i_ask[n])
            connect(m, scratchpad.o_magnitude[n], engine.i_magnitude)
        for queue, block in others.items():
            connect(m, block.o_scratch_read, scratchpad.i_read[2 * cores + queue])
            connect(m, scratchpad.o_read[2 * cores + queue], block.i_scratch_read)
        writers = [(engine, engine.o_write) for engine in gemm]
        writers += [(others[queue], others[queue].o_scratch_write) for queue in (Queue.MHA, Queue.DMA)]
        for n, (block, write) in enumerate(writers):
            for name, source, end in (
                ("write", write, scratchpad.i_write[n]),
                ("magnitude", block.o_magnitude, scratchpad.i_magnitude[n]),
            ):
                if n < cores:  # they check where they write themselves; the others are told by the scratchpad
                    m.submodules[f"gemm_{n}_{name}"] = stage = reset(Stage(end.payload.shape()))
                    connect(m, source, stage.i)
                    source = stage.o
                connect(m, source, end)
        for n, block in enumerate(others.values(), cores):
            m.d.comb += block.scratch_outside.eq(scratchpad.outside[n])

    def _pages(self, m: Module, reset: ResetInserter, mha: MhaEngine, dsq: DsqEngine) -> None:
        """Attention and its caches."""
        attention = self._attention
        connect(m, mha.o_query, attention.i_query)
        connect(m, mha.o_calibration, attention.i_calibration)
        connect(m, mha.o_row, attention.i_row)
        connect(m, mha.o_scan, attention.i_scan)
        connect(m, attention.o, mha.i_out)
        connect(m, attention.o_mass, mha.i_mass)
        connect(m, attention.o_status, mha.i_status)
        connect(m, attention.o_fetch, dsq.i_fetch)
        connect(m, dsq.o_store_word, attention.i_word)
        connect(m, attention.o_done, dsq.i_stored)
        connect(m, attention.o_reply, dsq.i_page)
        asked = {"fetch": attention.i_fetch, "store": attention.i_write, "page": attention.i_command}
        for name, end in asked.items():
            m.submodules[f"{name}_stage"] = stage = reset(Stage(end.payload.shape()))
            connect(m, getattr(dsq, f"o_{name}"), stage.i)
            connect(m, stage.o, end)
