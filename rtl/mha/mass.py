"""Attention mass of tokens and groups from their weights (golden `normalize`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.mha.softmax import INVERSE_BITS, NORMAL_BITS, PROBABILITY_BITS
from rtl.common.fixed import half_up
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.mha._digit_product import digit_product, stored
from rtl.mha._inverse import LENGTH_BITS
from rtl.mha._mass_entries import MAXIMUM_BITS, mass_entry_layout
from rtl.mha._requests import GROUP_BITS
from rtl.mha._value_format import ValueFormat

__all__ = ["MassNormalizer"]

#: bits of the mass of an entry, summed over up to eight heads
MASS_BITS = 20
#: registers between the memory of the entries and the output
STAGES = 8


class MassNormalizer(wiring.Component):
    """Keeps the entries of a row until its totals are known, then gives the mass of each, summed over the heads.

    The mass of an entry is what the rounded share of all entries up to it gains with it, so the masses of a row sum to
    2**16 a head if its entries have all the weight. While one row is given out, those of the next one come in.

    Latency: ``latency`` cycles from a row at ``i_row``, its entries being complete, to the first mass.
    Throughput: an entry per cycle at both sides; ``latency`` cycles lie between a row's last mass and the first one of
    the next. Entries of the next row but one wait until a row has been given out.
    Stalls: output back-pressure stops the whole pipeline; entries still come in.
    Combinational paths: none between streams; ``ready`` of both inputs depends on registers alone.

    The weights of a row's entries, shifted to its final maxima, sum to no more than its totals.

    Parameters
    ----------
    config : AcceleratorConfig
        Of which ``q_heads`` and the most entries of a row matter: ``2 * group_tokens + max_groups``.

    Members
    -------
    i_entry : stream of struct{weights, maxima, group, index, end}
        Weights of each head against these maxima; ``group`` and ``index`` name the entry. With ``end`` it is none: the
        row is complete, and the maxima are its final ones.
    i_row : stream of struct{inverse, length}
        One for each row: golden ``inverse`` of each head's total.
    o : stream of struct{group, index, mass, last}
        One for each entry, in order; a row without entries gives nothing.
    """

    latency = STAGES + 2
    """Cycles from the transfer at ``i_row`` of a row whose entries are complete to its first mass."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self.heads = heads = config.mha.q_heads
        self.entries = 2 * config.dsq.group_tokens + config.mha.max_groups
        self.total_bits = ValueFormat(config).total_bits
        self.i_entry_layout = mass_entry_layout(config)
        self.i_row_layout = data.StructLayout(
            {"inverse": data.ArrayLayout(INVERSE_BITS + 1, heads), "length": data.ArrayLayout(LENGTH_BITS, heads)}
        )
        self.o_layout = data.StructLayout({"group": 1, "index": GROUP_BITS, "mass": MASS_BITS, "last": 1})
        super().__init__(
            {
                "i_entry": In(stream.Signature(self.i_entry_layout)),
                "i_row": In(stream.Signature(self.i_row_layout)),
                "o": Out(stream.Signature(self.o_layout)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        address = Signal(ceil_log2(self.entries))
        emptying, running, advance = Signal(), Signal(), Signal()
        emptied = Signal()
        m.d.comb += advance.eq(~self.o.valid | self.o.ready)
        full, count, maxima, entry = self._fill(m, Cat(address, emptying), advance, emptying, emptied)

        row, final = Signal(self.i_row_layout), Signal(maxima.shape())
        left = Signal.like(count)
        valid, last = Signal(STAGES), Signal(STAGES)
        step = running & (left != 0)
        m.d.comb += [
            self.i_row.ready.eq(~running & full),
            emptied.eq(running & (left == 0) & ~valid.any()),
        ]
        with m.If(self.i_row.valid & self.i_row.ready):
            m.d.sync += [running.eq(1), address.eq(0), left.eq(count), row.eq(self.i_row.payload), final.eq(maxima)]
        with m.If(emptied):
            m.d.sync += [running.eq(0), emptying.eq(~emptying)]

        with m.If(advance):
            m.d.sync += [Cat(valid, self.o.valid).eq(Cat(step, valid)), last.eq(Cat(left == 1, last))]
            with m.If(step):
                m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
            name = Cat(entry.group, entry.index)
            for n in range(STAGES - 1):
                name = stored(m, f"name_{n}", name)
            masses = [
                self._mass(m, entry.weights[head], final[head] - entry.maxima[head], valid, row, head)
                for head in range(self.heads)
            ]
            m.d.sync += [
                Cat(self.o.payload.group, self.o.payload.index).eq(name),
                self.o.payload.mass.eq(sum(masses)),
                self.o.payload.last.eq(last[-1]),
            ]
        return m

    def _fill(
        self, m: Module, address: Value, advance: Value, emptying: Value, emptied: Value
    ) -> tuple[Value, Value, data.View, data.View]:
        """Keep two rows. Returns whether row ``emptying`` is complete, its count and final maxima; an entry as read."""
        kept = data.StructLayout({name: field.shape for name, field in self.i_entry_layout if name != "end"})
        m.submodules.store = store = Memory(shape=kept, depth=1 << len(address), init=[], attrs=NO_COLLISIONS)
        write, read = store.write_port(), store.read_port()
        entry = self.i_entry.payload
        filling, count, full = Signal(), Signal(bits_for(self.entries)), Signal(2)
        counts = Signal(data.ArrayLayout(len(count), 2))
        finals = Signal(data.ArrayLayout(entry.maxima.shape(), 2))
        taken, end = Signal(), Signal()
        m.d.comb += [
            self.i_entry.ready.eq(~full.bit_select(filling, 1)),
            taken.eq(self.i_entry.valid & self.i_entry.ready & ~entry.end),
            end.eq(self.i_entry.valid & self.i_entry.ready & entry.end),
            write.en.eq(taken),
            write.addr.eq(Cat(count[: len(address) - 1], filling)),
            *(write.data[name].eq(entry[name]) for name, _ in kept),
            read.en.eq(advance),
            read.addr.eq(address),
        ]
        with m.If(emptied):
            m.d.sync += full.bit_select(emptying, 1).eq(0)
        with m.If(taken):
            m.d.sync += count.eq(count + 1)
        with m.If(end):
            m.d.sync += [count.eq(0), filling.eq(~filling), full.bit_select(filling, 1).eq(1)]
            m.d.sync += [counts[filling].eq(count), finals[filling].eq(entry.maxima)]
        return full.bit_select(emptying, 1), counts[emptying], finals[emptying], read.data

    def _mass(self, m: Module, weight: Value, drop: Value, valid: Value, row: data.View, head: int) -> Value:
        """A head's mass of the entry in the last stage; called where the pipeline advances."""
        drop = drop[: MAXIMUM_BITS + 1]
        weight, far, drop = (
            stored(m, f"{name}_{head}", value)
            for name, value in (("read", weight), ("far", drop[LENGTH_BITS:].any()), ("drop", drop[:LENGTH_BITS]))
        )
        weight = stored(m, f"weight_{head}", Mux(far, 0, weight >> drop))
        upto = Signal(self.total_bits, name=f"upto_{head}", reset_less=True)
        with m.If(~valid.any()):
            m.d.sync += upto.eq(0)
        with m.Elif(valid[2]):
            m.d.sync += upto.eq(upto + weight)

        inverse, length = row.inverse[head], row.length[head]
        # Shifted so that the total would have NORMAL_BITS bits: golden's shift of the product is then the same for all.
        part = stored(m, f"part_{head}", ((upto << NORMAL_BITS) >> length)[:NORMAL_BITS])
        upper = stored(m, f"upper_{head}", Mux(inverse[-1], part << 1, Mux(inverse[-2], part, 0)) << INVERSE_BITS - 1)
        product = digit_product(m, f"mass_{head}", part, inverse[:-2], upper)
        shift = NORMAL_BITS - 1 + INVERSE_BITS - PROBABILITY_BITS
        share = stored(m, f"share_{head}", half_up(product, shift)[: PROBABILITY_BITS + 1])
        before = Signal.like(share, name=f"before_{head}")
        with m.If(~valid.any()):
            m.d.sync += before.eq(0)
        with m.Elif(valid[-1]):
            m.d.sync += before.eq(share)
        return (share - before)[: PROBABILITY_BITS + 1]
