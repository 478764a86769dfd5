"""A LiteDRAM controller with its ports as a module of Migen, and the Verilog of that."""

import json
import re
from typing import Any

from litedram.core import LiteDRAMCore
from litedram.core.controller import ControllerSettings
from litedram.frontend.axi import LiteDRAMAXI2Native, LiteDRAMAXIPort
from litedram.frontend.wishbone import LiteDRAMWishbone2Native
from litedram.init import get_sdram_phy_init_sequence
from litedram.modules import MT41K256M16, SDRModule, _SpeedgradeTimings, _TechnologyTimings
from litedram.phy import ECP5DDRPHY, HalfRateGENSDRPHY, dfi
from litex.build.io import SDROutput, SDRTristate
from litex.gen import LiteXModule
from litex.gen.fhdl.verilog import convert
from litex.soc.interconnect import csr_bus, wishbone
from litex.soc.interconnect.csr import AutoCSR, CSRStatus, CSRStorage
from litex.soc.interconnect.stream import Buffer
from migen import ClockDomain, Instance, Module, Record, Signal
from migen.fhdl.specials import Tristate
from migen.fhdl.structure import wrap

__all__ = ["main", "make"]

_CSR_BITS = 10  # of the address of a register's word
_BANKS = ("control", "sdram", "phy")
_BANK_BYTES = 0x400

#: AXI4: names of a channel's fields, those that LiteX has in the payload or beside it
_ADDRESS = {"id": "id", "addr": "addr", "len": "len", "size": "size", "burst": "burst"}
_CHANNELS = {
    "aw": _ADDRESS,
    "w": {"data": "data", "strb": "strb", "last": "last"},
    "b": {"id": "id", "resp": "resp"},
    "ar": _ADDRESS,
    "r": {"id": "id", "data": "data", "resp": "resp", "last": "last"},
}
_ANSWERS = ("b", "r")


class _Sdr32MB(SDRModule):
    """The slowest figures, in ns, of the parts of 16 M x 16 bits that boards have.

    These are MT48LC16M16A2-75, IS42S16160G-7, AS4C16M16SA-7, W9825G6KH-6. tREFI leaves 4% of 64 ms / 8192 for refreshes
    that wait.
    """

    nbanks = 4
    nrows = 8192
    ncols = 512
    technology_timings = _TechnologyTimings(tREFI=7500, tWTR=(2, None), tCCD=(1, None), tRRD=(2, 15))
    speedgrade_timings = {  # noqa: RUF012 - as LiteDRAM has it
        "default": _SpeedgradeTimings(tRP=20, tRCD=20, tWR=20, tRFC=(None, 70), tFAW=None, tRAS=46)
    }


class _RegisteredPhy(Module):
    """A PHY behind registers, so that only these have half a cycle to and from its faster clock."""

    def __init__(self, phy: Any) -> None:
        self.submodules.phy = phy
        inside = phy.dfi
        phases = inside.phases
        self.dfi = dfi.Interface(
            len(phases[0].address), len(phases[0].bank), len(phases[0].cs_n), len(phases[0].wrdata), len(phases)
        )
        self.sync += [self.dfi.connect(inside)]
        self.settings = phy.settings
        self.settings.read_latency += 2


def _sdr_phy(pads: Record, clock_hz: float) -> _RegisteredPhy:
    return _RegisteredPhy(HalfRateGENSDRPHY(pads, clock_hz, cl=2))


def _ddr3_phy(pads: Record, clock_hz: float) -> ECP5DDRPHY:
    return ECP5DDRPHY(pads, clock_hz)


_COMMAND = (("ras_n", 1), ("cas_n", 1), ("we_n", 1), ("cs_n", 1), ("cke", 1))
_PARTS = {
    "sdr-32mb": (_Sdr32MB, _sdr_phy, [("a", 13), ("ba", 2), ("dq", 16), ("dm", 2), *_COMMAND]),
    "ddr3-512mb": (
        MT41K256M16,
        _ddr3_phy,
        [
            *[("a", 15), ("ba", 3), ("dq", 16), ("dm", 2), ("dqs_p", 2), ("clk_p", 1)],
            *[*_COMMAND, ("odt", 1), ("reset_n", 1)],
        ],
    ),
}


