"""A generated DRAM controller with the model of an SDR SDRAM at its pins, and traffic made in HDL."""

import hashlib
from enum import IntEnum
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Const, Instance, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from fpga.dram import Controller
from rtl.cache.axi import AxiSignature
from sim.simulators import ROOT

__all__ = [
    "CHIP",
    "DramBoard",
    "DramTraffic",
    "Rule",
    "SdramPins",
    "WishboneSignature",
    "board_sources",
    "broken_rules",
]

CHIP = Path(__file__).resolve().parent / "sdram_model.v"
FAR = CHIP.with_name("sdram_far.v")

_INCR = 1
_COUNTERS = ("refreshes", "activates", "reads", "writes")
_STATUS = {"clear": In(1), "broken": Out(16), **{name: Out(32) for name in _COUNTERS}}


class Rule(IntEnum):
    """Bits of ``broken`` of the model; sdram_model.v says what they are."""

    ORDER = 0
    RCD = 1
    RP = 2
    RAS = 3
    RC = 4
    RFC = 5
    RRD = 6
    WR = 7
    MRD = 8
    CLOSED = 9
    OPEN = 10
    REFRESH = 11
    MODE = 12
    BUS = 13
    STORED = 14
    UNKNOWN = 15


def broken_rules(bits: int) -> list[Rule]:
    """The rules that are broken."""
    return [rule for rule in Rule if bits >> rule & 1]


class WishboneSignature(wiring.Signature):
    """Wishbone with words of 32 bits, as its manager sees it."""

    def __init__(self, addr_bits: int) -> None:
        out = {"adr": addr_bits, "dat_w": 32, "sel": 4, "cyc": 1, "stb": 1, "we": 1}
        super().__init__({**{name: Out(bits) for name, bits in out.items()}, "dat_r": In(32), "ack": In(1)})


