"""INT16 rows to INT8 codes with one scale a row, K rows rotated first (golden `quantize_rows` after `rotate`)."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.fixed import half_up
from rtl.config import DsqConfig
from rtl.dsq._rotator import Rotator
from rtl.dsq._rotator_geometry import RotatorGeometry
from rtl.dsq._row_scale import RowScale

__all__ = ["RowQuantizer"]


def _row_memory_cycles(g: RotatorGeometry) -> int:
    """Cycles from the start of a row's first word in the rotator to that of the first read in the row memory.

    The words, their way through the rotator and to the peak, then five states that find the scale.
    """
    return g.words + g.output_cycles + 1 + g.peak_registers + 1 + 5


class RowQuantizer(wiring.Component):
    """Quantizes rows to INT8 with one scale each; a row marked ``rotate`` is rotated first.

    Three parts work on different rows at once: `Rotator` takes rows and gives INT16 words of ``lanes / 4`` channels, a
    row memory holds them while `RowScale` finds the scale of the row's peak, a quarter of a beat a cycle is multiplied
    by the scale's reciprocal and collected to beats. Codes need no clamp: ``127.5`` is never reached (see the block's
    page).

    Latency: ``latency(config, rotate=)`` cycles from a row's last input beat to its first output beat, both streams
    free.
    Throughput: a row each ``row_cycles(config, rotate=)`` cycles if rows of one kind follow each other; if the kinds
    alternate, a pair takes at most the sum of both.
    Stalls: output back-pressure stops the multipliers at once, then the next row before it overwrites the row memory,
    then the input. Nothing is lost.
    Combinational paths: none between the streams; ``i.ready`` depends on registers alone.

    Parameters
    ----------
    config: geometry; ``head_dim`` and ``lanes`` matter.

    Members
    -------
    i : stream, ``row_beats`` transfers a row: INT16 ``data`` of ``lanes`` channels, channel 0 first, and ``rotate``,
        which counts in the first one.
    o : stream, ``row_beats`` transfers a row: INT8 ``data``, and the row's ``scale`` code with every beat.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        self.i_shape = data.StructLayout({"rotate": 1, "data": data.ArrayLayout(signed(16), config.lanes)})
        self.o_shape = data.StructLayout({"scale": 8, "data": data.ArrayLayout(signed(8), config.lanes)})
        super().__init__({"i": In(stream.Signature(self.i_shape)), "o": Out(stream.Signature(self.o_shape))})

    @staticmethod
    def latency(config: DsqConfig, *, rotate: bool) -> int:
        """Cycles from a row's last input beat to its first output beat."""
        g = RotatorGeometry(head_dim=config.head_dim, lanes=config.lanes)
        first_beat_cycles = 3 + 4  # registers of the multipliers, then four words for a beat
        return 1 + g.settle_cycles + g.stage_cycles * rotate + _row_memory_cycles(g) + first_beat_cycles

    @staticmethod
    def row_cycles(config: DsqConfig, *, rotate: bool) -> int:
        """Cycles from one row to the next of the same kind.

        Limited by the row memory or, in rotated rows, by the rotator. Rotated words follow behind the reads of the row
        before in pairs that are half a block apart, so the first pair waits for the read of its second word.
        """
        g = RotatorGeometry(head_dim=config.head_dim, lanes=config.lanes)
        if not rotate:
            return _row_memory_cycles(g)
        return max(g.words + g.stage_cycles, _row_memory_cycles(g) + (1 << (g.word_levels - 1)) - 1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.rotator = rotator = Rotator(self.config)
        m.submodules.scale = scale = RowScale(rotator.word_shape)
        g = rotator.geometry
        word_shape = data.ArrayLayout(signed(16), g.word_lanes)
        memory = Memory(shape=word_shape, depth=1 << ceil_log2(g.words), init=[])
        m.submodules.memory = memory
        w, r = memory.write_port(), memory.read_port(domain="comb")
        wiring.connect(m, wiring.flipped(self.i), rotator.i)
        m.d.comb += [
            scale.word_valid.eq(rotator.word_valid),
            scale.word.eq(rotator.word),
            w.en.eq(rotator.word_valid),
            w.addr.eq(rotator.word.index),
            w.data.eq(rotator.word.data),
        ]

        # The memory holds one row. It is unread from its last word's start to its last read; the next row may follow
        # word by word behind the reads.
        reading, unread = Signal(), Signal()
        position = Signal(range(g.words))
        last = position == g.words - 1
        x_valid, product_valid, code_valid = Signal(), Signal(), Signal()
        x_end, product_end, code_end = Signal(), Signal(), Signal()  # last word of a beat
        advance = Signal()
        m.d.comb += [
            rotator.grant.eq(~unread | (rotator.target < position)),
            scale.free.eq(~(reading | x_valid | product_valid | code_valid)),
            advance.eq(~(code_valid & code_end & self.o.valid)),
            r.addr.eq(position),
        ]
        with m.If(rotator.row_end):
            m.d.sync += unread.eq(1)
        with m.If(scale.found):
            m.d.sync += reading.eq(1)
        with m.If(reading & advance):
            m.d.sync += position.eq(Mux(last, 0, position + 1))
            with m.If(last):
                m.d.sync += [reading.eq(0), unread.eq(0)]

        # Three words wait in `collected` for the fourth of their beat.
        x = Signal(word_shape)
        product_bits = 16 + len(scale.factor)
        product = Signal(data.ArrayLayout(signed(product_bits), g.word_lanes))
        codes = Signal(data.ArrayLayout(signed(8), g.word_lanes))
        collected = Signal(3 * len(codes.as_value()))
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(advance):
            m.d.sync += [
                Cat(x_valid, product_valid, code_valid).eq(Cat(reading, x_valid, product_valid)),
                Cat(x_end, product_end, code_end).eq(Cat(position[:2].all(), x_end, product_end)),
                x.eq(r.data),
            ]
            for lane in range(g.word_lanes):
                m.d.sync += product[lane].eq(x[lane] * scale.factor)
                windows = [product[lane][18 - 4 * n : 27 - 4 * n] for n in range(4)]
                code = half_up(Array(windows)[scale.window].as_signed(), 1)
                m.d.sync += codes[lane].eq(code)
            with m.If(code_valid):
                m.d.sync += collected.eq(Cat(collected, codes)[len(codes.as_value()) :])
                with m.If(code_end):
                    m.d.sync += [
                        self.o.valid.eq(1),
                        self.o.payload.scale.eq(scale.scale),
                        self.o.payload.data.eq(Cat(collected, codes)),
                    ]
        return m
