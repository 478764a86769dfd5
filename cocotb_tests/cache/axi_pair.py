"""An AXI4 port of both directions: a reader and a writer on it."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.cache._read_port import word_shape as read_shape
from rtl.cache._write_port import word_shape as write_shape
from rtl.cache.arbiter import SHARE_BITS, UNDER_WAY_BITS
from rtl.cache.axi import READ, WRITE, AxiConfig
from rtl.cache.axi_reader import AxiReader
from rtl.cache.axi_writer import AxiWriter

__all__ = ["AxiPair"]


class AxiPair(wiring.Component):
    """Streams of an AxiReader (``i_read``, ``o_read``) and an AxiWriter (``i_write``, ``i_word``, ``o_write``)."""

    def __init__(self, config: AxiConfig) -> None:
        self.config = c = config
        requests = In(stream.Signature(c.request_shape)).array(c.ports)
        super().__init__(
            {
                "axi": Out(c.signature(WRITE + READ)),
                "i_read": requests,
                "o_read": Out(stream.Signature(read_shape(c))).array(c.ports),
                "i_write": requests,
                "i_word": In(stream.Signature(write_shape(c))).array(c.ports),
                "o_write": Out(stream.Signature(1)).array(c.ports),
                "share": In(SHARE_BITS),
                "pressure": In(UNDER_WAY_BITS),
                "read_fault": Out(c.fault_shape),
                "write_fault": Out(c.fault_shape),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.reader = reader = AxiReader(self.config)
        m.submodules.writer = writer = AxiWriter(self.config)
        for part, channels in ((reader, READ), (writer, WRITE)):
            for name, member in self.config.signature(channels).members.items():
                outer, inner = getattr(self.axi, name), getattr(part.axi, name)
                m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)
        for k in range(self.config.ports):
            wiring.connect(m, wiring.flipped(self.i_read[k]), reader.i_request[k])
            wiring.connect(m, reader.o[k], wiring.flipped(self.o_read[k]))
            wiring.connect(m, wiring.flipped(self.i_write[k]), writer.i_request[k])
            wiring.connect(m, wiring.flipped(self.i_word[k]), writer.i[k])
            wiring.connect(m, writer.o[k], wiring.flipped(self.o_write[k]))
        m.d.comb += [
            reader.share.eq(self.share),
            reader.pressure.eq(self.pressure),
            self.read_fault.eq(reader.fault),
            self.write_fault.eq(writer.fault),
        ]
        return m
