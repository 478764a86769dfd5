"""Content of a `DramModel`, loaded, read back and checked beside the bus; its counters and registers by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib.bench import cycles
from cocotb_tests.lib.dram import CHANNELS, COUNTERS, ERROR_RANGES, Rule
from cocotb_tests.lib.dram_config import DramConfig
from cocotb_tests.lib.signals import child

__all__ = ["DramImage"]


class DramImage:
    """The bench's side of a memory.

    Parameters
    ----------
    dut : the design, with a member of `DramSignature` called `prefix`
    config : the memory
    """

    def __init__(self, dut: Any, config: DramConfig, prefix: str = "dram") -> None:
        self.config = config
        self._dut, self._prefix = dut, prefix
        for name in ("load", "dump", "first", "last", "clear", "seed"):
            self._signal(name).value = 0
        self.stall(0)
        for n in range(ERROR_RANGES):
            self.error(n, 0, 0, 0)

    def _signal(self, name: str) -> Any:
        return child(self._dut, f"{self._prefix}__{name}")

    async def _pulse(self, name: str) -> None:
        self._signal(name).value = 1
        await cycles(self._dut, 1)
        self._signal(name).value = 0
        await cycles(self._dut, 1)

    async def load(self, pieces: Mapping[int, NDArray[np.uint8] | bytes]) -> None:
        """Write bytes to addresses, all of them multiples of a word; takes two cycles."""
        size = self.config.word_bytes
        with open(f"{self.config.name}.load", "w") as file:
            for address, content in pieces.items():
                content = np.frombuffer(content, np.uint8)
                if address % size or len(content) % size:
                    raise ValueError(f"address and length must be multiples of {size}, not {address}, {len(content)}")
                if len(content):
                    file.write(f"@{address // size:x}\n")
                    file.write(content.reshape(-1, size)[:, ::-1].tobytes().hex("\n", size))
                    file.write("\n")
        await self._pulse("load")

    async def dump(self, address: int, count: int) -> NDArray[np.uint8]:
        """Return bytes, a positive number and from any address on; takes two cycles."""
        size = self.config.word_bytes
        first, last = address // size, (address + count - 1) // size
        self._signal("first").value = first
        self._signal("last").value = last
        await self._pulse("dump")
        lines = Path(f"{self.config.name}.dump").read_text().splitlines()
        text = "".join(line for line in lines if not line.startswith(("//", "@")))
        content = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, size)[:, ::-1].reshape(-1)
        return content[address - first * size :][:count]

    async def check(self, address: int, expected: NDArray[np.uint8] | bytes) -> None:
        """Fail at the first byte that is not the expected one."""
        expected = np.frombuffer(expected, np.uint8)
        found = await self.dump(address, len(expected))
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            at = int(wrong[0])
            raise AssertionError(
                f"{len(wrong)} of {len(expected)} bytes differ, the first at address {address + at:#x}: "
                f"{found[at]:#04x} instead of {expected[at]:#04x}"
            )

    def stall(self, share: float, *channels: str) -> None:
        """Stall channels (all by default) in this share of the cycles, below 1."""
        for channel in channels or CHANNELS:
            self._signal(f"stall_{channel}").value = int(256 * share)

    def restart_stalls(self, seed: int) -> None:
        """Start the pseudo-random stalls with a seed, other than the one before."""
        self._signal("seed").value = seed

    def error(self, number: int, first: int, last: int, response: int) -> None:
        """Have words first to last answer 2 (SLVERR) or 3 (DECERR), or OKAY again; range `number` is 0 or 1."""
        for name, value in (("first", first), ("last", last), ("resp", response)):
            self._signal(f"error_{name}_{number}").value = value

    async def clear_counters(self) -> None:
        """Let counters and violations start anew."""
        await self._pulse("clear")

    @property
    def counters(self) -> dict[str, int]:
        """All of `COUNTERS`."""
        return {name: int(self._signal(name).value) for name in COUNTERS}

    @property
    def violations(self) -> list[Rule]:
        """The rules of AXI that the masters have broken."""
        bits = int(self._signal("violations").value)
        return [rule for rule in Rule if bits >> rule & 1]

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return bool(self._signal("idle").value)
