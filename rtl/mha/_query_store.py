"""Part of ScoreArray: the queries that rows are scored against."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.memory import NO_COLLISIONS, ram_style
from rtl.config import AcceleratorConfig, DsqConfig

__all__ = ["SLOTS", "SLOT_BITS", "QueryStore", "offset_bits", "query_layout", "row_start", "store_depth"]

#: queries that are kept at once
SLOTS = 4
SLOT_BITS = 2


def query_layout(config: AcceleratorConfig) -> data.StructLayout:
    """One code of a query, as QueryPreparer gives them."""
    heads = config.mha.q_heads
    return data.StructLayout(
        {
            "slot": SLOT_BITS,
            "head": range(max(heads, 2)),
            "shaped": 1,
            "channel": range(config.dsq.head_dim),
            "code": signed(8),
            "scale": 8,
            "last": 1,
        }
    )


def offset_bits(config: DsqConfig) -> int:
    """Bits of ``-3 sum(q)`` over the codes of a query (signed)."""
    return (3 * 128 * config.head_dim).bit_length() + 1


def store_depth(config: DsqConfig) -> int:
    """Words of the query memories: all queries in the order of 2-bit, 4-bit and 8-bit rows."""
    return SLOTS * sum(config.row_words(bits) for bits in (2, 4, 8))


def row_start(config: DsqConfig, code_bits: int, slot: Value) -> Value:
    """Address of the query codes that meet the first word of a row with codes of so many bits."""
    words = config.row_words(code_bits)
    start = SLOTS * sum(config.row_words(bits) for bits in (2, 4, 8) if bits < code_bits)
    return Array(start + n * words for n in range(SLOTS))[slot]


class QueryStore(wiring.Component):
    """Keeps the codes of the queries where the lanes want them, their scales, and ``-3 sum(q)`` of the shaped form.

    A lane of a multiplier meets another channel in a word of nibbles than in one of INT8 codes, so a plain code is
    stored for both, in two cycles. Codes that meet 2-bit codes lie in the first words, the only ones of the upper
    half of the lanes. Places that belong to no channel, behind ``head_dim`` in a row's last word, are never written:
    they are 0 from the start, so no code there counts.

    Members
    -------
    i : stream of query codes; of each head the shaped ones side by side, channel 0 first.
    address : of the codes that a word meets.
    advance : the codes at ``address`` are read.
    codes : by head and lane, in the cycle after they were read.
    scale_slot, scale_shaped : which query and form ``scales`` gives, in the same cycle.
    scales : scale code by head.
    offset_slot : which query ``offsets`` gives, in the same cycle.
    offsets : ``-3 sum(q)`` by head.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        heads, lanes = config.mha.q_heads, config.dsq.bus_bits // 2
        super().__init__(
            {
                "i": In(stream.Signature(query_layout(config))),
                "address": In(range(store_depth(config.dsq))),
                "advance": In(1),
                "codes": Out(data.ArrayLayout(data.ArrayLayout(signed(8), lanes), heads)),
                "scale_slot": In(SLOT_BITS),
                "scale_shaped": In(1),
                "scales": Out(data.ArrayLayout(8, heads)),
                "offset_slot": In(SLOT_BITS),
                "offsets": Out(data.ArrayLayout(signed(offset_bits(config.dsq)), heads)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config.dsq
        lanes = c.bus_bits // 2

        # A code waits in `held` while it is stored, a plain one for the nibbles, then `again` for the INT8 codes.
        held, held_valid, again = Signal(self.i.payload.shape()), Signal(), Signal()
        m.d.comb += self.i.ready.eq(~held_valid | held.shaped | again)
        m.d.sync += again.eq(0)
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.payload), held_valid.eq(self.i.valid)]
        with m.Else():
            m.d.sync += again.eq(1)

        # Where it goes: an address, a lane or, with `pair`, two.
        address, lane, pair = Signal.like(self.address), Signal(range(lanes)), Signal()
        for bits, chosen in ((2, held.shaped), (4, ~held.shaped & ~again), (8, ~held.shaped & again)):
            channel_bits = exact_log2(c.bus_bits // bits)
            with m.If(chosen):
                m.d.comb += [
                    address.eq(row_start(c, bits, held.slot) + held.channel[channel_bits:]),
                    lane.eq(held.channel[:channel_bits] << (bits == 8)),
                    pair.eq(bits == 8),
                ]
        half_shape = data.ArrayLayout(signed(8), lanes // 2)
        for head, codes in enumerate(self.codes):
            for half, depth in enumerate((store_depth(c), SLOTS * c.row_words(2))):
                attributes = NO_COLLISIONS | ram_style(depth)
                memory = Memory(shape=half_shape, depth=depth, init=[], attrs=attributes)
                m.submodules[f"codes_{head}_{half}"] = memory
                w, r = memory.write_port(granularity=1), memory.read_port()
                m.d.comb += [
                    w.addr.eq(address[: len(w.addr)]),
                    r.addr.eq(self.address[: len(r.addr)]),
                    r.en.eq(self.advance),
                ]
                for n in range(lanes // 2):
                    own = half * lanes // 2 + n
                    hit = (lane[1:] == own >> 1) & (pair | (lane[0] == own & 1))
                    m.d.comb += [
                        w.data[n].eq(held.code),
                        w.en[n].eq(held_valid & (held.head == head) & hit),
                        codes[own].eq(r.data[n]),
                    ]

        total = Signal(signed(offset_bits(c)))
        total_next = Mux(held.channel == 0, 0, total) - (held.code + (held.code << 1))
        with m.If(held_valid & held.shaped):
            m.d.sync += total.eq(total_next)
        for head in range(len(self.scales)):
            own = held_valid & (held.head == head)
            m.submodules[f"scales_{head}"] = scales = Memory(shape=8, depth=2 * SLOTS, init=[])
            m.submodules[f"offsets_{head}"] = offsets = Memory(shape=total.shape(), depth=SLOTS, init=[])
            scale_write, offset_write = scales.write_port(), offsets.write_port()
            scale_read, offset_read = scales.read_port(domain="comb"), offsets.read_port(domain="comb")
            m.d.comb += [
                scale_write.en.eq(own),
                scale_write.addr.eq(Cat(held.shaped, held.slot)),
                scale_write.data.eq(held.scale),
                scale_read.addr.eq(Cat(self.scale_shaped, self.scale_slot)),
                self.scales[head].eq(scale_read.data),
                offset_write.en.eq(own & held.shaped),
                offset_write.addr.eq(held.slot),
                offset_write.data.eq(total_next),
                offset_read.addr.eq(self.offset_slot),
                self.offsets[head].eq(offset_read.data),
            ]
        return m
