"""A GEMM core with its engine and a scratchpad, for which a test bench plays memory and the other cores."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.config import AcceleratorConfig
from rtl.control._gemm_unit import GemmUnit
from rtl.control.scratchpad import Scratchpad

__all__ = ["CORE", "GemmSystem"]

#: the engine's number; the ports of core 0 belong to the test bench
CORE = 1
_ENGINE = ("i_command", "i_go", "o_done", "o_read", "i_read")


class GemmSystem(wiring.Component):
    """Engine, core and scratchpad.

    Members
    -------
    i_command, i_go, o_done, o_read, i_read, outside : of the engine
    i_word, o_word, i_write, i_magnitude, i_ask, o_magnitude : of the scratchpad: core 0's ports
    scratch_outside : of the scratchpad
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._engine = GemmUnit(config)
        self._scratchpad = Scratchpad(config)
        members = {name: self._engine.signature.members[name] for name in _ENGINE}
        self._scratch = {
            "i_word": "i_read",
            "o_word": "o_read",
            "i_write": "i_write",
            "i_magnitude": "i_magnitude",
            "i_ask": "i_ask",
            "o_magnitude": "o_magnitude",
        }
        for name, port in self._scratch.items():
            members[name] = Out(self._scratchpad.signature.members[port].signature)
        super().__init__({**members, "outside": In(1), "scratch_outside": Out(config.gemm.cores + 3)})

    @property
    def shapes(self) -> dict[str, Any]:
        """Payloads of the streams."""
        members = self.signature.members
        return {
            name: member.signature.members["payload"].shape for name, member in members.items() if not member.is_port
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine = engine = self._engine
        m.submodules.scratchpad = scratchpad = self._scratchpad
        m.d.comb += [
            engine.core.eq(CORE),
            engine.outside.eq(self.outside),
            self.scratch_outside.eq(scratchpad.outside),
        ]
        for name in _ENGINE:
            connect(m, flipped(getattr(self, name)), getattr(engine, name))
        for name, port in self._scratch.items():
            connect(m, flipped(getattr(self, name)), getattr(scratchpad, port)[0])
        for source, target in (
            (engine.o_row_read, scratchpad.i_read[2 * CORE]),
            (engine.i_row, scratchpad.o_read[2 * CORE]),
            (engine.o_residual_read, scratchpad.i_read[2 * CORE + 1]),
            (engine.i_residual, scratchpad.o_read[2 * CORE + 1]),
            (engine.o_ask, scratchpad.i_ask[CORE]),
            (engine.i_magnitude, scratchpad.o_magnitude[CORE]),
            (engine.o_write, scratchpad.i_write[CORE]),
            (engine.o_magnitude, scratchpad.i_magnitude[CORE]),
        ):
            connect(m, source, target)
        return m
