"""Part of the GEMM engine: requests for angles, and for each tile's parameters and weights."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.control.commands import LINE_BYTES
from golden.control.memory import COLUMN_BYTES
from golden.gemm.core import ROTARY_TILES
from rtl.cache.axi import AxiConfig
from rtl.config import AcceleratorConfig
from rtl.gemm._command import ROW_BITS, SIZE_BITS

__all__ = ["ANGLE_BITS", "GemmFetch", "TileGeometry", "memory_port"]

#: a cosine and a sine
ANGLE_BITS = 32


def memory_port(config: AcceleratorConfig) -> AxiConfig:
    """Geometry of a port of memory, as far as its requests and words depend on it."""
    return AxiConfig(data_bits=config.dsq.bus_bits, addr_bits=config.cache.addr_bits, max_burst=1, depths=(1,))


class TileGeometry:
    """How much of what a word of the bus holds."""

    def __init__(self, config: AcceleratorConfig) -> None:
        bus, c = config.dsq.bus_bits, config.gemm
        #: angles and k steps of a word, words that a tile's parameters take
        self.angles = bus // ANGLE_BITS
        self.steps = bus // (8 * c.columns)
        self.parameter_words = c.columns * COLUMN_BYTES * 8 // bus
        #: angles of a row
        self.row_angles = config.dsq.head_dim // 2
        self.angles_shape = range(ROTARY_TILES * c.rows * self.row_angles + 1)

    def step_words(self, k: Any) -> Any:
        """Words of ``k`` steps."""
        return (k + self.steps - 1) >> exact_log2(self.steps)

    def angle_words(self, angles: Any) -> Any:
        """Words of so many angles."""
        return (angles + self.angles - 1) >> exact_log2(self.angles)


class GemmFetch(wiring.Component):
    """Asks for all of a command at once: its angles, then tile by tile.

    Latency: 1 cycle to the first request. Throughput: a request a cycle, a pause of one between commands.
    Combinational paths: none.

    Members
    -------
    i_command : stream of struct{stream, angles, turns, rows, k, columns}; taken with the last request
    o : stream of requests, see `AxiConfig.request_shape`; ``bad`` beyond the last address
    beyond : there was such a request; until reset
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        fields = {"stream": 32, "angles": 32, "turns": 1, "rows": ROW_BITS, "k": SIZE_BITS, "columns": SIZE_BITS}
        super().__init__(
            {
                "i_command": In(stream.Signature(data.StructLayout(fields))),
                "o": Out(stream.Signature(memory_port(config).request_shape)),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        command, request, geometry = self.i_command.payload, self.o.payload, TileGeometry(self.config)
        shift = exact_log2(LINE_BYTES * 8 // self.config.dsq.bus_bits)
        ends = 1 << memory_port(self.config).word_addr_bits
        address, count = Signal(max(32 + shift, exact_log2(ends)) + 1), Signal.like(request.count)
        left, tile_words, angles = Signal(SIZE_BITS), Signal.like(count), Signal(geometry.angles_shape)
        behind = Signal(len(address) + 1)
        m.d.comb += [
            angles.eq(command.rows * geometry.row_angles),
            tile_words.eq(geometry.parameter_words + geometry.step_words(command.k)),
            behind.eq(address + count),
            request.address.eq(address),
            request.count.eq(count),
            request.bad.eq(behind > ends),
        ]
        taken = self.o.valid & self.o.ready
        with m.If(taken & request.bad):
            m.d.sync += self.beyond.eq(1)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.sync += [
                    address.eq(Mux(command.turns, command.angles, command.stream) << shift),
                    count.eq(Mux(command.turns, geometry.angle_words(angles), tile_words)),
                    left.eq(command.columns),
                ]
                with m.If(self.i_command.valid):
                    m.next = "TILES"
                    with m.If(command.turns):
                        m.next = "ANGLES"
            with m.State("ANGLES"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(taken):
                    m.d.sync += [address.eq(command.stream << shift), count.eq(tile_words)]
                    m.next = "TILES"
            with m.State("TILES"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(taken):
                    m.d.sync += [address.eq(behind), left.eq(left - self.config.gemm.columns)]
                    with m.If(left <= self.config.gemm.columns):
                        m.d.comb += self.i_command.ready.eq(1)
                        m.next = "COMMAND"
        return m
