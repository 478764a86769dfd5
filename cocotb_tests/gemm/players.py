"""What `sim.gemm` runs: the core with memories that play its inputs and record its outputs, in HDL."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from cocotb_tests.lib._dram_words import DramWords
from rtl.config import AcceleratorConfig
from rtl.gemm.core import GemmCore

__all__ = ["INPUTS", "OUTPUTS", "RATE_ONE", "CorePlayers"]

#: words that the memories of the streams have
INPUTS = {
    "i_command": 1 << 9,
    "i_row": 1 << 15,
    "i_weight": 1 << 19,
    "i_column": 1 << 13,
    "i_rotary": 1 << 12,
    "i_residual": 1 << 15,
}
OUTPUTS = {"o_result": 1 << 16, "o_row": 1 << 13, "o_done": 1 << 9}
#: a weight word a cycle
RATE_ONE = 256


class CorePlayers(wiring.Component):
    """`GemmCore`, whose inputs come from memories as fast as they are taken, but weights at a given rate.

    Residuals come when they are asked for. Outputs are taken at once. A reset rewinds; memories keep their content.

    Members
    -------
    load, dump : memories of inputs are read from ``<stream>.load``, those of outputs written to ``<stream>.dump``
    go : play
    words_<stream> : of an input: how many words to play; of an output: how many to dump
    weight_rate : weight words in `RATE_ONE` cycles
    count_<stream> : words that were played, or have come
    elements : results that count
    cycles : from the transfer of the first command to that of the last end
    finished : ``words_o_done`` commands have ended
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._core = GemmCore(config)
        members: dict[str, wiring.Member] = {
            "load": In(1),
            "dump": In(1),
            "go": In(1),
            "weight_rate": In(bits_for(RATE_ONE)),
            "elements": Out(32),
            "cycles": Out(32),
            "finished": Out(1),
        }
        for name, words in (INPUTS | OUTPUTS).items():
            members |= {f"words_{name}": In(bits_for(words)), f"count_{name}": Out(bits_for(words))}
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.core = core = self._core
        # A weight word that could not be given is not made up for by two at once.
        budget, asked = Signal(range(4 * RATE_ONE)), Signal(32)
        given = core.i_weight.valid & core.i_weight.ready
        with m.If(self.go):
            m.d.sync += budget.eq(budget + self.weight_rate - (given << bits_for(RATE_ONE - 1)))
            with m.If((budget >= RATE_ONE) & ~given):
                m.d.sync += budget.eq(budget)
        allowed = {
            "i_weight": budget >= RATE_ONE,
            "i_residual": asked != self.count_i_residual,
        }
        m.d.comb += core.o_residual.ready.eq(1)
        m.d.sync += asked.eq(asked + core.o_residual.valid)
        for name, depth in INPUTS.items():
            words, count = self._memory(m, name, depth)
            target = getattr(core, name)
            offered = self.go & (count != getattr(self, f"words_{name}")) & allowed.get(name, 1)
            m.d.comb += [words.r_addr.eq(count), target.payload.eq(words.r_data), target.valid.eq(offered)]
            with m.If(target.valid & target.ready):
                m.d.sync += count.eq(count + 1)
        for name, depth in OUTPUTS.items():
            words, count = self._memory(m, name, depth)
            source = getattr(core, name)
            m.d.comb += [
                source.ready.eq(1),
                words.w_en.eq(source.valid),
                words.w_addr.eq(count),
                words.w_data.eq(source.payload),
                words.w_strb.eq(-1),
            ]
            m.d.sync += count.eq(count + source.valid)
        with m.If(core.o_result.valid):
            m.d.sync += self.elements.eq(self.elements + core.o_result.payload.count)
        with m.If((self.count_i_command != 0) & ~self.finished):
            m.d.sync += self.cycles.eq(self.cycles + 1)
        m.d.comb += self.finished.eq(self.go & (self.count_o_done == self.words_o_done))
        return m

    def _memory(self, m: Module, name: str, depth: int) -> tuple[DramWords, Signal]:
        """The memory of a stream, and its counter."""
        bits = getattr(self._core, name).payload.shape().size
        m.submodules[name] = words = DramWords(words=depth, word_bytes=-(-bits // 8), name=name)
        m.d.comb += [
            words.load.eq(self.load if name in INPUTS else 0),
            words.dump.eq(self.dump if name in OUTPUTS else 0),
            words.last.eq(getattr(self, f"words_{name}") - 1),
        ]
        return words, getattr(self, f"count_{name}")
