"""DRAM of a board: LiteDRAM's controller as Verilog, its registers, and its initialization by the host."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fpga._ddr3 import level
from golden.errors import UserError

__all__ = ["CELLS", "CSR_BASE", "MEMORIES", "Client", "Controller", "ControllerConfig", "Port", "Step", "initialize"]

#: where the host sees the controller's registers
CSR_BASE = 0x9000_0000

_HERE = Path(__file__).resolve().parent
#: Verilog of the cells at the pins, by what they are for
CELLS = {"ecp5": _HERE / "dram_cells_ecp5.v", "generic": _HERE / "dram_cells_generic.v"}

#: memories: what it is, clock rates that it works with
MEMORIES = {
    "sdr-32mb": ("SDR SDRAM of 16 M x 16 bits, as on ULX3S", 14_000_000, 50_000_000),
    "ddr3-512mb": ("DDR3 SDRAM of 256 M x 16 bits, as on ECPIX-5", 50_000_000, 100_000_000),
}

_SEL, _CKE, _ODT, _RESET_N = 1, 2, 4, 8
_CONTROLS = {"DFII_CONTROL_CKE": _CKE, "DFII_CONTROL_ODT": _ODT, "DFII_CONTROL_RESET_N": _RESET_N}
_COMMANDS = {"DFII_COMMAND_CS": 1, "DFII_COMMAND_WE": 2, "DFII_COMMAND_CAS": 4, "DFII_COMMAND_RAS": 8}
_SDR_REFRESHES = 8  # some of the parts ask for 2 before they work, others for 8
_INIT_CLOCK_HZ = 25_000_000

# In a process of its own: the order of what LiteX writes depends on what it wrote before.
_DRIVER = "import sys; from fpga._dram_module import main; main(sys.argv[1])"


class Client(Protocol):
    """What reaches the host's addresses: words of 32 bits, at addresses of bytes."""

    def read(self, address: int, words: int) -> Any:
        """Words from ``address`` on."""

    def write(self, address: int, words: Sequence[int]) -> None:
        """Write words from ``address`` on."""


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """What is generated.

    Parameters
    ----------
    memory : one of `MEMORIES`
    clock_hz : of the accelerator; the memory has twice that
    data_bits : of a word of the accelerator's port
    id_bits : of its ids
    """

    memory: str = "sdr-32mb"
    clock_hz: int = 50_000_000
    data_bits: int = 32
    id_bits: int = 3

    def __post_init__(self) -> None:
        if self.memory not in MEMORIES:
            raise ValueError(f"memory must be one of {', '.join(MEMORIES)}, not {self.memory!r}")
        _, least, most = MEMORIES[self.memory]
        if not least <= self.clock_hz <= most:
            raise ValueError(f"clock_hz must be from {least} to {most} for {self.memory}, not {self.clock_hz!r}")
        widths = (32, 64, 128) if self.ddr3 else (32,)
        if self.data_bits not in widths:
            raise ValueError(f"data_bits must be one of {widths} for {self.memory}, not {self.data_bits!r}")
        if not 1 <= self.id_bits <= 16:
            raise ValueError(f"id_bits must be from 1 to 16, not {self.id_bits!r}")

    @property
    def ddr3(self) -> bool:
        """Whether it is DDR3, which needs a third clock and leveling."""
        return self.memory.startswith("ddr3")


@dataclass(frozen=True)
class Port:
    """A port of the module; ``direction`` is ``i``, ``o`` or ``io``, as an instance in Amaranth has it."""

    name: str
    width: int
    direction: str


@dataclass(frozen=True)
class Step:
    """Write ``value`` to ``address``, then wait for at least ``cycles`` of the clock."""

    address: int
    value: int
    cycles: int


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A generated controller.

    Attributes
    ----------
    name : of the module
    verilog : text of the module, the same for the board and for simulation; `CELLS` has what it needs beside it
    ports : ``clk``, ``rst`` (synchronous), ``clk2x``, the same phase at twice the rate; ``axi_*``, AXI4 of the
        accelerator, as subordinate; ``host_*``, Wishbone to words of memory; ``ctrl_*``, Wishbone to the registers;
        ``ready``, ports are open; ``dram_*``, pins, with the cells for them; for DDR3 ``clk_init`` and ``rst_init``,
        and ``stop`` and ``reset``, which go to ECLKSYNCB and CLKDIVF that make the clocks
    clocks : rate of each clock in Hz
    memory_bytes : size; addresses beyond do not exist at the ports
    registers : address of each register in the host's map, and its words, the most significant first
    sequence, opening : what initializes the memory, and what opens the ports after that
    phases, strobes : of reads and of writes in a cycle; bytes that are leveled on their own. For DDR3
    refresh_cycles : clocks from one refresh to the next
    """

    config: ControllerConfig
    name: str
    verilog: str
    ports: tuple[Port, ...]
    clocks: dict[str, int]
    memory_bytes: int
    registers: dict[str, tuple[int, int]]
    sequence: tuple[Step, ...]
    opening: tuple[Step, ...]
    phases: tuple[int, int]
    strobes: int
    refresh_cycles: int

    def cells(self, kind: str) -> str:
        """Verilog of the cells at the pins: ``ecp5`` or ``generic``."""
        return CELLS[kind].read_text()

    @property
    def memory_phase(self) -> int:
        """Degrees by which SDR's clock at the pin follows ``clk2x``: it rises 5 ns before ``clk2x`` does."""
        return 360 - round(360 * self.clocks["clk2x"] * 5e-9)

    @classmethod
    def generate(cls, config: ControllerConfig, name: str = "dram_controller") -> "Controller":
        """Have LiteDRAM make one. Takes a second or two, once in a process."""
        return _generate(config, name)


