"""The design of a board without its pins: host link, accelerator, and the ports that a DRAM controller serves."""

from typing import Any

from amaranth.hdl import ClockSignal, Const, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from fpga.host import config_crc
from fpga.host_bus import HostBus, WishboneSignature, information
from rtl.cache.axi import READ, WRITE
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control.registers import AxiLiteSignature
from rtl.link.host_link import HostLink, LinkConfig

__all__ = ["MODULE", "Soc", "VerilogAccelerator"]

#: module of the accelerator
MODULE = "kvo_accelerator"


class VerilogAccelerator(wiring.Component):
    """The accelerator in the form that `rtl.build` has emitted it in; events are dropped, since nobody takes them."""

    def __init__(self, config: AcceleratorConfig) -> None:
        axi = KvCache.axi_configs(config)[0].signature(WRITE + READ)
        super().__init__({"axil": In(AxiLiteSignature()), "axi": Out(axi), "irq": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "i_o_event__ready": Const(1)}
        for path, member, value in self.signature.flatten(self):
            ports[f"{'i' if member.flow is In else 'o'}_{'__'.join(map(str, path))}"] = value
        m.submodules.instance = Instance(MODULE, **ports)
        return m


class Soc(wiring.Component):
    """An accelerator that a host drives over a serial line. What is emitted as ``kvo_accelerator`` must be beside it.

    Parameters
    ----------
    config : of the accelerator
    link : of the serial line; its clock is the design's
    dram_bytes : of memory

    Members
    -------
    rx, tx : serial line
    axi : memory for the accelerator, AXI4, as manager
    dram, controller : memory for the host and registers of the DRAM controller, Wishbone, as manager
    irq : of the accelerator
    """

    def __init__(self, config: AcceleratorConfig, link: LinkConfig, dram_bytes: int) -> None:
        self.config = config
        self._link = HostLink(link)
        words = information(clock_hz=link.clock_hz, dram_bytes=dram_bytes, config_crc=config_crc(config))
        self._bus = HostBus(words, dram_bytes)
        self._accelerator = VerilogAccelerator(config)
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "axi": Out(self._accelerator.axi.signature),
                "dram": Out(WishboneSignature()),
                "controller": Out(WishboneSignature()),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.link = link = self._link
        m.submodules.bus = bus = self._bus
        m.submodules.accelerator = accelerator = self._accelerator
        connect(m, link.o_access, bus.i_access)
        connect(m, bus.o_result, link.i_result)
        connect(m, bus.axil, accelerator.axil)
        connect(m, accelerator.axi, flipped(self.axi))
        connect(m, bus.dram, flipped(self.dram))
        connect(m, bus.controller, flipped(self.controller))
        m.d.comb += [
            link.rx.eq(self.rx),
            self.tx.eq(link.tx),
            self.irq.eq(accelerator.irq),
        ]
        return m
