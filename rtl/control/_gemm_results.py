"""Part of the GEMM engine: results to the scratchpad, and the magnitudes of their rows."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from rtl.config import AcceleratorConfig
from rtl.control._gemm_front import NUMBER_BITS
from rtl.control._gemm_places import RowPlaces, lane_group, places_layout
from rtl.control._gemm_rows import PLACE_BITS, limited
from rtl.control.scratchpad import ADDRESS_BITS, magnitude_layout, write_layout
from rtl.control.scratchpad import ROW_BITS as MAGNITUDE_ROW_BITS
from rtl.gemm._command import ROW_BITS
from rtl.gemm._results import result_layout, row_layout

__all__ = ["GemmMagnitudes", "GemmResults"]


class GemmResults(wiring.Component):
    """Writes beats of results: those whose halves lie in different words in two cycles, others in one.

    Latency: 2 cycles.
    Combinational paths: ``o.ready`` to ``i.ready``.

    Members
    -------
    i_command : stream of `places_layout`
    i : stream of results, as `GemmCore` gives them
    o : stream of writes, as `Scratchpad` takes them; those behind the end have no mask
    ended : strobe: the last write of a command was taken
    outside, number : strobe: a write of this command lay behind the end
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__(
            {
                "i_command": In(stream.Signature(places_layout())),
                "i": In(stream.Signature(result_layout(config.gemm.pairs))),
                "o": Out(stream.Signature(write_layout(config))),
                "ended": Out(1),
                "outside": Out(1),
                "number": Out(NUMBER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config.gemm
        lane_bits, pairs = exact_log2(c.row_lanes), c.pairs
        m.submodules.places = places = RowPlaces(result_layout(pairs))
        connect(m, flipped(self.i_command), places.i_command)
        connect(m, flipped(self.i), places.i)
        given, beat, write = places.o.payload, places.o.payload.beat, self.o.payload
        step, half, last, inside = Signal(), Signal(), Signal(), Signal()
        apart = (beat.count > pairs) & (beat.column >> lane_bits != beat.second >> lane_bits)
        address = Signal(PLACE_BITS)
        first, second = (lane_group(self.config, column) for column in (beat.column, beat.second))
        m.d.comb += [
            step.eq(places.o.valid & (~self.o.valid | self.o.ready)),
            places.o.ready.eq(step & (half | ~apart)),
            address.eq(given.place + (Mux(half, beat.second, beat.column) >> lane_bits)),
            inside.eq(address < self.config.control.scratch_words),
            self.outside.eq(step & ~inside),
            self.number.eq(given.number),
            self.ended.eq(self.o.valid & self.o.ready & last),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(step):
            m.d.sync += [
                self.o.valid.eq(1),
                half.eq(apart & ~half),
                last.eq(given.last & places.o.ready),
                write.address.eq(limited(address, ADDRESS_BITS)),
            ]
            for lane in range(c.row_lanes):
                group, n = divmod(lane, pairs)
                of_first = (first == group) & (beat.count > n) & ~half
                of_second = (second == group) & (beat.count > pairs + n) & (half | ~apart)
                m.d.sync += [
                    write.mask[lane].eq((of_first | of_second) & inside),
                    write.data[lane].eq(Mux(of_second, beat.elements[pairs + n], beat.elements[n])),
                ]
        return m


class GemmMagnitudes(wiring.Component):
    """Writes the magnitudes of rows. Latency: 1 cycle.

    Combinational paths: ``o.ready`` to ``i.ready``.

    Members
    -------
    core : number of the core, whose slot it is
    i_command : stream of struct{rows, first, number}: the number of the ``first`` row
    i : stream of rows, as `GemmCore` gives them
    o : stream of magnitudes, as `Scratchpad` takes them; those behind the end change nothing
    ended, outside, number : see `GemmResults`
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        command = {"rows": ROW_BITS, "first": MAGNITUDE_ROW_BITS, "number": NUMBER_BITS}
        super().__init__(
            {
                "core": In(3),
                "i_command": In(stream.Signature(data.StructLayout(command))),
                "i": In(stream.Signature(row_layout())),
                "o": Out(stream.Signature(magnitude_layout())),
                "ended": Out(1),
                "outside": Out(1),
                "number": Out(NUMBER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        command, row, put = self.i_command.payload, self.i.payload, self.o.payload
        taken, last, held_last, inside = Signal(), Signal(), Signal(), Signal()
        number = Signal(MAGNITUDE_ROW_BITS + 1)
        m.d.comb += [
            self.i.ready.eq(self.i_command.valid & (~self.o.valid | self.o.ready)),
            taken.eq(self.i.valid & self.i.ready),
            last.eq(row.row == command.rows - 1),
            self.i_command.ready.eq(taken & last),
            number.eq(command.first + row.row),
            inside.eq(number < self.config.control.scratch_rows),
            self.outside.eq(taken & ~inside),
            self.number.eq(command.number),
            self.ended.eq(self.o.valid & self.o.ready & held_last),
            put.slot.eq(self.core),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(taken):
            m.d.sync += [
                self.o.valid.eq(1),
                held_last.eq(last),
                put.row.eq(limited(number, MAGNITUDE_ROW_BITS)),
                put.magnitude.eq(Mux(inside, row.magnitude, 0)),
                put.first.eq(inside),
            ]
        return m
