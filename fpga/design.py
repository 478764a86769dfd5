"""What boards with DRAM have in common: the Soc, LiteDRAM's controller, and how they are connected."""

from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal, Signal
from amaranth.lib import io

from fpga.boards import Board
from fpga.dram import Controller, ControllerConfig
from fpga.fmax import map_multipliers
from fpga.soc import MODULE, Soc
from rtl.build import block_named, emit
from rtl.cache.cache import KvCache
from rtl.config import preset
from rtl.gemm.array import WEIGHT_BITS
from rtl.link.host_link import LinkConfig

__all__ = ["MemoryDesign", "pin_in", "pin_out", "serial_line"]


def pin_in(m: Module, port: Any, name: str) -> Any:
    """What is at a pin."""
    buffer = io.Buffer("i", port)
    m.submodules[f"{name}_buffer"] = buffer
    return buffer.i


def pin_out(m: Module, port: Any, name: str, value: Any) -> None:
    """Drive a pin."""
    buffer = io.Buffer("o", port)
    m.submodules[f"{name}_buffer"] = buffer
    m.d.comb += buffer.o.eq(value)


def serial_line(m: Module, port: Any, link: Any) -> None:
    """Connect ``rx`` and ``tx`` of a design with the pins of a UART."""
    m.d.comb += link.rx.eq(pin_in(m, port.rx, "rx"))
    pin_out(m, port.tx, "tx", link.tx)


class MemoryDesign:
    """Soc and controller of a board with DRAM, without clocks and pins."""

    #: modules whose cells are counted on their own
    BLOCKS = ("attention_core", "attention_cache", "gemm", "mha", "dsq", "dma", "processor", "scratchpad", "registers")

    def __init__(self, board: Board) -> None:
        assert board.memory is not None, board.name
        self.config = config = preset(board.preset)
        self.link = LinkConfig(clock_hz=board.clock_hz, baud=board.baud)
        self.accelerator, _ = emit(block_named("accelerator"), config)
        bits = config.dsq.bus_bits
        id_bits = KvCache.axi_configs(config)[0].id_bits
        self.controller = Controller.generate(
            ControllerConfig(memory=board.memory, clock_hz=board.clock_hz, data_bits=bits, id_bits=id_bits)
        )
        self.soc = Soc(config, self.link, self.controller.memory_bytes)

    def files(self, cells: str) -> dict[str, str]:
        """Verilog beside the Soc's, by file name; ``cells`` as in `fpga.dram.CELLS`."""
        return {
            f"{MODULE}.v": self.accelerator,
            f"{self.controller.name}.v": self.controller.verilog,
            "dram_cells.v": self.controller.cells(cells),
        }

    def commands(self) -> list[str]:
        """Of yosys, for an ECP5, before synthesis: multipliers as DSP blocks, and blocks that keep their boundaries."""
        gemm = self.config.gemm
        kept = " ".join(f"{MODULE}_{block}" for block in self.BLOCKS)
        return [
            *map_multipliers(gemm.act_bits, WEIGHT_BITS, "t:*_core_array_multiplier_*"),
            "rename -hide w:*",
            f"setattr -mod -set keep_hierarchy 1 {kept} {self.controller.name} top.soc.link",
        ]

    def connect(self, m: Module, pins: dict[str, Any]) -> None:
        """Add Soc and controller. ``pins``: of the controller, by port, and its clocks but ``clk``."""
        m.submodules.soc = soc = self.soc
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        buses = {"axi": soc.axi, "host": soc.dram, "ctrl": soc.controller}
        for port in self.controller.ports:
            name, value = f"{port.direction}_{port.name}", pins.get(port.name)
            bus, _, member = port.name.partition("_")
            if value is None and bus in buses:
                value = getattr(buses[bus], member)
                if port.direction == "i":
                    narrow, value = value, Signal(port.width, name=port.name)
                    m.d.comb += value.eq(narrow)  # addresses of the accelerator and of the memory differ in width
            if value is not None:
                ports[name] = value
            elif port.direction == "o":
                ports[name] = Signal(port.width, name=port.name)
        m.submodules.controller = Instance(self.controller.name, **ports)