class _Control(Module, AutoCSR):
    """``ready`` opens the ports; ``cycles`` counts."""

    def __init__(self) -> None:
        self.ready = CSRStorage(name="ready")
        self.cycles = CSRStatus(32, name="cycles")
        self.sync += self.cycles.status.eq(self.cycles.status + 1)


class _Controller(LiteXModule):
    """PHY, controller, an AXI4 port, a Wishbone port of 32 bits, registers on another Wishbone port."""

    def __init__(self, *, memory: str, clock_hz: int, data_bits: int, id_bits: int) -> None:
        part, phy, pads = _PARTS[memory]
        self.ports: list[tuple[str, Signal, str]] = []  # name, signal, direction
        pads = Record(pads, name="dram")
        self._clocks(memory.startswith("ddr3"))
        self.phy = phy(pads, float(clock_hz))
        if memory.startswith("ddr3"):
            self.ports += [("stop", self.phy.init.stop, "o"), ("reset", self.phy.init.reset, "o")]
        self.part = part(float(clock_hz), "1:2")
        settings = (self.phy, self.part.geom_settings, self.part.timing_settings, float(clock_hz))
        # LiteDRAM keeps its controller's settings in an object that is made once, unless it is given one.
        self.sdram = LiteDRAMCore(*settings, controller_settings=ControllerSettings())
        # Not the controller but the host drives the memory after a reset, as its initialization wants.
        self.sdram.dfii._control.storage.reset = wrap(0)
        self.control = _Control()
        self.ready = self.control.ready.storage
        self._axi(data_bits, id_bits)
        self._host()
        self._registers()
        self.ports.append(("ready", self.ready, "o"))
        self.ports += [
            (f"dram_{name}", getattr(pads, name), "io" if name[:2] == "dq" else "o") for name, *_ in pads.layout
        ]

    def _clocks(self, ddr3: bool) -> None:
        self.cd_sys = ClockDomain("sys")
        self.cd_sys2x = ClockDomain("sys2x", reset_less=True)
        self.ports += [("clk", self.cd_sys.clk, "i"), ("rst", self.cd_sys.rst, "i")]
        self.ports.append(("clk2x", self.cd_sys2x.clk, "i"))
        if ddr3:
            self.cd_init = ClockDomain("init")
            self.ports += [("clk_init", self.cd_init.clk, "i"), ("rst_init", self.cd_init.rst, "i")]

    def _axi(self, data_bits: int, id_bits: int) -> None:
        port = self.sdram.crossbar.get_port(data_width=data_bits)
        address_bits = port.address_width + (data_bits // 8 - 1).bit_length()
        axi = LiteDRAMAXIPort(data_width=data_bits, address_width=address_bits, id_width=id_bits)
        self.axi = LiteDRAMAXI2Native(axi, port)
        for channel, fields in _CHANNELS.items():
            inside = getattr(axi, channel)
            out = channel in _ANSWERS
            # A register on each channel; ``ready`` of those to the memory would be a long path, too.
            slices = Buffer(inside.description, pipe_ready=not out)
            self.submodules += slices
            self.comb += inside.connect(slices.sink) if out else slices.source.connect(inside)
            into = slices.source if out else slices.sink
            for name in fields:
                self.ports.append((f"axi_{channel}{name}", getattr(into, name), "o" if out else "i"))
            if channel in ("aw", "ar"):
                valid, ready = Signal(), Signal()
                self.comb += [into.valid.eq(valid & self.ready), ready.eq(into.ready & self.ready)]
            else:
                valid, ready = into.valid, into.ready
            self.ports.append((f"axi_{channel}valid", valid, "o" if out else "i"))
            self.ports.append((f"axi_{channel}ready", ready, "i" if out else "o"))

    def _wishbone(self, name: str, bus: wishbone.Interface) -> None:
        ways = {"adr": "i", "dat_w": "i", "dat_r": "o", "sel": "i", "cyc": "i", "stb": "i", "we": "i", "ack": "o"}
        self.ports += [(f"{name}_{member}", getattr(bus, member), way) for member, way in ways.items()]

    def _host(self) -> None:
        port = self.sdram.crossbar.get_port(data_width=32)
        bus = wishbone.Interface(data_width=32, adr_width=port.address_width)
        inside = wishbone.Interface(data_width=32, adr_width=port.address_width)
        self.host = LiteDRAMWishbone2Native(inside, port)
        self.comb += [bus.connect(inside, omit={"stb"}), inside.stb.eq(bus.stb & self.ready)]
        self._wishbone("host", bus)

    def _registers(self) -> None:
        bus = wishbone.Interface(data_width=32, adr_width=_CSR_BITS)
        form = {"data_width": 32, "address_width": _CSR_BITS}
        self.bridge = wishbone.Wishbone2CSR(bus, csr_bus.Interface(**form))
        self.banks = csr_bus.CSRBankArray(self, lambda name, _: _BANKS.index(name), paging=_BANK_BYTES, **form)
        self.buses = csr_bus.Interconnect(self.bridge.csr, self.banks.get_buses())
        self._wishbone("ctrl", bus)

    def registers(self) -> dict[str, tuple[int, int]]:
        """Byte offset and words of each register, those of the controller without prefix."""
        found = {}
        for bank, csrs, place, _ in self.banks.banks:
            word = place * _BANK_BYTES // 4
            for csr in csrs:
                words = (csr.size + 31) // 32
                found[csr.name if bank != "phy" else f"phy_{csr.name}"] = (4 * word, words)
                word += words
        return found


class _Output:
    """An output register as a cell of its own."""

    @staticmethod
    def lower(what: Any) -> Module:
        made = Module()
        made.specials += Instance("dram_output", i_clk=what.clk, i_d=what.i, o_q=what.o)
        return made


class _InOut:
    """A pin of both directions and its registers as a cell of its own."""

    @staticmethod
    def lower(what: Any) -> Module:
        made = Module()
        ports = {"i_clk": what.clk, "i_d": what.o, "i_oe": what.oe, "o_q": what.i, "io_pad": what.io}
        made.specials += Instance("dram_inout", **ports)
        return made


class _Tristate:
    """A pin of both directions as a cell of its own."""

    @staticmethod
    def lower(what: Any) -> Module:
        made = Module()
        made.specials += Instance("dram_tristate", i_d=what.o, i_oe=what.oe, o_q=what.i, io_pad=what.target)
        return made


def make(name: str, **config: Any) -> dict[str, Any]:
    """The module's Verilog and ports, its registers, and what the memory needs."""
    controller = _Controller(**config)
    for port, signal, _ in controller.ports:
        signal.name_override = port
    signals = {signal for _, signal, _ in controller.ports}
    overrides = {SDROutput: _Output, SDRTristate: _InOut, Tristate: _Tristate}
    # With regular_comb, blocks would read what they assign, and event-driven simulators never end them.
    text = convert(controller, signals, name=name, regular_comb=False, special_overrides=overrides).main_source
    settings, geometry = controller.phy.settings, controller.part.geom_settings
    bits = geometry.bankbits + geometry.rowbits + geometry.colbits
    return {
        "verilog": _tidied(text),
        "ports": [(port, len(signal), way) for port, signal, way in controller.ports],
        "registers": controller.registers(),
        "memory_bytes": (1 << bits) * settings.databits // 8,
        "steps": get_sdram_phy_init_sequence(settings, controller.part.timing_settings)[0],
        "phases": (settings.rdphase, settings.wrphase),
        "strobes": settings.databits // 8,
        "refresh_cycles": controller.part.timing_settings.tREFI,
    }


def _tidied(text: str) -> str:
    """Without comments, which name the day and versions of tools, the time scale, and assignments that come twice."""
    kept: dict[str, None] = {}
    for number, line in enumerate(text.splitlines()):
        line = re.sub(r"\s*//.*$", "", line).rstrip()
        if line and not line.startswith("`timescale"):
            kept[line if line.startswith("assign ") else f"{line}\0{number}"] = None
    return "".join(line.partition("\0")[0] + "\n" for line in kept)


def main(arguments: str) -> None:
    """Print what `make` returns, as JSON."""
    print(json.dumps(make(**json.loads(arguments))))