def board_sources(controller: Controller, *, far: bool = False, **parameters: int) -> list[Path]:
    """Verilog files of module ``dram_board``: the controller and the model, its pins inside, other ports outside.

    ``parameters`` are those of module ``sdram_chip``, or of ``sdram_far``, that are not as there; the clock's period is
    the controller's.
    """
    parameters = {"PERIOD_PS": 10**12 // controller.clocks["clk2x"], **parameters}
    pins = [port for port in controller.ports if port.name.startswith("dram_")]
    ports = [port for port in controller.ports if port not in pins]
    kinds = {"i": "input", "o": "output", "io": "inout"}
    status = ["input clear", "output [15:0] broken", *(f"output [31:0] {name}" for name in _COUNTERS)]
    lines = [
        "module dram_board(",
        ",\n".join(
            [*(f"  {kinds[p.direction]} [{p.width - 1}:0] {p.name}" for p in ports), *(f"  {s}" for s in status)]
        ),
        ");",
        *(f"  wire [{pin.width - 1}:0] {pin.name};" for pin in pins),
        f"  {controller.name} controller(" + ", ".join(f".{p.name}({p.name})" for p in controller.ports) + ");",
        f"  sdram_{'far' if far else 'chip'} #("
        + ", ".join(f".{name}({value})" for name, value in parameters.items())
        + ") chip(.clk(clk2x), "
        + ", ".join(f".{pin.name.removeprefix('dram_')}({pin.name})" for pin in pins)
        + ", .clear(clear), .broken(broken), "
        + ", ".join(f".{name}({name})" for name in _COUNTERS)
        + ");",
        "endmodule",
    ]
    text = controller.verilog + controller.cells("generic") + "\n".join(lines) + "\n"
    path = ROOT / "build" / "dram" / f"board-{hashlib.sha256(text.encode()).hexdigest()[:12]}.v"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [path, CHIP, *([FAR] if far else [])]


class DramBoard(wiring.Component):
    """A controller and a memory; ``clk2x`` rises with ``clk`` and once between.

    Members
    -------
    axi : the accelerator's port
    host, ctrl : Wishbone to memory and to registers
    clear : rules and counters of the model; ``broken``: rules that were broken; ``refreshes``, ``activates``,
        ``reads``, ``writes``: commands
    ready : the ports are open
    """

    def __init__(self, controller: Controller) -> None:
        config = controller.config
        addr_bits = exact_log2(controller.memory_bytes)
        axi = AxiSignature(data_bits=config.data_bits, addr_bits=addr_bits, id_bits=config.id_bits)
        widths = {port.name: port.width for port in controller.ports}
        super().__init__(
            {
                "axi": In(axi),
                "host": In(WishboneSignature(widths["host_adr"])),
                "ctrl": In(WishboneSignature(widths["ctrl_adr"])),
                "ready": Out(1),
                "clk2x": In(1),
                **_STATUS,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "i_clk2x": self.clk2x}
        ports |= {"o_ready": self.ready, "i_clear": self.clear, "o_broken": self.broken}
        ports |= {f"o_{name}": getattr(self, name) for name in _COUNTERS}
        for name in ("axi", "host", "ctrl"):
            for path, member, value in getattr(self, name).signature.flatten(getattr(self, name)):
                way = "i" if member.flow is In else "o"
                ports[f"{way}_{name}_{path[0]}"] = value
        m.submodules.board = Instance("dram_board", **ports)
        return m


class SdramPins(wiring.Component):
    """The model alone; its parameters are the module's."""

    def __init__(self, **parameters: int) -> None:
        self.parameters = parameters
        pins = {"cke": 1, "cs_n": 1, "ras_n": 1, "cas_n": 1, "we_n": 1, "ba": 2, "a": 13, "dm": 2, "dq_i": 16}
        super().__init__(
            {
                **{name: In(bits) for name, bits in pins.items()},
                **{"dq_o": Out(16), "dq_oe": Out(2), "off": In(1)},
                **_STATUS,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports: dict[str, Any] = {f"p_{name}": value for name, value in self.parameters.items()}
        for path, member, value in self.signature.flatten(self):
            ports[f"{'i' if member.flow is In else 'o'}_{path[0]}"] = value
        m.submodules.model = Instance("sdram_model", i_clk=ClockSignal(), **ports)
        return m


class DramTraffic(wiring.Component):
    """A board and a master that keeps its port busy; a word that it writes is the word's address.

    Members
    -------
    host, ctrl, clear, broken, ... : as `DramBoard`
    read, write : the master sends reads, writes
    random : to random addresses, multiples of the burst; else to one after another
    length : words of a burst less one, one less than a power of two
    words_read, words_written : since ``clear``
    wrong : words read that are not the count of those before, since ``clear``; none if no address was random
    """

    def __init__(self, controller: Controller) -> None:
        self.board = DramBoard(controller)
        self.word_bits = exact_log2(controller.memory_bytes // 4)
        members = dict(self.board.signature.members.items())
        del members["axi"]
        asked = {"read": In(1), "write": In(1), "random": In(1), "length": In(8)}
        super().__init__({**members, **asked, **{n: Out(32) for n in ("words_read", "words_written", "wrong")}})

    def _addresses(self, m: Module, taken: Value, name: str, init: int) -> Value:
        """Word addresses, one for each transfer."""
        position, state = Signal(self.word_bits, name=f"{name}_position"), Signal(32, init=init, name=f"{name}_state")
        one, two, three = (Signal(32, name=f"{name}_{n}") for n in range(3))
        m.d.comb += [one.eq(state ^ (state << 13)), two.eq(one ^ (one >> 17)), three.eq(two ^ (two << 5))]
        with m.If(taken):
            m.d.sync += [position.eq(position + self.length + 1), state.eq(three)]
        return Mux(self.random, state[: self.word_bits] & ~(Const(0, self.word_bits) | self.length), position)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.board = board = self.board
        for name in board.signature.members:
            if name in ("host", "ctrl"):
                connect(m, flipped(getattr(self, name)), getattr(board, name))
            elif name != "axi":
                inside, outside = getattr(board, name), getattr(self, name)
                m.d.comb += inside.eq(outside) if board.signature.members[name].flow is In else outside.eq(inside)
        axi = board.axi
        for channel, init in (("ar", 2463534242), ("aw", 88675123)):
            taken = getattr(axi, f"{channel}valid") & getattr(axi, f"{channel}ready")
            address = self._addresses(m, taken, channel, init)
            fields = {"addr": address << 2, "len": self.length, "size": 2, "burst": _INCR}
            m.d.comb += [getattr(axi, f"{channel}{field}").eq(value) for field, value in fields.items()]
        # What is valid stays so when its direction is switched off.
        asking, telling = Signal(), Signal()
        m.d.sync += [asking.eq(axi.arvalid & ~axi.arready), telling.eq(axi.awvalid & ~axi.awready)]
        m.d.comb += [axi.arvalid.eq(self.read | asking), axi.rready.eq(1), axi.bready.eq(1)]

        # The words of a burst follow its address before the next one.
        word, left, busy = Signal(self.word_bits), Signal(8), Signal()
        sent = axi.wvalid & axi.wready
        m.d.comb += [
            axi.awvalid.eq(telling | (self.write & (~busy | (sent & axi.wlast)))),
            axi.wvalid.eq(busy),
            axi.wdata.eq(word),
            axi.wstrb.eq(~0),
            axi.wlast.eq(left == 0),
        ]
        with m.If(sent):
            m.d.sync += [word.eq(word + 1), left.eq(left - 1), busy.eq(left != 0)]
            m.d.sync += self.words_written.eq(self.words_written + 1)
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [busy.eq(1), left.eq(self.length), word.eq(axi.awaddr >> 2)]

        got = axi.rvalid & axi.rready
        expected = Signal(self.word_bits)
        with m.If(got):
            m.d.sync += [self.words_read.eq(self.words_read + 1), expected.eq(expected + 1)]
            with m.If(axi.rdata != expected):
                m.d.sync += self.wrong.eq(self.wrong + 1)
        with m.If(self.clear):
            m.d.sync += [self.words_read.eq(0), self.words_written.eq(0), self.wrong.eq(0)]
        return m
