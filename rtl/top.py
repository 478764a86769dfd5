"""The accelerator: the attention core on the KV cache in memory. Submodules and connections, no logic."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.mha.core import MhaCore

__all__ = ["Accelerator"]

#: between core and cache
INNER = ("o_job", "o_scan", "i_request", "o")
CORE_INNER = ("i_job", "i_scan", "o_request", "i")


class Accelerator(wiring.Component):
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
        connect(m, core.o_request, cache.i_request)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = self._core
        m.submodules.cache = cache = self._cache
        connect(m, cache.o_job, core.i_job)
        connect(m, cache.o_scan, core.i_scan)
        self._connect_requests(m, core, cache)
        connect(m, cache.o, core.i)
        connect(m, flipped(self.i_row), core.i_query)
        for block, inner in ((core, (*CORE_INNER, "i_query")), (cache, INNER)):
            for name, member in block.signature.members.items():
                if name in inner or name not in self.signature.members:
                    continue
                inside, outside = getattr(block, name), getattr(self, name)
                if member.is_port:
                    m.d.comb += outside.eq(inside) if member.flow is wiring.Out else inside.eq(outside)
                elif member.dimensions:
                    for port, end in zip(inside, outside, strict=True):
                        connect(m, port, flipped(end))
                else:
                    connect(m, inside, flipped(outside))
        return m
