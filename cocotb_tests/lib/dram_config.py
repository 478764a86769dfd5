"""The memory of a test bench: a DRAM part, and the bus and clock through which it is seen."""

from dataclasses import dataclass

from amaranth.utils import exact_log2

from cocotb_tests.lib.dram_parts import PARTS, Part

__all__ = ["TICKS", "DramConfig"]

#: parts of a cycle in which times are kept
TICKS = 1024

_MAX_MHZ = 300.0


@dataclass(frozen=True, kw_only=True)
class DramConfig:
    """One memory, seen through the bus of an accelerator."""

    #: name in `dram_parts.PARTS`
    part: str = "ddr4-2400"
    data_bits: int = 128
    addr_bits: int = 32
    id_bits: int = 4
    #: size, from address 0 on; other addresses answer DECERR
    words: int = 1 << 16
    #: of the accelerator; None: the fastest up to 300 MHz at which the part still gives a word in each cycle
    clock_mhz: float | None = None
    #: cycles that controller and interface add to an access
    latency: int = 0
    #: transactions that wait, per direction
    queue: int = 8
    #: bursts that are planned before the first of them is given
    look_ahead: int = 16
    #: fields of an address (`Part.mapping`); None: those of the part
    mapping: str | None = None
    #: start of the pseudo-random stalls
    seed: int = 1
    #: files `<name>.load` and `<name>.dump` in the directory of the run
    name: str = "dram"

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, not {self.part!r}")
        if self.data_bits not in (32, 64, 128, 256, 512):
            raise ValueError(f"data_bits must be a power of two from 32 to 512, not {self.data_bits!r}")
        if not 1 <= self.words <= 1 << (self.addr_bits - exact_log2(self.word_bytes)):
            raise ValueError(f"words must be from 1 to what {self.addr_bits} address bits reach, not {self.words!r}")
        if self.clock_mhz is not None and not 0 < self.clock_mhz <= 2000:
            raise ValueError(f"clock_mhz must be above 0, at most 2000, not {self.clock_mhz!r}")
        if self.latency < 0:
            raise ValueError(f"latency must be at least 0, not {self.latency!r}")
        for name in ("queue", "look_ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.mapping is not None:
            parts = sorted(self.mapping.split(":"))
            if parts != sorted(self._part.mapping.split(":")) or not self.mapping.startswith("row:"):
                raise ValueError(f"mapping must be row, then the others of {self._part.mapping}, not {self.mapping!r}")
        if not 0 < self.seed < 1 << 32:
            raise ValueError(f"seed must be from 1 to 4294967295, not {self.seed!r}")

    @property
    def _part(self) -> Part:
        return PARTS[self.part]

    @property
    def word_bytes(self) -> int:
        """Bytes of a word of the bus."""
        return self.data_bits // 8

    @property
    def clock(self) -> float:
        """Clock of the accelerator in MHz."""
        return self.clock_mhz or min(_MAX_MHZ, self._part.peak / self.word_bytes)

    @property
    def ratio(self) -> float:
        """Words of the bus that the part can give per cycle of the accelerator."""
        return self._part.peak / (self.word_bytes * self.clock)

    @property
    def burst_bytes(self) -> int:
        """Bytes of one access of the part; a word of the bus when that is more."""
        return max(self._part.burst_bytes, self.word_bytes)

    @property
    def burst_bits(self) -> int:
        """Width of an address in bursts."""
        return self.addr_bits - exact_log2(self.burst_bytes)

    @property
    def fields(self) -> dict[str, slice]:
        """Row, bank, column (and group): their bits in the address of a burst."""
        part = self._part
        widths = {
            "column": exact_log2(max(1, part.row_bytes // self.burst_bytes)),
            "bank": exact_log2(part.banks // part.groups),
            "group": exact_log2(part.groups),
        }
        fields, low = {"group": slice(0, 0)}, 0
        for name in reversed((self.mapping or part.mapping).split(":")):
            high = self.burst_bits if name == "row" else min(low + widths[name], self.burst_bits)
            fields[name], low = slice(low, high), high
        return fields

    def ticks(self, ns: float) -> int:
        """Return a time in 1/1024 of a cycle."""
        return round(ns * self.clock / 1000 * TICKS)

    @property
    def data_ticks(self) -> int:
        """Time in which a burst occupies the data bus."""
        return round(self.burst_bytes / self._part.peak * self.clock * TICKS)

    def read_latency(self, kind: str) -> int:
        """Return the cycles from the address of a read to its first word; kind is hit, open or miss (of its row)."""
        return 3 + self._cycles(kind, self._part.cl)

    def write_latency(self, kind: str) -> int:
        """Return the cycles from the last word of a write to its response; kind is hit, open or miss (of its row)."""
        return 2 + self._cycles(kind, self._part.cwl)

    def _cycles(self, kind: str, cas: float) -> int:
        before = {"hit": (), "open": (self._part.rcd,), "miss": (self._part.rp, self._part.rcd)}[kind]
        ticks = self.data_ticks + sum(self.ticks(ns) for ns in (*before, cas))
        return max(1, -(-ticks // TICKS) + self.latency)
