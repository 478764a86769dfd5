"""Part of the GEMM engine: words of memory to angles, columns and weights."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from golden.control.memory import COLUMN_BYTES
from rtl.cache._read_port import word_shape
from rtl.config import AcceleratorConfig
from rtl.control._gemm_fetch import ANGLE_BITS, TileGeometry, memory_port
from rtl.control._gemm_front import NUMBER_BITS
from rtl.gemm._column_buffer import column_layout
from rtl.gemm._command import ROW_BITS, SIZE_BITS
from rtl.gemm._rotary_table import angle_layout

__all__ = ["WordSplitter"]

_COLUMN_BITS = 8 * COLUMN_BYTES
#: words that wait; those of weights bridge the words of parameters between them
_ANGLE_QUEUE, _COLUMN_QUEUE, _WEIGHT_QUEUE = 2, 8, 8


class WordParts(wiring.Component):
    """Gives out the first parts of words, from queue to stream, a part a cycle.

    Members
    -------
    i : stream of struct{data, last}: ``last`` is the number of the last part that counts
    o : stream of parts
    """

    def __init__(self, *, bits: int, parts: int, depth: int) -> None:
        self.bits, self.depth = bits, depth
        word = data.StructLayout({"data": bits * parts, "last": range(parts)})
        super().__init__({"i": In(stream.Signature(word)), "o": Out(stream.Signature(bits))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        shape = self.i.payload.shape()
        m.submodules.words = words = SyncFIFO(width=shape.size, depth=self.depth)
        word, part = data.View(shape, words.r_data), Signal.like(self.i.payload.last)
        given, ends = self.o.valid & self.o.ready, part == word.last
        m.d.comb += [
            words.w_en.eq(self.i.valid),
            words.w_data.eq(self.i.payload),
            self.i.ready.eq(words.w_rdy),
            self.o.valid.eq(words.r_rdy),
            self.o.payload.eq(word.data.word_select(part, self.bits)),
            words.r_en.eq(given & ends),
        ]
        with m.If(given):
            m.d.sync += part.eq(Mux(ends, 0, part + 1))
        return m


class WordSplitter(wiring.Component):
    """Gives each word to those who wait for it, and drops padding.

    Words of angles, columns and weights wait in queues of their own, so that none of the three streams pauses for the
    others' words as long as a word comes each cycle.

    Latency: 1 cycle. Throughput: a word a cycle, a pause of one between commands; an item of each stream a cycle.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{turns, rows, k, columns, number}; taken with the last word
    drop : all words are taken and none are given on
    i : stream of words
    o_rotary, o_column, o_weight : as `GemmCore` takes them
    failed, number : strobe: a word of this command has failed
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        fields = {"turns": 1, "rows": ROW_BITS, "k": SIZE_BITS, "columns": SIZE_BITS, "number": NUMBER_BITS}
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout(fields))),
                "drop": In(1),
                "i": In(stream.Signature(word_shape(memory_port(config)))),
                "o_rotary": Out(stream.Signature(angle_layout())),
                "o_column": Out(stream.Signature(column_layout())),
                "o_weight": Out(stream.Signature(data.ArrayLayout(signed(8), config.gemm.columns))),
                "failed": Out(1),
                "number": Out(NUMBER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus, c, command = self.config.dsq.bus_bits, self.config.gemm, self.i_command.payload
        geometry = TileGeometry(self.config)
        entries, entry_words = max(1, bus // _COLUMN_BITS), max(1, _COLUMN_BITS // bus)
        sizes = (geometry.angles, entries, geometry.steps)
        angles = WordParts(bits=ANGLE_BITS, parts=geometry.angles, depth=_ANGLE_QUEUE)
        columns = WordParts(bits=_COLUMN_BITS, parts=entries, depth=_COLUMN_QUEUE)
        weights = WordParts(bits=8 * c.columns, parts=geometry.steps, depth=_WEIGHT_QUEUE)
        m.submodules.angles, m.submodules.columns, m.submodules.weights = angles, columns, weights
        for part, out in ((angles, self.o_rotary), (columns, self.o_column), (weights, self.o_weight)):
            m.d.comb += [out.valid.eq(part.o.valid), part.o.ready.eq(out.ready)]
        entry, given = columns.o.payload, self.o_column.payload
        m.d.comb += [
            self.o_rotary.payload.eq(angles.o.payload),
            self.o_weight.payload.eq(weights.o.payload),
            Cat(given.scale, given.shift, given.bias).eq(Cat(entry[:23], entry[32:])),
        ]

        # A section: words of one kind, of which the first `items` items count.
        active, kind = Signal(), Signal(range(3))
        words, items = Signal(SIZE_BITS + 1), Signal(max(SIZE_BITS, (geometry.angles_shape.stop - 1).bit_length()))
        left = Signal(SIZE_BITS)
        turns = Signal(geometry.angles_shape)
        m.d.comb += turns.eq(command.rows * geometry.row_angles)

        def begin_columns(left: Any) -> list[Any]:
            return [kind.eq(1), words.eq(geometry.parameter_words), items.eq(Mux(left < c.columns, left, c.columns))]

        taken, whole, low = Signal(), Signal(), Signal(bus)
        if entry_words == 1:
            m.d.comb += whole.eq(1)
            column_data: Any = self.i.payload.data
        else:
            odd = Signal()
            m.d.comb += whole.eq((kind != 1) | odd)
            column_data = Cat(low, self.i.payload.data)
            with m.If(taken & (kind == 1)):
                m.d.sync += [low.eq(self.i.payload.data), odd.eq(~odd)]
        rooms = []
        for n, (part, size) in enumerate(zip((angles, columns, weights), sizes, strict=True)):
            wanted = (kind == n) & (items != 0) & whole
            m.d.comb += [
                part.i.valid.eq(active & self.i.valid & wanted & ~self.drop),
                part.i.payload.data.eq(column_data if n == 1 else self.i.payload.data),
                part.i.payload.last.eq(Mux(items < size, items - 1, size - 1)),
            ]
            rooms.append(part.i.ready | ~wanted)
        m.d.comb += [
            self.i.ready.eq(self.drop | (active & Cat(rooms).all())),
            taken.eq(active & self.i.valid & self.i.ready),
            self.failed.eq(taken & self.i.payload.error),
            self.number.eq(command.number),
        ]
        item_count = Signal(range(max(sizes) + 1))
        m.d.comb += item_count.eq(Mux(kind == 0, sizes[0], Mux(kind == 1, sizes[1], sizes[2])))
        with m.If(~active & self.i_command.valid):
            m.d.sync += [active.eq(1), left.eq(command.columns), *begin_columns(command.columns)]
            with m.If(command.turns):
                m.d.sync += [kind.eq(0), words.eq(geometry.angle_words(turns)), items.eq(turns)]
        with m.If(taken):
            m.d.sync += words.eq(words - 1)
            with m.If(whole):
                m.d.sync += items.eq(Mux(items < item_count, 0, items - item_count))
            with m.If(words == 1):
                with m.Switch(kind):
                    with m.Case(0):
                        m.d.sync += begin_columns(left)
                    with m.Case(1):
                        m.d.sync += [kind.eq(2), words.eq(geometry.step_words(command.k)), items.eq(command.k)]
                    with m.Default():
                        m.d.sync += [left.eq(left - c.columns), *begin_columns(left - c.columns)]
                        with m.If(left <= c.columns):
                            m.d.comb += self.i_command.ready.eq(1)
                            m.d.sync += active.eq(0)
        return m
