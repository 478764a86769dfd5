"""Part of the control: a GEMM core and what drives it."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect

from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.control._gemm_engine import GemmEngine
from rtl.gemm.core import GemmCore

__all__ = ["GemmUnit"]


class GemmUnit(wiring.Component):
    """`GemmEngine` with its `GemmCore`: the members of the former but for ``gemm``."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self._core = GemmCore(config)
        self._engine = GemmEngine(config, self._core)
        super().__init__({name: member for name, member in self._engine.signature.members.items() if name != "gemm"})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine = engine = self._engine
        m.submodules.core = core = self._core
        connect(m, engine.gemm, core)
        expose(m, engine, self, self.signature.members)
        return m
