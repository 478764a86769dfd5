"""Content of `DramModel`, and what a test bench spoils: errors of addresses, stalls of channels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

__all__ = ["DRAM_SOURCES", "ERROR_RANGES", "DramWords", "error_of", "stalls"]

#: Verilog that every design with a `DramModel` needs: `launch.run(..., sources=DRAM_SOURCES)`
DRAM_SOURCES = (Path(__file__).with_name("dram_array.v"),)
#: address ranges that answer with errors
ERROR_RANGES = 2
_DECERR = 3


class DramWords(wiring.Component):
    """Words that are written at the clock edge and read at once; loaded and dumped as files."""

    def __init__(self, *, words: int, word_bytes: int, name: str) -> None:
        self._words, self._bytes, self._name = words, word_bytes, name
        address = bits_for(words - 1)
        super().__init__(
            {
                "load": In(1),
                "dump": In(1),
                "first": In(address),
                "last": In(address),
                "w_en": In(1),
                "w_addr": In(address),
                "w_data": In(8 * word_bytes),
                "w_strb": In(word_bytes),
                "r_addr": In(address),
                "r_data": Out(8 * word_bytes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.array = Instance(
            "kvo_dram_array",
            p_WORDS=self._words,
            p_ADDR_BITS=len(self.r_addr),
            p_BYTES=self._bytes,
            p_LOAD=f"{self._name}.load",
            p_DUMP=f"{self._name}.dump",
            i_clk=ClockSignal(),
            o_r_data=self.r_data,
            **{f"i_{name}": getattr(self, name) for name in self.signature.members if name != "r_data"},
        )
        return m


def error_of(m: Module, bench: Any, word: Value, words: int) -> Signal:
    """Return the response of a word: DECERR outside the memory, that of an error range, or OKAY."""
    response = Signal(2)
    m.d.comb += response.eq(Mux(word < words, 0, _DECERR))
    for n in range(ERROR_RANGES):
        wanted = getattr(bench, f"error_resp_{n}")
        inside = (word >= getattr(bench, f"error_first_{n}")) & (word <= getattr(bench, f"error_last_{n}"))
        with m.If(inside & (wanted != 0)):
            m.d.comb += response.eq(wanted)
    return response


def stalls(m: Module, bench: Any, channels: Sequence[str], init: int) -> dict[str, Signal]:
    """Return a pseudo-random signal per channel, high in ``stall_<channel>``/256 of the cycles (a 64-bit xorshift)."""
    state, one, two, three = (Signal(64, init=init if n == 0 else 0, name=f"lfsr_{n}") for n in range(4))
    seed = Signal(32)
    m.d.comb += [one.eq(state ^ (state << 13)), two.eq(one ^ (one >> 7)), three.eq(two ^ (two << 17))]
    m.d.sync += [seed.eq(bench.seed), state.eq(three)]
    with m.If(seed != bench.seed):
        m.d.sync += state.eq(Cat(bench.seed, ~bench.seed))
    stalled = {}
    for n, channel in enumerate(channels):
        stalled[channel] = Signal(name=f"stalled_{channel}")
        m.d.sync += stalled[channel].eq(three[8 * n :][:8] < getattr(bench, f"stall_{channel}"))
    return stalled
