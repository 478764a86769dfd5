"""Part of the GEMM engine: where in the scratchpad the rows of beats begin, and what is read there."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from rtl.config import AcceleratorConfig
from rtl.control._gemm_front import NUMBER_BITS
from rtl.control._gemm_rows import PLACE_BITS, limited
from rtl.control._scratch_reads import ReadPorts
from rtl.control.scratchpad import ADDRESS_BITS, read_layout, word_layout
from rtl.gemm._collector import residual_layout
from rtl.gemm._command import ROW_BITS, SIZE_BITS
from rtl.gemm.core import GemmCore

__all__ = ["GemmResiduals", "RowPlaces", "lane_group", "places_layout"]


def places_layout() -> data.StructLayout:
    """A command's rows from word ``base`` on, ``stride`` words apart; ``beats`` of each row come."""
    return data.StructLayout(
        {"rows": ROW_BITS, "beats": SIZE_BITS, "base": ADDRESS_BITS, "stride": 12, "number": NUMBER_BITS}
    )


def lane_group(config: AcceleratorConfig, column: Any) -> Any:
    """Which ``pairs`` elements of a word begin with this column."""
    return column[exact_log2(config.gemm.pairs) : exact_log2(config.gemm.row_lanes)]


class RowPlaces(wiring.Component):
    """Follows the rows of beats, which come row after row and then again for each tile of columns.

    Latency: 1 cycle. Throughput: a beat a cycle.
    Combinational paths: ``o.ready`` to ``i.ready``.

    Members
    -------
    i_command : stream of `places_layout`; taken with the last beat
    i : stream of beats, with a member ``row``
    o : stream of struct{beat, place, last, number}: ``place`` is the first word of the beat's row
    """

    def __init__(self, beat: data.StructLayout) -> None:
        self.o_shape = data.StructLayout({"beat": beat, "place": PLACE_BITS, "last": 1, "number": NUMBER_BITS})
        super().__init__(
            {
                "i_command": In(stream.Signature(places_layout())),
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        command, beat, out = self.i_command.payload, self.i.payload, self.o.payload
        place, taken, last = Signal(PLACE_BITS), Signal(), Signal()
        # The beats of the last row tell when the command ends.
        left = Signal(SIZE_BITS)
        begun = Signal()
        of_last_row = beat.row == command.rows - 1
        m.d.comb += [
            self.i.ready.eq(self.i_command.valid & (~self.o.valid | self.o.ready)),
            taken.eq(self.i.valid & self.i.ready),
            last.eq(of_last_row & (Mux(begun, left, command.beats) == 1)),
            self.i_command.ready.eq(taken & last),
            place.eq(
                Mux(beat.row == 0, command.base, Mux(beat.row == out.beat.row, out.place, out.place + command.stride))
            ),
        ]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(taken)
        with m.If(taken):
            m.d.sync += [out.beat.eq(beat), out.place.eq(place), out.last.eq(last), out.number.eq(command.number)]
            with m.If(of_last_row):
                m.d.sync += [begun.eq(~last), left.eq(Mux(begun, left, command.beats) - 1)]
        return m


class GemmResiduals(wiring.Component):
    """Reads what is added to beats of results.

    Latency: 1 cycle from a request to that of the scratchpad, none from its word to the answer.
    Throughput: a beat a cycle.
    Combinational paths: ``i_word.valid`` to ``o.valid``, ``o.ready`` to ``i_word.ready``, ``o_read.ready`` to
    ``i.ready``.

    Members
    -------
    i_command : stream of `places_layout`, of those that take residuals
    i, o : requests and answers, as `GemmCore` has them
    o_read, i_word : requests of the scratchpad and its words
    outside, number : strobe: a request of this command lay behind the end
    """

    def __init__(self, config: AcceleratorConfig, core: GemmCore) -> None:
        self.config = config
        super().__init__(
            {
                "i_command": In(stream.Signature(places_layout())),
                "i": In(stream.Signature(residual_layout())),
                "o": Out(core.i_residual.signature.flip()),
                "o_read": Out(stream.Signature(read_layout())),
                "i_word": In(stream.Signature(word_layout(config))),
                "outside": Out(1),
                "number": Out(NUMBER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config.gemm
        m.submodules.places = places = RowPlaces(residual_layout())
        connect(m, flipped(self.i_command), places.i_command)
        connect(m, flipped(self.i), places.i)
        asked = places.o.payload
        group = lane_group(self.config, asked.beat.column)
        m.submodules.groups = groups = SyncFIFO(width=len(group), depth=ReadPorts.DEPTH)
        address = Signal(PLACE_BITS)
        m.d.comb += [
            address.eq(asked.place + (asked.beat.column >> exact_log2(c.row_lanes))),
            self.o_read.valid.eq(places.o.valid & groups.w_rdy),
            self.o_read.payload.address.eq(limited(address, ADDRESS_BITS)),
            places.o.ready.eq(self.o_read.ready & groups.w_rdy),
            groups.w_en.eq(self.o_read.valid & self.o_read.ready),
            groups.w_data.eq(group),
            self.outside.eq(groups.w_en & (address >= self.config.control.scratch_words)),
            self.number.eq(asked.number),
            self.o.valid.eq(self.i_word.valid),
            self.i_word.ready.eq(self.o.ready),
            groups.r_en.eq(self.o.valid & self.o.ready),
        ]
        # Of a word's last elements only the first `pairs` count.
        word = self.i_word.payload.data.as_value()
        element = len(word) // c.row_lanes
        further = Cat(word, word[: element * c.pairs])
        chosen = further.bit_select(groups.r_data * (element * c.pairs), 2 * c.pairs * element)
        m.d.comb += self.o.payload.as_value().eq(chosen)
        return m
