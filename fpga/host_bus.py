"""What the host reaches over its link: memory, registers of the accelerator and of the DRAM controller, the board."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from fpga.host import MAGIC
from rtl.control.registers import ADDRESS_BITS, AxiLiteSignature
from rtl.link.host_link import ACCESS_SHAPE, RESULT_SHAPE

__all__ = ["HostBus", "Space", "WishboneSignature", "information"]

_SPACE_BITS = 4
_WORD_BITS = 32


class Space(IntEnum):
    """The top four bits of a byte address. Memory also has those below the registers."""

    MEMORY = 0x0
    REGISTERS = 0x8
    CONTROLLER = 0x9
    INFORMATION = 0xA

    @property
    def base(self) -> int:
        """The first byte address."""
        return self.value << (32 - _SPACE_BITS)


class WishboneSignature(wiring.Signature):
    """Wishbone as its manager sees it: whole words of 32 bits, classic cycles, one at a time."""

    def __init__(self) -> None:
        super().__init__(
            {
                "cyc": Out(1),
                "stb": Out(1),
                "we": Out(1),
                "adr": Out(_WORD_BITS - 2),
                "dat_w": Out(_WORD_BITS),
                "sel": Out(_WORD_BITS // 8),
                "dat_r": In(_WORD_BITS),
                "ack": In(1),
                "err": In(1),
            }
        )


def information(*, clock_hz: int, dram_bytes: int, config_crc: int) -> tuple[int, ...]:
    """Words that tell a host what it speaks to."""
    return (MAGIC, clock_hz, dram_bytes, config_crc)


class HostBus(wiring.Component):
    """Passes each access on to where its address lies, and the result back.

    Latency: 2 cycles, and what the addressed takes. Throughput: one access at a time. Combinational paths: none.

    Parameters
    ----------
    words : of the board's information
    dram_bytes : accesses of memory behind them are errors, as are those of no space

    Members
    -------
    i_access, o_result : bus of `HostLink`
    dram, controller : Wishbone, as manager; addresses count words from the space's first one
    axil : registers of the accelerator, as manager
    """

    def __init__(self, words: tuple[int, ...], dram_bytes: int) -> None:
        self.words, self.dram_bytes = words, dram_bytes
        super().__init__(
            {
                "i_access": In(stream.Signature(ACCESS_SHAPE)),
                "o_result": Out(stream.Signature(RESULT_SHAPE)),
                "dram": Out(WishboneSignature()),
                "controller": Out(WishboneSignature()),
                "axil": Out(AxiLiteSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        access, result = Signal(ACCESS_SHAPE), self.o_result
        space, below = access.address[-_SPACE_BITS:], access.address[:-_SPACE_BITS]
        m.d.comb += self.i_access.ready.eq(0)
        with m.If(result.ready):
            m.d.sync += result.valid.eq(0)

        def finish(data: Any, error: Any) -> None:
            m.d.sync += [result.valid.eq(1), result.payload.data.eq(data), result.payload.error.eq(error)]
            m.next = "IDLE"

        self._registers(m, access)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += self.i_access.ready.eq(~result.valid)
                m.d.sync += access.eq(self.i_access.payload)
                with m.If(self.i_access.valid & ~result.valid):
                    m.next = "DECODE"
            with m.State("DECODE"):
                with m.If(space < Space.REGISTERS):
                    m.next = "DRAM"
                    with m.If(access.address >= self.dram_bytes // 4):
                        finish(0, 1)
                with m.Elif((space == Space.REGISTERS) & (below >> (ADDRESS_BITS - 2) == 0)):
                    m.d.sync += [
                        self.axil.awvalid.eq(access.write),
                        self.axil.wvalid.eq(access.write),
                        self.axil.arvalid.eq(~access.write),
                    ]
                    m.next = "REGISTERS"
                with m.Elif(space == Space.CONTROLLER):
                    m.next = "CONTROLLER"
                with m.Else():
                    known = (space == Space.INFORMATION) & (below < len(self.words)) & ~access.write
                    finish(self._information(m, below), ~known)
            with m.State("REGISTERS"):
                with m.If(self.axil.bvalid):
                    finish(0, self.axil.bresp != 0)
                with m.Elif(self.axil.rvalid):
                    finish(self.axil.rdata, self.axil.rresp != 0)
            for name, bus in (("DRAM", self.dram), ("CONTROLLER", self.controller)):
                with m.State(name):
                    with m.If(bus.ack | bus.err):
                        finish(bus.dat_r, bus.err)

        for name, bus in (("DRAM", self.dram), ("CONTROLLER", self.controller)):
            going = fsm.ongoing(name)
            m.d.comb += [
                bus.cyc.eq(going),
                bus.stb.eq(going),
                bus.we.eq(access.write),
                bus.adr.eq(Mux(fsm.ongoing("DRAM"), access.address, below)),
                bus.dat_w.eq(access.data),
                bus.sel.eq(-1),
            ]
        return m

    def _information(self, m: Module, place: Any) -> Signal:
        """The word of the board's information at that place."""
        word = Signal(_WORD_BITS)
        with m.Switch(place[: bits_for(len(self.words) - 1)]):
            for n, value in enumerate(self.words):
                with m.Case(n):
                    m.d.comb += word.eq(value)
        return word

    def _registers(self, m: Module, access: Any) -> None:
        """Addresses and data stay valid until they are taken."""
        axil, address = self.axil, access.address << 2
        m.d.comb += [
            axil.awaddr.eq(address),
            axil.araddr.eq(address),
            axil.wdata.eq(access.data),
            axil.wstrb.eq(-1),
            axil.bready.eq(1),
            axil.rready.eq(1),
        ]
        for channel in ("aw", "w", "ar"):
            with m.If(getattr(axil, f"{channel}ready")):
                m.d.sync += getattr(axil, f"{channel}valid").eq(0)
