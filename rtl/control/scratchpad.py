"""Activation rows between the cores, and the magnitudes of rows."""

from collections.abc import Sequence
from typing import Any, ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.cache._rotation import Rotation
from rtl.config import AcceleratorConfig
from rtl.control._scratch_lane import ScratchLane
from rtl.control._scratch_reads import ReadPorts
from rtl.emit import SharedModule

__all__ = [
    "ADDRESS_BITS",
    "MAGNITUDE_BITS",
    "ROW_BITS",
    "Scratchpad",
    "ask_layout",
    "magnitude_layout",
    "read_layout",
    "word_layout",
    "write_layout",
]

ADDRESS_BITS = 20
ROW_BITS = 16
MAGNITUDE_BITS = 5
_ELEMENT_BITS = 32
#: GEMM cores at most: bits that name who counts, and of a core's number
_PARTS, _SLOT_BITS = 8, 3


def read_layout() -> data.StructLayout:
    """Which word is asked for."""
    return data.StructLayout({"address": ADDRESS_BITS})


def word_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A word."""
    return data.StructLayout({"data": data.ArrayLayout(signed(_ELEMENT_BITS), config.gemm.row_lanes)})


def write_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A word of which the elements in ``mask`` are written."""
    word = {name: field.shape for name, field in word_layout(config)}
    return data.StructLayout({"address": ADDRESS_BITS, "mask": config.gemm.row_lanes, **word})


def magnitude_layout() -> data.StructLayout:
    """The magnitude of a part of a row; ``first``: what ``slot`` had of the row before does not count."""
    return data.StructLayout({"row": ROW_BITS, "slot": _SLOT_BITS, "magnitude": MAGNITUDE_BITS, "first": 1})


def ask_layout() -> data.StructLayout:
    """Whose parts of a row count."""
    return data.StructLayout({"row": ROW_BITS, "parts": _PARTS})


