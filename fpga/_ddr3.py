"""Read leveling of DDR3 behind LiteDRAM's ECP5DDRPHY, by the host. No board has run it; a model of the PHY has."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from golden.errors import UserError

__all__ = ["BITSLIPS", "DELAYS", "level"]

#: positions of a word's start, and of the read pulse, that the PHY has
BITSLIPS, DELAYS = 4, 8

_CS, _WE, _CAS, _RAS, _WRITE_DATA, _READ_DATA = (1 << n for n in range(6))
_PHASES = 2
_CHUNKS = 4  # transfers of the pins in a phase
_SEEDS = (42, 84, 36)


class _Phy:
    """The registers of the PHY and of the commands, by name."""

    def __init__(
        self, client: Any, registers: dict[str, tuple[int, int]], phases: tuple[int, int], strobes: int
    ) -> None:
        self.client, self.registers, self.strobes = client, registers, strobes
        self.read_phase, self.write_phase = phases

    def set(self, name: str, value: int) -> None:
        address, words = self.registers[name]
        self.client.write(address, [value >> 32 * n & 0xFFFF_FFFF for n in reversed(range(words))])

    def get(self, name: str) -> int:
        address, words = self.registers[name]
        value = 0
        for word in self.client.read(address, words):
            value = value << 32 | int(word)
        return value

    def command(self, phase: int, command: int) -> None:
        """At row, column and bank 0."""
        for name, value in (("address", 0), ("baddress", 0), ("command", command), ("command_issue", 1)):
            self.set(f"dfii_pi{phase}_{name}", value)

    def act(self, strobe: int, action: str) -> None:
        """Do something to the delays of a byte; the others pause with it afterwards, to stay in step."""
        self.set("phy_dly_sel", 1 << strobe)
        self.set(f"phy_{action}", 1)
        for selected in (0, (1 << self.strobes) - 1, 0):
            self.set("phy_dly_sel", selected)

    def place(self, strobe: int, bitslip: int, delay: int) -> None:
        for name, count in (("rdly_dq_bitslip", bitslip), ("rdly_dq", delay)):
            self.act(strobe, f"{name}_rst")
            for _ in range(count):
                self.act(strobe, name if name.endswith("bitslip") else f"{name}_inc")

    def works(self, strobe: int) -> bool:
        """Whether a byte comes back as it was written, with its burst noticed."""
        return all(self._try(strobe, seed) for seed in _SEEDS)

    def _try(self, strobe: int, seed: int) -> bool:
        """Registers are slow enough for all of the memory's times."""
        words = _words(seed, self.strobes)
        self.command(0, _RAS | _CS)
        for phase, word in enumerate(words):
            self.set(f"dfii_pi{phase}_wrdata", word)
        self.command(self.write_phase, _CAS | _WE | _CS | _WRITE_DATA)
        self.set("phy_burstdet_clr", 1)
        self.command(self.read_phase, _CAS | _CS | _READ_DATA)
        self.command(0, _RAS | _WE | _CS)
        mask = sum(0xFF << 8 * (self.strobes * chunk + strobe) for chunk in range(_CHUNKS))
        same = all((self.get(f"dfii_pi{phase}_rddata") ^ word) & mask == 0 for phase, word in enumerate(words))
        return same and bool(self.get("phy_burstdet_seen") >> strobe & 1)


def _words(seed: int, strobes: int) -> list[int]:
    """A pseudo-random word of the pins for each phase."""
    bits = 8 * strobes * _CHUNKS
    draws = _xorshift(seed)
    return [sum(next(draws) << 32 * n for n in range(bits // 32)) for _ in range(_PHASES)]


def _xorshift(state: int) -> Iterator[int]:
    while True:
        state ^= state << 13 & 0xFFFF_FFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFF_FFFF
        yield state


def level(client: Any, registers: dict[str, tuple[int, int]], phases: tuple[int, int], strobes: int) -> None:
    """For each byte, find where its reads work, and set the middle of the longest run of delays.

    The memory is initialized and driven by the host. A delay works when three pseudo-random bursts come back and the
    PHY has noticed each.

    Raises
    ------
    UserError : a byte works nowhere
    """
    phy = _Phy(client, registers, phases, strobes)
    for strobe in range(strobes):
        runs = [run for bitslip in range(BITSLIPS) for run in _runs(phy, strobe, bitslip)]
        if not runs:
            raise UserError(f"the DDR3 memory does not answer: reads of byte {strobe} work with no delay")
        length, bitslip, first = max(runs, key=lambda run: run[0])
        phy.place(strobe, bitslip, first + (length - 1) // 2)
        if not phy.works(strobe):
            raise UserError(f"the DDR3 memory does not answer reliably: reads of byte {strobe} work only now and then")


def _runs(phy: _Phy, strobe: int, bitslip: int) -> Iterator[tuple[int, int, int]]:
    """Runs of delays that work: length, bitslip, first delay."""
    works = []
    for delay in range(DELAYS):
        phy.place(strobe, bitslip, delay)
        works.append(phy.works(strobe))
    delay = 0
    for working, run in groupby(works):
        length = len(list(run))
        if working:
            yield length, bitslip, delay
        delay += length
