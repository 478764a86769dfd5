"""Traffic in HDL for `DramModel`: reads and writes, sequential or random, as fast as the memory takes them."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, connect, flipped
from amaranth.utils import exact_log2

from cocotb_tests.lib.dram import DramModel, DramSignature, attach
from cocotb_tests.lib.dram_config import DramConfig

__all__ = ["DramTraffic"]

_INCR = 1


class DramTraffic(wiring.Component):
    """A memory and a master that keeps it busy; what it writes at a word is the word's address.

    Members
    -------
    dram : of the memory; its size is a power of two.
    read, write : the master sends reads, writes.
    random : to random addresses, multiples of the burst; else to one after another.
    length : words of a burst less one, one less than a power of two.
    """

    def __init__(self, config: DramConfig) -> None:
        self.config = config
        members = {"read": In(1), "write": In(1), "random": In(1), "length": In(8)}
        super().__init__({"dram": In(DramSignature(config)), **members})

    def _addresses(self, m: Module, valid: Value, ready: Value, name: str, init: int) -> Value:
        """Word addresses, one for each transfer."""
        words = exact_log2(self.config.words)
        place = Signal(words, name=f"{name}_place")
        state, one, two, three = (Signal(32, init=init, name=f"{name}_{n}") for n in range(4))
        m.d.comb += [one.eq(state ^ (state << 13)), two.eq(one ^ (one >> 17)), three.eq(two ^ (two << 5))]
        with m.If(valid & ready):
            m.d.sync += [place.eq(place + self.length + 1), state.eq(three)]
        return Mux(self.random, three[-words:] & ~(Const(0, words) | self.length), place)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self.config
        m.submodules.memory = memory = DramModel(config)
        connect(m, flipped(self.dram), memory.bench)
        axi = memory.axi.signature.flip().create()
        attach(m, memory.axi, axi)
        size = exact_log2(config.word_bytes)
        for valid, ready, address, name in (
            (axi.arvalid, axi.arready, axi.araddr, "ar"),
            (axi.awvalid, axi.awready, axi.awaddr, "aw"),
        ):
            init = 2463534242 if name == "ar" else 88675123
            m.d.comb += address.eq(self._addresses(m, valid, ready, name, init) << size)
        # What is valid stays so when its direction is switched off.
        asking, telling = Signal(), Signal()
        m.d.sync += [asking.eq(axi.arvalid & ~axi.arready), telling.eq(axi.awvalid & ~axi.awready)]
        m.d.comb += [axi.arvalid.eq(self.read | asking), axi.rready.eq(1), axi.arlen.eq(self.length)]
        m.d.comb += [axi.awlen.eq(self.length), axi.bready.eq(1)]
        for channel in ("ar", "aw"):
            m.d.comb += [getattr(axi, f"{channel}size").eq(size), getattr(axi, f"{channel}burst").eq(_INCR)]

        # The words of a burst follow its address before the next one.
        word, left, busy = Signal(config.addr_bits), Signal(8), Signal()
        taken = axi.wvalid & axi.wready
        m.d.comb += [
            axi.awvalid.eq(telling | (self.write & (~busy | (taken & axi.wlast)))),
            axi.wvalid.eq(busy),
            axi.wdata.eq(word),
            axi.wstrb.eq(~0),
            axi.wlast.eq(left == 0),
        ]
        with m.If(taken):
            m.d.sync += [word.eq(word + 1), left.eq(left - 1), busy.eq(left != 0)]
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [busy.eq(1), left.eq(self.length), word.eq(axi.awaddr >> size)]
        return m