class Scratchpad(wiring.Component):
    """A memory of words of ``row_lanes`` elements that cores share, and one of the magnitudes of rows.

    A row has a magnitude in each of ``cores`` slots, as several cores may write parts of one row.

    Latency: ``LATENCY`` cycles from a request for a word or a magnitude to its answer, when no other port asks.
    Throughput: in each cycle a word read, a word written, a magnitude read, a magnitude written; ports in rotation.
    Stalls: a port that does not take its answers holds up no other.
    Combinational paths: between the write ports, from ``valid`` to ``ready``, also between those of magnitudes.

    What is taken is seen by requests that are taken later, in whatever port; a word that is written before an earlier
    request for it is answered may be read as anything. The memories keep their content in a reset.

    Parameters
    ----------
    config: of which ``control.scratch_words``, ``control.scratch_rows``, ``gemm.cores`` and ``gemm.row_lanes`` matter.

    Members
    -------
    i_read, o_read : arrays of streams of struct{address} and struct{data}: for each GEMM core its rows and its
        residuals, then MHA, DSQ, DMA
    i_write : array of streams of struct{address, mask, data}: the GEMM cores, MHA, DMA
    i_magnitude : array of streams of struct{row, slot, magnitude, first}: as ``i_write``; without ``first`` the slot
        keeps the larger of both
    i_ask, o_magnitude : arrays of streams of struct{row, parts} and of magnitudes, one for each GEMM core: the largest
        of the slots in ``parts``
    outside : for each user (the GEMM cores, MHA, DSQ, DMA): it has asked for a word or a row behind the end, which
        reads as 0, or written one, which is dropped
    """

    LATENCY: ClassVar[int] = ReadPorts.LATENCY

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        cores = config.gemm.cores
        self._reads = ReadPorts(2 * cores + 3, read_layout(), word_layout(config))
        self._asks = ReadPorts(cores, ask_layout(), MAGNITUDE_BITS)
        super().__init__(
            {
                "i_read": In(stream.Signature(read_layout())).array(2 * cores + 3),
                "o_read": Out(stream.Signature(word_layout(config))).array(2 * cores + 3),
                "i_write": In(stream.Signature(write_layout(config))).array(cores + 2),
                "i_magnitude": In(stream.Signature(magnitude_layout())).array(cores + 2),
                "i_ask": In(stream.Signature(ask_layout())).array(cores),
                "o_magnitude": Out(stream.Signature(MAGNITUDE_BITS)).array(cores),
                "outside": Out(cores + 3),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        cores = self.config.gemm.cores
        m.submodules.reads = reads = self._reads
        m.submodules.asks = asks = self._asks
        for outer, inner in (*zip(self.i_read, reads.i, strict=True), *zip(self.i_ask, asks.i, strict=True)):
            connect(m, flipped(outer), inner)
        for inner, outer in (*zip(reads.o, self.o_read, strict=True), *zip(asks.o, self.o_magnitude, strict=True)):
            connect(m, inner, flipped(outer))
        write, writer = self._merge(m, "write", self.i_write)
        size, sizer = self._merge(m, "magnitude", self.i_magnitude)

        def behind(user: Value, number: Value, end: int) -> Value:
            """The user, if this is behind the end."""
            return Mux(number >= end, user, 0)

        c = self.config.control
        of_cores = Cat(*(reads.grant[2 * n : 2 * n + 2].any() for n in range(cores)), reads.grant[2 * cores :])
        outside = [
            behind(of_cores, reads.request.address, c.scratch_words),
            behind(asks.grant, asks.request.row, c.scratch_rows),
            *(
                # DSQ writes nothing.
                Cat(user[: cores + 1], 0, user[cores + 1])
                for user in (
                    behind(writer, write.address, c.scratch_words),
                    behind(sizer, size.row, c.scratch_rows),
                )
            ),
        ]
        for users in outside:
            with m.If(users.any()):
                m.d.sync += self.outside.eq(self.outside | users)
        self._words(m, write, writer.any() & (write.address < c.scratch_words))
        self._magnitudes(m, size, sizer.any() & (size.row < c.scratch_rows))
        return m

    def _merge(self, m: Module, name: str, streams: Sequence[Any]) -> tuple[data.View, Signal]:
        """One transfer a cycle, in rotation: what was taken, a cycle later, and one-hot by whom."""
        m.submodules[f"{name}_rotation"] = rotation = Rotation(len(streams))
        payload = Signal(streams[0].payload.shape(), name=f"{name}_taken")
        user = Signal(len(streams), name=f"{name}_user")
        chosen = 0
        for n, source in enumerate(streams):
            m.d.comb += [rotation.ask[n].eq(source.valid), source.ready.eq(rotation.grant[n])]
            chosen = chosen | Mux(rotation.grant[n], source.payload, 0)
        m.d.comb += rotation.taken.eq(1)
        m.d.sync += [payload.as_value().eq(chosen), user.eq(rotation.grant)]
        return payload, user

    def _words(self, m: Module, put: data.View, valid: Value) -> None:
        """The words."""
        depth, inside = self.config.control.scratch_words, Signal()
        m.d.sync += inside.eq(self._reads.request.address < depth)
        bank = SharedModule(ScratchLane(_ELEMENT_BITS, depth), "scratch_lane")
        for n in range(self.config.gemm.row_lanes):
            m.submodules[f"lane_{n}"] = lane = bank.create()
            m.d.comb += [
                lane.w_en.eq(valid & put.mask[n]),
                lane.w_addr.eq(put.address),
                lane.w_data.eq(put.data[n]),
                lane.r_addr.eq(self._reads.request.address),
                self._reads.answer.data[n].eq(Mux(inside, lane.r_data, 0)),
            ]

    def _magnitudes(self, m: Module, put: data.View, valid: Value) -> None:
        """The magnitudes: read, then written if larger; the port for writes sees what is written in the same cycle."""
        slots, depth = self.config.gemm.cores, self.config.control.scratch_rows
        m.submodules.magnitudes = magnitudes = Memory(shape=slots * MAGNITUDE_BITS, depth=depth, init=[])
        write = magnitudes.write_port(granularity=MAGNITUDE_BITS)
        before, read = magnitudes.read_port(transparent_for=(write,)), magnitudes.read_port()
        size, sized, longest, kept = Signal.like(put), Signal(), Signal(MAGNITUDE_BITS), Signal(MAGNITUDE_BITS)
        m.d.sync += [size.eq(put), sized.eq(valid)]
        m.d.comb += [
            before.addr.eq(put.row),
            kept.eq(before.data.word_select(size.slot, MAGNITUDE_BITS)),
            longest.eq(Mux(size.first | (size.magnitude > kept), size.magnitude, kept)),
            write.addr.eq(size.row),
            write.data.eq(longest.replicate(slots)),
            write.en.eq(sized << size.slot),
        ]
        inside, parts = Signal(), Signal(_PARTS)
        m.d.sync += [inside.eq(self._asks.request.row < depth), parts.eq(self._asks.request.parts)]
        m.d.comb += read.addr.eq(self._asks.request.row)
        largest = 0
        for n in range(slots):
            part = Signal(MAGNITUDE_BITS, name=f"part_{n}")
            m.d.comb += part.eq(Mux(inside & parts[n], read.data.word_select(n, MAGNITUDE_BITS), 0))
            largest = part if n == 0 else Mux(part > largest, part, largest)
        m.d.comb += self._asks.answer.eq(largest)
