"""What the host sees of a DDR3 controller: registers, and a memory that reads well with some delays."""

from collections.abc import Sequence

from fpga._ddr3 import BITSLIPS, DELAYS
from fpga.dram import CSR_BASE, Controller

__all__ = ["FakeDdr3"]

_CS, _WE, _CAS, _RAS, _WRITE_DATA, _READ_DATA = (1 << n for n in range(6))
_ACTIVATE, _PRECHARGE, _MODE, _CALIBRATE = _CS | _RAS, _CS | _RAS | _WE, _CS | _RAS | _CAS | _WE, _CS | _WE
_WRITE, _READ = _CS | _CAS | _WE | _WRITE_DATA, _CS | _CAS | _READ_DATA
_CHUNKS = 4


class FakeDdr3:
    """Plays the registers of LiteDRAM with ECP5DDRPHY; fails at commands that a memory would not take.

    Parameters
    ----------
    working : per byte the bitslip, the first and the last delay with which reads work
    also : the same, more of them
    noticed : whether the PHY notices bursts
    stuck : bits of memory's words that are always 1

    Attributes
    ----------
    places : per byte its bitslip and delay
    modes : mode registers in the order in which they were written
    ready, hardware : ports are open; the controller drives the memory
    """

    def __init__(
        self,
        controller: Controller,
        *,
        working: dict[int, tuple[int, int, int]],
        also: dict[int, tuple[int, int, int]] | None = None,
        noticed: bool = True,
        stuck: int = 0,
    ) -> None:
        self.controller, self.noticed, self.stuck = controller, noticed, stuck
        self.windows = [(strobe, window) for windows in (working, also or {}) for strobe, window in windows.items()]
        self.names = {
            address + 4 * n: (name, words - 1 - n)
            for name, (address, words) in controller.registers.items()
            for n in range(words)
        }
        self.values = dict.fromkeys(controller.registers, 0)
        self.places = dict.fromkeys(working, (0, 0))
        self.modes: list[int] = []
        self.memory: dict[int, int] = {}
        self.now = self.powered = 0
        self.open = self.calibrated = False
        self.row = [0, 0]

    @property
    def ready(self) -> bool:
        return bool(self.values["ready"])

    @property
    def hardware(self) -> bool:
        return self.values["dfii_control"] == 1

    def read(self, address: int, words: int) -> list[int]:
        self.now += 1000
        if address < CSR_BASE:
            assert self.ready and self.hardware
            return [self.memory.get(address + 4 * n, 0) | self.stuck for n in range(words)]
        return [self._register(*self.names[address + 4 * n]) for n in range(words)]

    def write(self, address: int, words: Sequence[int]) -> None:
        self.now += 1000
        for n, word in enumerate(words):
            if address < CSR_BASE:
                assert self.ready and self.hardware
                self.memory[address + 4 * n] = word
            else:
                self._set(*self.names[address + 4 * n], word)

    def _register(self, name: str, part: int) -> int:
        return (self.now if name == "cycles" else self.values[name]) >> 32 * part & 0xFFFF_FFFF

    def _set(self, name: str, part: int, word: int) -> None:
        mask = 0xFFFF_FFFF << 32 * part
        self.values[name] = self.values[name] & ~mask | word << 32 * part
        if name == "dfii_control":
            self._power(word)
        elif name.endswith("command_issue"):
            phase = int(name[len("dfii_pi")])
            self._command(phase, self.values[f"dfii_pi{phase}_command"])
        elif name.startswith("phy_rdly"):
            self._place(name.removeprefix("phy_"))
        elif name == "phy_burstdet_clr":
            self.values["phy_burstdet_seen"] = 0

    def _power(self, control: int) -> None:
        """In reset for 200 us, then 500 us until the clock is enabled."""
        second = self.controller.config.clock_hz
        if control == 0b1100:
            assert self.now - self.powered >= 200e-6 * second
        elif control == 0b1110:
            assert self.now - self.powered >= 500e-6 * second
        elif control == 1:
            assert self.calibrated and not self.open
        else:
            assert control == 0
        self.powered = self.now

    def _command(self, phase: int, command: int) -> None:
        assert self.values["dfii_control"] == 0b1110
        read_phase, write_phase = self.controller.phases
        if command == _MODE:
            self.modes.append(self.values[f"dfii_pi{phase}_baddress"])
        elif command == _CALIBRATE:
            assert self.modes == [2, 3, 1, 0]
            self.calibrated = True
        elif command in (_ACTIVATE, _PRECHARGE):
            assert self.calibrated and self.open == (command == _PRECHARGE)
            self.open = command == _ACTIVATE
        elif command == _WRITE:
            assert self.open and phase == write_phase
            self.row = [self.values[f"dfii_pi{n}_wrdata"] for n in range(2)]
        else:
            assert command == _READ and self.open and phase == read_phase
            self._read_row()

    def _read_row(self) -> None:
        strobes = self.controller.strobes
        wrong = 0
        for strobe, (bitslip, delay) in self.places.items():
            if any(at == strobe and w[0] == bitslip and w[1] <= delay <= w[2] for at, w in self.windows):
                self.values["phy_burstdet_seen"] |= self.noticed << strobe
            else:
                wrong |= sum(0x10 << 8 * (strobes * chunk + strobe) for chunk in range(_CHUNKS))
        for phase, word in enumerate(self.row):
            self.values[f"dfii_pi{phase}_rddata"] = word ^ wrong

    def _place(self, action: str) -> None:
        selected = self.values["phy_dly_sel"]
        for strobe, (bitslip, delay) in self.places.items():
            if selected >> strobe & 1:
                self.places[strobe] = {
                    "rdly_dq_rst": (bitslip, 0),
                    "rdly_dq_inc": (bitslip, (delay + 1) % DELAYS),
                    "rdly_dq_bitslip_rst": (0, delay),
                    "rdly_dq_bitslip": ((bitslip + 1) % BITSLIPS, delay),
                }[action]
