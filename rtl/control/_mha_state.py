"""Part of the MHA engine: masses of a query to the sums that memory keeps of its cache."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.hcap.mass_bank import SUM_BITS
from rtl.cache._read_port import word_shape as read_word_shape
from rtl.cache._write_port import word_shape
from rtl.cache.axi import AxiConfig
from rtl.config import AcceleratorConfig
from rtl.control._dma_check import ceil_divide
from rtl.control._gearbox import Gearbox
from rtl.control._mha_check import StateLines
from rtl.control._read_order import lines_layout, word_shift
from rtl.hcap.mass_bank import MassBank

__all__ = ["MassKeeper", "masses_layout"]


def masses_layout(config: AcceleratorConfig) -> data.StructLayout:
    """The state at line ``state`` of a cache of so many ``groups``; ``tokens`` in INT8, from group ``first`` on. Masses
    are kept if ``keep``, else dropped."""
    return data.StructLayout(
        {
            "keep": 1,
            "state": lines_layout()["line"].shape,
            "groups": bits_for(config.mha.max_groups),
            "tokens": 21,
            "first": 20,
        }
    )


class MassKeeper(wiring.Component):
    """Reads the sums of a cache, adds the masses of a query, and writes them back when told to.

    Of each part of the state the words in use are read and written. No sum is read before memory has what was written
    before.

    Throughput: a sum a cycle on the way in and out, a mass a cycle.
    Stalls: any stream may stall. Words are always taken in the end.
    Combinational paths: ``o_word.ready`` and ``i_word`` each to streams inside alone.

    Members
    -------
    start, masses : strobe, while not ``busy``; see `masses_layout`
    o_request, i_word : sums
    i_mass : of MhaCore
    added : all masses have been taken and, if they are kept, are on their way to the sums
    store : write the sums back, from now on
    busy : from ``start`` until all masses are dropped, or memory has acknowledged the sums
    failed : memory refused a word
    o_write, o_word, i_written : requests in words of memory, words, whether each request failed
    """

    def __init__(self, config: AcceleratorConfig, memory: AxiConfig) -> None:
        self.config, self.memory = config, memory
        self._bank = MassBank(config)
        super().__init__(
            {
                "start": In(1),
                "masses": In(masses_layout(config)),
                "o_request": Out(stream.Signature(lines_layout())),
                "i_word": In(stream.Signature(read_word_shape(memory))),
                "i_mass": In(stream.Signature(self._bank.mass_shape)),
                "added": Out(1),
                "store": In(1),
                "busy": Out(1),
                "failed": Out(1),
                "o_write": Out(stream.Signature(memory.request_shape)),
                "o_word": Out(stream.Signature(word_shape(memory))),
                "i_written": In(stream.Signature(1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.bank = bank = self._bank
        masses = Signal(masses_layout(self.config))
        mass, part, left = self.i_mass, Signal(), Signal(2)
        counts = self._sums(m, masses, bank)
        lines = StateLines(self.config)
        line = masses.state + Mux(part, lines.votes, lines.recent)
        count, last = Mux(part, counts[1], counts[0]), part | (counts[1] == 0)
        m.d.comb += [
            self.o_request.payload.line.eq(line),
            self.o_request.payload.count.eq(count),
            self.o_write.payload.address.eq(line << word_shift(self.memory)),
            self.o_write.payload.count.eq(count),
            bank.i_mass.payload.eq(mass.payload),
            self.i_written.ready.eq(1),
        ]
        with m.If(self.i_word.valid & self.i_word.ready & self.i_word.payload.error):
            m.d.sync += self.failed.eq(1)
        with m.If(self.i_written.valid):
            m.d.sync += [left.eq(left - 1), self.failed.eq(self.failed | self.i_written.payload)]
        with m.FSM() as fsm:
            m.d.comb += [self.busy.eq(~fsm.ongoing("IDLE")), self.added.eq(fsm.ongoing("ADDED"))]
            with m.State("IDLE"):
                m.d.sync += [masses.eq(self.masses), part.eq(0)]
                with m.If(self.start):
                    m.d.sync += self.failed.eq(0)
                    m.next = "DROP"
                    with m.If(self.masses.keep):
                        m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += bank.i_command.valid.eq(1)
                m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.o_request.valid.eq(1)
                with m.If(self.o_request.ready):
                    m.d.sync += part.eq(~last)
                    with m.If(last):
                        m.next = "ADD"
            with m.State("ADD"):
                m.d.comb += [bank.i_mass.valid.eq(mass.valid), mass.ready.eq(bank.i_mass.ready)]
                with m.If(mass.valid & mass.ready & mass.payload.last):
                    m.next = "ADDED"
            with m.State("DROP"):
                m.d.comb += mass.ready.eq(1)
                with m.If(mass.valid & mass.payload.last):
                    m.next = "ADDED"
            with m.State("ADDED"):
                m.d.sync += left.eq(Mux(counts[1] == 0, 1, 2))
                with m.If(self.store):
                    m.next = "IDLE"
                    with m.If(masses.keep):
                        m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += self.o_write.valid.eq(1)
                with m.If(self.o_write.ready):
                    m.d.sync += part.eq(~last)
                    with m.If(last):
                        m.next = "WRITTEN"
            with m.State("WRITTEN"):
                with m.If(left == 0):
                    m.next = "IDLE"
        return m

    def _sums(self, m: Module, masses: data.View, bank: MassBank) -> tuple[Signal, Signal]:
        """Words of memory to the bank and back; returns the words of groups and of tokens."""
        bits = self.config.dsq.bus_bits
        sums = bits // SUM_BITS
        m.submodules.i_gearbox = i_gearbox = Gearbox(bits, SUM_BITS, max_parts=sums)
        m.submodules.o_gearbox = o_gearbox = Gearbox(SUM_BITS, bits, max_parts=sums)
        tokens = Mux(masses.tokens < bank.tokens, masses.tokens, bank.tokens)
        counts = tuple(
            Signal(bits_for(-(-most // sums)), name=f"words_of_{name}")
            for name, most in (("groups", bank.groups), ("tokens", bank.tokens))
        )
        for count, used in zip(counts, (masses.groups, tokens), strict=True):
            m.d.comb += count.eq(ceil_divide(used, sums))
        m.d.comb += [
            bank.i_command.payload.groups.eq(counts[0] * sums),
            bank.i_command.payload.tokens.eq(counts[1] * sums),
            bank.i_command.payload.first.eq(masses.first),
            i_gearbox.parts.eq(sums),
            i_gearbox.i.valid.eq(self.i_word.valid),
            i_gearbox.i.payload.eq(self.i_word.payload.data),
            self.i_word.ready.eq(i_gearbox.i.ready),
            bank.i.valid.eq(i_gearbox.o.valid),
            bank.i.payload.eq(i_gearbox.o.payload.data),
            i_gearbox.o.ready.eq(bank.i.ready),
            o_gearbox.parts.eq(sums),
            o_gearbox.i.valid.eq(bank.o.valid),
            o_gearbox.i.payload.eq(bank.o.payload),
            bank.o.ready.eq(o_gearbox.i.ready),
            self.o_word.valid.eq(o_gearbox.o.valid),
            self.o_word.payload.data.eq(o_gearbox.o.payload.data),
            self.o_word.payload.strb.eq(~0),
            o_gearbox.o.ready.eq(self.o_word.ready),
        ]
        return counts[0], counts[1]
