"""The accelerator: the attention core on the KV cache in memory. Submodules and connections, no logic."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

from rtl.cache.cache import KvCache
from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.mha.core import MhaCore

__all__ = ["CachedAttention"]

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