@cache
def _generate(config: ControllerConfig, name: str) -> Controller:
    if find_spec("litedram") is None:
        raise UserError(
            "litedram not found: install the Python packages litedram, litex and migen (pip install .[fpga])"
        )
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, json.dumps({"name": name, **asdict(config)})],
        cwd=_HERE.parent,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"LiteDRAM failed: {done.stderr[-2000:]}")
    made = json.loads(done.stdout)
    registers = {name: (CSR_BASE + offset, words) for name, (offset, words) in made["registers"].items()}
    clocks = {"clk": config.clock_hz, "clk2x": 2 * config.clock_hz}
    if config.ddr3:
        clocks["clk_init"] = _INIT_CLOCK_HZ
    return Controller(
        config=config,
        name=name,
        verilog=made["verilog"],
        ports=tuple(Port(*port) for port in made["ports"]),
        clocks=clocks,
        memory_bytes=made["memory_bytes"],
        registers=registers,
        sequence=tuple(_sequence(config, made["steps"], registers)),
        opening=(Step(registers["dfii_control"][0], _SEL, 0), Step(registers["ready"][0], 1, 0)),
        phases=tuple(made["phases"]),
        strobes=made["strobes"],
        refresh_cycles=made["refresh_cycles"],
    )


def _sequence(config: ControllerConfig, steps: list[Any], registers: dict[str, tuple[int, int]]) -> list[Step]:
    """LiteDRAM's steps as writes of registers."""

    def step(register: str, value: int, cycles: int = 0) -> Step:
        return Step(registers[register][0], value, cycles)

    made = [step("ready", 0)]
    if config.ddr3:
        made.append(step("dfii_control", 0, config.clock_hz // 5000))  # in reset for 200 us
    for comment, address, bank, command, cycles in steps:
        names = command.split("|")
        if names[0] in _CONTROLS:
            made.append(step("dfii_control", sum(_CONTROLS[name] for name in names), cycles))
            continue
        if not config.ddr3 and "Reset DLL" in comment:
            continue  # SDR has none, and the bit is reserved
        issue = [
            step("dfii_pi0_address", address),
            step("dfii_pi0_baddress", bank),
            step("dfii_pi0_command", sum(_COMMANDS[name] for name in names)),
            step("dfii_pi0_command_issue", 1, cycles),
        ]
        made += issue * (_SDR_REFRESHES // 2 if comment == "Auto Refresh" else 1)
    return made


def initialize(client: Client, controller: Controller) -> None:
    """Initialize the memory through the registers, open the ports, and try some words.

    Waits by the controller's own count of cycles, so it works with a simulation too. The memory's content is lost.
    DDR3 is leveled, which no board has run.

    Raises
    ------
    UserError : the memory does not give back what was written; the ports are closed then
    """
    for step in controller.sequence:
        client.write(step.address, [step.value])
        if step.cycles:
            _wait(client, controller, step.cycles)
    if controller.config.ddr3:
        level(client, controller.registers, controller.phases, controller.strobes)
    for step in controller.opening:
        client.write(step.address, [step.value])
    _check(client, controller)


def _wait(client: Client, controller: Controller, cycles: int) -> None:
    counter, _ = controller.registers["cycles"]
    begin = int(client.read(counter, 1)[0])
    while (int(client.read(counter, 1)[0]) - begin) % (1 << 32) < cycles:
        pass


def _check(client: Client, controller: Controller) -> None:
    """Each data line alone, then a word at each address line and at the end."""
    ones = [1 << n for n in range(32)]
    client.write(0, ones)
    differing = [(4 * n, int(got), one) for n, (got, one) in enumerate(zip(client.read(0, 32), ones, strict=True))]
    addresses = [0, *(4 << n for n in range((controller.memory_bytes // 4 - 1).bit_length()))]
    addresses.append(controller.memory_bytes - 4)
    words = {address: 0x9E37_79B9 * (n + 1) % (1 << 32) for n, address in enumerate(addresses)}
    for address, word in words.items():
        client.write(address, [word])
    differing += [(address, int(client.read(address, 1)[0]), word) for address, word in words.items()]
    wrong = [(address, got, word) for address, got, word in differing if got != word]
    if wrong:
        client.write(controller.registers["ready"][0], [0])
        address, got, word = wrong[0]
        raise UserError(
            f"the memory does not answer properly: {len(wrong)} of {len(differing)} words differ, the first at "
            f"{address:#x}: {got:#010x} instead of {word:#010x}; check the board's memory, its clock and its pins"
        )
