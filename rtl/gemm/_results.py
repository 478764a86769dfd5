"""Finished beats as results, the magnitudes of their rows, and the ends of commands."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.config import AcceleratorConfig
from rtl.gemm._collector import place_layout
from rtl.gemm._command import ROW_BITS, SIZE_BITS

__all__ = ["ResultStage", "result_layout", "row_layout"]

MAGNITUDE_BITS = 5
#: commands that have ended on one stream and not on the other, at most
ENDS = 31
_QUEUE = 4


def result_layout(pairs: int) -> data.StructLayout:
    """A beat of results."""
    return data.StructLayout(
        {
            "row": ROW_BITS,
            "column": SIZE_BITS,
            "second": SIZE_BITS,
            "count": bits_for(2 * pairs),
            "elements": data.ArrayLayout(signed(32), 2 * pairs),
        }
    )


def row_layout() -> data.StructLayout:
    """The magnitude of a finished row."""
    return data.StructLayout({"row": ROW_BITS, "magnitude": MAGNITUDE_BITS})


class ResultStage(wiring.Component):
    """Puts the elements of a beat in their order and keeps the largest magnitude of each row.

    Latency: ``latency`` cycles to ``o_result``, 4 from a row's last beat to ``o_row``.
    Throughput: a beat a cycle.
    Combinational paths: none.

    Members
    -------
    i : stream of beats, as `Epilogue` gives them
    o_result : stream of `result_layout`
    o_row : stream of `row_layout`, one for each row of a command
    o_end : stream without payload: all results and rows of a command have been taken
    """

    latency = 1

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config, pairs = config, config.gemm.pairs
        self._elements = data.ArrayLayout(signed(32), 2 * pairs)
        beat = data.StructLayout({"elements": self._elements, "tag": place_layout(config.gemm)})
        super().__init__(
            {
                "i": In(stream.Signature(beat)),
                "o_result": Out(stream.Signature(result_layout(pairs))),
                "o_row": Out(stream.Signature(row_layout())),
                "o_end": Out(stream.Signature(0)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pairs, place, elements = self.config.gemm.pairs, self.i.payload.tag, self.i.payload.elements
        m.submodules.results = results = SyncFIFO(width=self.o_result.payload.shape().size + 1, depth=_QUEUE)
        m.submodules.rows = rows = SyncFIFO(width=row_layout().size + 1, depth=_QUEUE)
        self._magnitudes(m, rows)
        halves = [*elements[0::2], *elements[1::2]] if pairs > 1 else list(elements)
        put = Signal(self.o_result.payload.shape())
        apart = self.config.dsq.head_dim // 2
        m.d.comb += [
            put.row.eq(place.row),
            put.column.eq(place.column),
            put.second.eq(place.column + Mux(place.halves, apart, pairs)),
            put.count.eq(place.count),
            *(put.elements[n].eq(Mux(place.halves, half, elements[n])) for n, half in enumerate(halves)),
            self.i.ready.eq(results.w_rdy & rows.w_rdy),
            results.w_en.eq(self.i.valid & rows.w_rdy),
            results.w_data.eq(Cat(put, place.last)),
        ]
        # An end is told when both of its transfers have been.
        ends = []
        for name, queue, target in (("results", results, self.o_result), ("rows", rows, self.o_row)):
            count = Signal(range(ENDS + 1), name=f"ended_{name}")
            ended = target.valid & target.ready & queue.r_data[-1]
            m.d.comb += [target.valid.eq(queue.r_rdy), queue.r_en.eq(target.ready), target.payload.eq(queue.r_data)]
            m.d.sync += count.eq(count + ended - (self.o_end.valid & self.o_end.ready))
            ends.append(count != 0)
        m.d.comb += self.o_end.valid.eq(ends[0] & ends[1])
        return m

    def _magnitudes(self, m: Module, rows: SyncFIFO) -> None:
        """Bits of a beat, then of a row's beats of a tile, their length, the longest of the row's tiles so far."""
        c, stages = self.config.gemm, 3
        advance = rows.w_rdy
        valid = Signal(stages)
        places = [Signal(place_layout(c), name=f"place_{n}") for n in range(stages)]
        of_beat, of_row, goes_on = Signal(31), Signal(31), Signal()
        put, length, longest = Signal(row_layout()), Signal(MAGNITUDE_BITS), Signal(MAGNITUDE_BITS)
        payload = self.i.payload
        counted = [
            Mux(payload.tag.count > n, element[:31] ^ element[31].replicate(31), 0)
            for n, element in enumerate(payload.elements)
        ]
        bits = 0
        for folded in counted:
            bits = bits | folded
        bit_length = Signal(MAGNITUDE_BITS)
        for n in range(31):
            with m.If(of_row[n]):
                m.d.comb += bit_length.eq(n + 1)
        m.submodules.memory = memory = Memory(shape=MAGNITUDE_BITS, depth=1 << len(payload.tag.row), init=[])
        write = memory.write_port()
        read = memory.read_port(transparent_for=(write,))
        before = Mux(places[2].first, 0, read.data)
        m.d.comb += [
            read.en.eq(advance),
            read.addr.eq(places[1].row),
            longest.eq(Mux(before > length, before, length)),
            write.en.eq(valid[2] & advance),
            write.addr.eq(places[2].row),
            write.data.eq(longest),
            put.row.eq(places[2].row),
            put.magnitude.eq(longest),
            rows.w_en.eq(valid[2] & places[2].final),
            rows.w_data.eq(Cat(put, places[2].last)),
        ]
        with m.If(advance):
            m.d.sync += [
                valid.eq(Cat(self.i.valid & self.i.ready, valid[0], valid[1] & places[1].row_ends)),
                Cat(places).eq(Cat(payload.tag, places)),
                of_beat.eq(bits),
                length.eq(bit_length),
            ]
            with m.If(valid[0]):
                m.d.sync += [of_row.eq(of_beat | Mux(goes_on, of_row, 0)), goes_on.eq(~places[0].row_ends)]
