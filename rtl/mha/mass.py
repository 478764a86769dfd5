"""Attention mass of tokens and groups from their weights (golden `normalize`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.mha.softmax import INVERSE_BITS, NORMAL_BITS, PROBABILITY_BITS
from rtl.common.fixed import half_up
from rtl.config import AcceleratorConfig
from rtl.mha._inverse import LENGTH_BITS
from rtl.mha._mass_entries import MAXIMUM_BITS, WEIGHT_BITS, mass_entry_layout
from rtl.mha._requests import GROUP_BITS

__all__ = ["MassNormalizer"]

#: bits of the mass of an entry, summed over up to eight heads
MASS_BITS = PROBABILITY_BITS + 4


class MassNormalizer(wiring.Component):
    """Keeps the entries of a row until its total is known, then gives the mass of each, summed over the heads.

    The mass of an entry is what the rounded share of all entries up to it gains with it, so that the masses of a row sum
    to 2**16 a head. While one row is given out, the entries of the next one come in.

    Latency: ``latency`` cycles from a row at ``i_row``, its entries being complete, to the first mass.
    Throughput: an entry a cycle at both sides. A row's entries wait until the row before the last one has left.
    Stalls: output back-pressure stops the pipeline, entries go on as said.
    Combinational paths: none between the streams.

    Parameters
    ----------
    config: of which ``q_heads`` and the most entries of a row matter, ``2 * group_tokens + max_groups``.

    Members
    -------
    i_entry : stream of struct{weights, maxima, group, index, end}
        ``weights`` of each head against ``maxima``; ``group`` and ``index`` name the entry. With ``end`` it is none: the
        row is complete, ``maxima`` are its final ones.
    i_row : stream of struct{inverse, length}: of each head's total, one a row
    o : stream of struct{group, index, mass, last}: one for each entry; a row without any gives nothing
    """

    latency = 7
    """Cycles from the transfer at ``i_row`` of a row whose entries are complete to its first mass."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        heads = config.mha.q_heads
        self.entries = 2 * config.dsq.group_tokens + config.mha.max_groups
        self.total_bits = PROBABILITY_BITS + ceil_log2((config.mha.max_groups + 2) * config.dsq.group_tokens) + 1
        self.i_entry_shape = mass_entry_layout(config)
        self.i_row_shape = data.StructLayout(
            {"inverse": data.ArrayLayout(INVERSE_BITS + 1, heads), "length": data.ArrayLayout(LENGTH_BITS, heads)}
        )
        self.o_shape = data.StructLayout({"group": 1, "index": GROUP_BITS, "mass": MASS_BITS, "last": 1})
        super().__init__(
            {
                "i_entry": In(stream.Signature(self.i_entry_shape)),
                "i_row": In(stream.Signature(self.i_row_shape)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        heads = self.config.mha.q_heads
        address_bits = ceil_log2(self.entries)
        kept = data.StructLayout({name: s.shape for name, s in self.i_entry_shape if name != "end"})
        m.submodules.store = store = Memory(shape=kept, depth=2 << address_bits, init=[])
        write, read = store.write_port(), store.read_port()
        entry = self.i_entry.payload
        filling, count = Signal(), Signal(address_bits)
        counts = [Signal(bits_for(self.entries), name=f"count_{half}") for half in range(2)]
        finals = [Signal(data.ArrayLayout(signed(MAXIMUM_BITS), heads), name=f"final_{half}") for half in range(2)]
        full = Signal(2)
        m.d.comb += [
            self.i_entry.ready.eq(~full.bit_select(filling, 1)),
            write.en.eq(self.i_entry.valid & self.i_entry.ready & ~entry.end),
            write.addr.eq(Cat(count, filling)),
            *(write.data[name].eq(entry[name]) for name, _ in kept),
        ]
        with m.If(write.en):
            m.d.sync += count.eq(count + 1)
        with m.If(self.i_entry.valid & self.i_entry.ready & entry.end):
            m.d.sync += [count.eq(0), filling.eq(~filling), full.bit_select(filling, 1).eq(1)]
            for half in range(2):
                with m.If(filling == half):
                    m.d.sync += [counts[half].eq(count), finals[half].eq(entry.maxima)]

        # A row is read while its totals are taken; the last stage frees its half.
        emptying, running, position = Signal(), Signal(), Signal(address_bits)
        row, final, left = Signal(self.i_row_shape), Signal(finals[0].shape()), Signal.like(counts[0])
        advance = Signal()
        m.d.comb += [
            advance.eq(~self.o.valid | self.o.ready),
            self.i_row.ready.eq(~running & full.bit_select(emptying, 1)),
            read.addr.eq(Cat(position, emptying)),
            read.en.eq(advance),
        ]
        valid, last = Signal(6), Signal(6)
        step = running & (left != 0)
        with m.If(self.i_row.valid & self.i_row.ready):
            m.d.sync += [
                running.eq(1),
                position.eq(0),
                row.eq(self.i_row.payload),
                final.eq(Mux(emptying, finals[1], finals[0])),
                left.eq(Mux(emptying, counts[1], counts[0])),
            ]
        with m.If(advance):
            m.d.sync += [Cat(valid, self.o.valid).eq(Cat(step, valid)), last.eq(Cat(left == 1, last))]
            with m.If(step):
                m.d.sync += [position.eq(position + 1), left.eq(left - 1)]
        with m.If(running & (left == 0) & ~valid.any()):
            m.d.sync += [running.eq(0), emptying.eq(~emptying), full.bit_select(emptying, 1).eq(0)]
        names = [Signal(1 + GROUP_BITS, name=f"name_{n}") for n in range(5)]
        masses = [
            self._mass(m, advance, running, valid, read.data, row, final, head) for head in range(heads)
        ]
        with m.If(advance):
            m.d.sync += names[0].eq(Cat(read.data.group, read.data.index))
            m.d.sync += [after.eq(before) for before, after in zip(names, names[1:], strict=False)]
            m.d.sync += [
                Cat(self.o.payload.group, self.o.payload.index).eq(names[-1]),
                self.o.payload.mass.eq(sum(masses)),
                self.o.payload.last.eq(last[5]),
            ]
        return m

    def _mass(
        self,
        m: Module,
        advance: Value,
        running: Value,
        valid: Value,
        entry: data.View,
        row: data.View,
        final: data.View,
        head: int,
    ) -> Value:
        """A head's mass of the entry in the last stage: shifted weight, sum, cut, product, rounded share before it."""
        drop = Signal(MAXIMUM_BITS + 1, name=f"drop_{head}")
        weight = Signal(WEIGHT_BITS, name=f"weight_{head}")
        upto = Signal(self.total_bits, name=f"upto_{head}")
        part = Signal(NORMAL_BITS + 1, name=f"part_{head}")
        product = Signal(NORMAL_BITS + INVERSE_BITS + 2, name=f"product_{head}")
        share, before = Signal(PROBABILITY_BITS + 1, name=f"share_{head}"), Signal(PROBABILITY_BITS + 1, name=f"before_{head}")
        length = row.length[head]
        long = length > NORMAL_BITS
        shift = Mux(long, NORMAL_BITS, length) + (INVERSE_BITS - 1 - PROBABILITY_BITS)
        m.d.comb += drop.eq(final[head] - entry.maxima[head])
        with m.If(advance):
            m.d.sync += [
                weight.eq(Mux(drop[6:].any(), 0, entry.weights[head] >> drop[:6])),
                part.eq(upto >> Mux(long, length - NORMAL_BITS, 0)[:LENGTH_BITS]),
                product.eq(part * row.inverse[head]),
                share.eq(half_up((product << 1) >> shift[:LENGTH_BITS], 1)),
            ]
            with m.If(valid[1]):
                m.d.sync += upto.eq(upto + weight)
            with m.If(valid[5]):
                m.d.sync += before.eq(share)
        with m.If(~running):
            m.d.sync += [upto.eq(0), before.eq(0)]
        return share - before
