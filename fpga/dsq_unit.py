"""A RowQuantizer that a host feeds over a serial line: the design of boards that have no room for more."""

import json
import zlib
from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect

from fpga.host import INFORMATION, REGISTERS
from fpga.host_bus import information
from fpga.ice40_memory import with_block_memories
from rtl.config import DsqConfig
from rtl.dsq.row_quantizer import RowQuantizer
from rtl.link.host_link import ACCESS_SHAPE, RESULT_SHAPE, HostLink, LinkConfig

__all__ = ["BEAT_WORDS", "CODES", "K_ROWS", "LANES", "PATIENCE", "RESET", "V_ROWS", "DsqUnit", "check_unit", "unit_crc"]

WORD_BITS = 32
#: channels of a beat, of which each takes two words on the way in, and two on the way out
LANES, BEAT_WORDS = 4, 2
#: byte addresses of the windows, a word each: K rows and V rows to the unit, write only;
K_ROWS, V_ROWS = REGISTERS, REGISTERS + 4
#: codes and scales from it, read only; where any write resets it
CODES, RESET = REGISTERS + 8, REGISTERS + 12
#: cycles until an access that the unit does not do is an error; a row takes a tenth of it
PATIENCE = 1 << 12


def unit_crc(config: DsqConfig) -> int:
    """By which a unit says what it was made for, as `fpga.host.config_crc` does of an accelerator."""
    table = {"row_quantizer": {"head_dim": config.head_dim, "lanes": config.lanes}}
    return zlib.crc32(json.dumps(table, sort_keys=True).encode())


def check_unit(config: DsqConfig) -> None:
    """Whether a unit can have that geometry; raises `ValueError` when it cannot."""
    if config.lanes != LANES:
        raise ValueError(f"lanes must be {LANES}, not {config.lanes!r}")


class DsqUnit(wiring.Component):
    """HostLink and RowQuantizer.

    A beat of four channels is two words, the lower one first, right after each other: on the way in both hold channels,
    on the way out the first one holds codes and the second one the row's scale. Writing waits for the unit to take a
    beat, reading for its next one; what takes more than ``PATIENCE`` cycles is an error. The unit holds two rows before
    one must be read.

    Parameters
    ----------
    config : of the RowQuantizer, with four lanes
    link : of the serial line; its clock is the design's

    Members
    -------
    rx, tx : serial line
    waiting : there are codes for the host
    """

    def __init__(self, config: DsqConfig, link: LinkConfig) -> None:
        check_unit(config)
        self.config, self.link = config, link
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "waiting": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        words = information(clock_hz=self.link.clock_hz, dram_bytes=0, config_crc=unit_crc(self.config))
        quantizer, clear = RowQuantizer(self.config), Signal()
        m.submodules.link = link = HostLink(self.link)
        m.submodules.bus = bus = _UnitBus(words)
        m.submodules.quantizer = with_block_memories(ResetInserter(clear)(quantizer))
        connect(m, link.o_access, bus.i_access)
        connect(m, bus.o_result, link.i_result)
        m.d.comb += [
            link.rx.eq(self.rx),
            self.tx.eq(link.tx),
            self.waiting.eq(quantizer.o.valid),
            clear.eq(bus.clear),
            quantizer.i.valid.eq(bus.o_row.valid),
            quantizer.i.payload.rotate.eq(bus.rotate),
            Value.cast(quantizer.i.payload.data).eq(bus.o_row.payload),
            bus.o_row.ready.eq(quantizer.i.ready),
            bus.i_codes.valid.eq(quantizer.o.valid),
            bus.i_codes.payload.eq(Cat(quantizer.o.payload.data, quantizer.o.payload.scale)),
            quantizer.o.ready.eq(bus.i_codes.ready),
        ]
        return m


class _UnitBus(wiring.Component):
    """Accesses of the host to the streams of the unit.

    An access is taken when what it asks for is done, or after ``PATIENCE``; its result is there in the next cycle.
    Combinational paths: between ``i_access`` and the streams, both ways.

    Members
    -------
    i_access, o_result : bus of `HostLink`
    o_row, rotate : beats of rows
    i_codes : codes, and the scale above them
    clear : resets the unit
    """

    def __init__(self, words: tuple[int, ...]) -> None:
        self.words = words
        super().__init__(
            {
                "i_access": In(stream.Signature(ACCESS_SHAPE)),
                "o_result": Out(stream.Signature(RESULT_SHAPE)),
                "o_row": Out(stream.Signature(2 * WORD_BITS)),
                "rotate": Out(1),
                "i_codes": In(stream.Signature(WORD_BITS + 8)),
                "clear": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        access, result = self.i_access.payload, self.o_result
        asked, done, known, data = Signal(), Signal(), Signal(), Signal(WORD_BITS)
        lower, upper = Signal(WORD_BITS), Signal()  # the first word of a beat; the next one is its second
        waited = Signal(range(PATIENCE))
        m.d.comb += [
            asked.eq(self.i_access.valid & ~result.valid),
            self.i_access.ready.eq(asked & (done | waited.all())),
            self.o_row.payload.eq(Cat(lower, access.data)),
        ]
        m.d.sync += waited.eq(Mux(asked, waited + 1, 0))
        with m.If(result.ready):
            m.d.sync += result.valid.eq(0)
        with m.If(self.i_access.ready):
            m.d.sync += [
                result.valid.eq(1),
                result.payload.data.eq(data),
                result.payload.error.eq(~(known & done)),
                lower.eq(access.data),
                upper.eq(0),
            ]

        m.d.comb += [done.eq(1), known.eq(1)]
        with m.Switch(Cat(access.write, access.address)):
            for address, rotate in ((K_ROWS, 1), (V_ROWS, 0)):
                with m.Case(address // 4 << 1 | 1):
                    m.d.comb += [
                        self.rotate.eq(rotate),
                        self.o_row.valid.eq(asked & upper),
                        done.eq(~upper | self.o_row.ready),
                    ]
                    with m.If(asked & ~upper):
                        m.d.sync += upper.eq(1)
            with m.Case(CODES // 4 << 1):
                codes = self.i_codes
                m.d.comb += [
                    codes.ready.eq(asked & upper),
                    done.eq(codes.valid),
                    data.eq(codes.payload.word_select(upper, WORD_BITS)),
                ]
                with m.If(asked & codes.valid & ~upper):
                    m.d.sync += upper.eq(1)
            with m.Case(RESET // 4 << 1 | 1):
                m.d.comb += self.clear.eq(asked)
            for n, word in enumerate(self.words):
                with m.Case(INFORMATION // 4 + n << 1):
                    m.d.comb += data.eq(word)
            with m.Default():
                m.d.comb += known.eq(0)
        return m
