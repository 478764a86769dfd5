"""Query rows to the codes that meet K rows, in both forms (golden `prepare_query`)."""

from amaranth.hdl import Array, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from rtl.config import AcceleratorConfig
from rtl.dsq._compressor_steps import SHAPE_BITS
from rtl.dsq._rotator import Rotator
from rtl.dsq._rotator_geometry import RotatorGeometry
from rtl.dsq._row_scale import RowScale
from rtl.mha._query_codes import QueryCodes
from rtl.mha._query_store import SLOT_BITS, query_layout

__all__ = ["QueryPreparer"]


def _scale_cycles(g: RotatorGeometry) -> int:
    """Cycles from the start of a row's first word in the rotator to its scale: words, their way, five states."""
    return g.words + g.output_cycles + 1 + g.peak_registers + 1 + 5


class QueryPreparer(wiring.Component):
    """Rotates the query rows of all heads and quantizes each as it is, and once more with the K shape folded in.

    A rotated row waits in a memory. When the scale of its plain form is known, its elements are read one by one: the
    plain codes go out, and the shaped values go back to find their scale. Then the elements are read once more for the
    shaped codes, while the row of the next head comes in. One multiplier has the shapes, one the scale's reciprocal.

    Latency: ``latency(config)`` cycles from the last beat of a query's first row to its first code, if nothing stalls.
    Throughput: a query each ``query_cycles(config)`` cycles at most.
    Stalls: output back-pressure stops the codes, then rows. Nothing is lost.
    Combinational paths: none between streams; ``ready`` of both inputs depends on registers alone.

    Parameters
    ----------
    config: geometry.

    Members
    -------
    i_shape : stream, ``head_dim`` transfers when a query asks for them: K shape by channel. They stay until a query
        asks again.
    i : stream, ``q_heads`` rows of ``row_beats`` beats a query: INT16 ``data``, channel 0 first; ``load_shape`` and
        ``slot`` count in a query's first beat. With ``load_shape`` the query waits for the one before to leave, then
        for its shapes.
    o : stream, for each head ``head_dim`` plain, then ``head_dim`` shaped codes, channel 0 first; ``scale`` is that
        of the head's form, ``last`` marks the end of the query.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.i_shape_shape = unsigned(SHAPE_BITS)
        self.i_query_shape = data.StructLayout(
            {"load_shape": 1, "slot": SLOT_BITS, "data": data.ArrayLayout(signed(16), config.dsq.lanes)}
        )
        self.o_shape = query_layout(config)
        super().__init__(
            {
                "i_shape": In(stream.Signature(self.i_shape_shape)),
                "i": In(stream.Signature(self.i_query_shape)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from the last beat of a query's first row to its first code."""
        g = RotatorGeometry(head_dim=config.dsq.head_dim, lanes=config.dsq.lanes)
        return 1 + g.settle_cycles + g.stage_cycles + _scale_cycles(g) + QueryCodes.REGISTERS

    @staticmethod
    def query_cycles(config: AcceleratorConfig) -> int:
        """Cycles from one query to the next, at most: what codes or the rotator take for each head.

        The rotator begins with a query's first row when the query before has left it, with the others when they are in.
        """
        dim, heads = config.dsq.head_dim, config.mha.q_heads
        g = RotatorGeometry(head_dim=dim, lanes=config.dsq.lanes)
        shaped = dim + 4 + g.peak_registers + 5  # from a row's first plain code to its first shaped one
        codes = shaped + max(dim + 5, _scale_cycles(g) - 2)
        turn = g.words + g.stage_cycles + g.settle_cycles + 2
        return max(codes, turn + g.pairs + 2) + (heads - 1) * max(codes, turn)

    def elaborate(self, platform):
        m = Module()
        c = self.config.dsq
        m.submodules.rotator = rotator = Rotator(c)
        m.submodules.scale = scale = RowScale(rotator.word_shape)
        m.submodules.codes = codes = QueryCodes(self.config, factor_bits=len(scale.factor))
        wiring.connect(m, codes.o, wiring.flipped(self.o))

        # Scales are found in turns: of a row from the rotator, then of its shaped values. The next row may leave the
        # rotator behind that, into the other half of the row memory.
        find_shaped, grant, w_half, r_half = Signal(), Signal(init=1), Signal(), Signal()
        word_bits, lane_bits = ceil_log2(rotator.geometry.words), exact_log2(rotator.geometry.word_lanes)
        rows = Memory(
            shape=rotator.word.data.shape(), depth=2 << word_bits, init=[], attrs={"ram_style": "distributed"}
        )
        m.submodules.rows = rows
        rows_w, rows_r = rows.write_port(), rows.read_port(domain="comb")
        value_word = Signal.like(rotator.word)
        m.d.comb += [
            rotator.grant.eq(grant),
            rows_w.en.eq(rotator.word_valid),
            rows_w.addr.eq(rotator.word.index | w_half << word_bits),
            rows_w.data.eq(rotator.word.data),
            rows_r.addr.eq(codes.channel[lane_bits:] | r_half << word_bits),
            codes.element.eq(Array(rows_r.data)[codes.channel[:lane_bits]]),
            value_word.last.eq(codes.value_last),
            value_word.data[0].eq(codes.value),
            scale.word_valid.eq(Mux(find_shaped, codes.value_valid, rotator.word_valid)),
            scale.word.eq(Mux(find_shaped, value_word.as_value(), rotator.word.as_value())),
            scale.free.eq(~codes.busy),
            codes.start.eq(scale.found),
            codes.shaped.eq(find_shaped),
            codes.scale.eq(scale.scale),
            codes.factor.eq(scale.factor),
            codes.window.eq(scale.window),
        ]
        with m.If(scale.found):
            m.d.sync += find_shaped.eq(~find_shaped)
        with m.If(scale.found & find_shaped):
            m.d.sync += grant.eq(1)
        with m.If(rotator.row_end):
            m.d.sync += grant.eq(0)
        with m.If(rotator.word_valid & rotator.word.last):
            m.d.sync += w_half.eq(~w_half)
        with m.If(codes.row_end):
            m.d.sync += r_half.eq(~r_half)

        # Of the query in the rotator, of the row whose scale is being found, of the codes.
        slots = [Signal(SLOT_BITS, name=f"slot_{n}") for n in range(3)]
        with m.If(rotator.row_end):
            m.d.sync += slots[1].eq(slots[0])
        with m.If(scale.found & ~find_shaped):
            m.d.sync += slots[2].eq(slots[1])
        m.d.comb += codes.slot.eq(slots[2])
        self._enter(m, rotator, codes, slots[0])
        return m

    def _enter(self, m: Module, rotator: Rotator, codes: QueryCodes, slot: Signal) -> None:
        """Rows and shapes: a query enters when the one before has left the rotator, with shapes when that is done."""
        c, heads = self.config.dsq, self.config.mha.q_heads
        shapes = Memory(shape=unsigned(SHAPE_BITS), depth=c.head_dim, init=[])
        m.submodules.shapes = shapes
        w, r = shapes.write_port(), shapes.read_port(domain="comb")
        beat, channel = Signal(range(heads * c.row_beats)), Signal(range(c.head_dim))
        m.d.comb += [
            rotator.i.payload.rotate.eq(1),
            rotator.i.payload.data.eq(self.i.payload.data),
            w.addr.eq(channel),
            w.data.eq(self.i_shape.payload),
            r.addr.eq(codes.channel),
            codes.k_shape.eq(r.data),
        ]

        entered = Signal()
        rows_out, unread = Signal(range(heads)), Signal(2)  # rows of the query that left; rows that codes still need
        m.d.sync += unread.eq(unread + rotator.row_end - codes.row_end)
        with m.If(rotator.row_end):
            m.d.sync += rows_out.eq(rows_out + 1)
            with m.If(rows_out == heads - 1):
                m.d.sync += [entered.eq(0), rows_out.eq(0)]
        with m.FSM():
            with m.State("QUERY"):
                load = self.i.payload.load_shape
                with m.If(self.i.valid & ~entered & (~load | (unread == 0))):
                    m.d.sync += [slot.eq(self.i.payload.slot), entered.eq(1)]
                    m.next = "ROWS"
                    with m.If(load):
                        m.next = "SHAPES"
            with m.State("SHAPES"):
                m.d.comb += [self.i_shape.ready.eq(1), w.en.eq(self.i_shape.valid)]
                with m.If(self.i_shape.valid):
                    m.d.sync += channel.eq(channel + 1)
                    with m.If(channel == c.head_dim - 1):
                        m.d.sync += channel.eq(0)
                        m.next = "ROWS"
            with m.State("ROWS"):
                m.d.comb += [rotator.i.valid.eq(self.i.valid), self.i.ready.eq(rotator.i.ready)]
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(beat == heads * c.row_beats - 1):
                        m.d.sync += beat.eq(0)
                        m.next = "QUERY"
