"""Counts events that a design reports."""

from typing import Any

from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.signals import bits_reader, child

__all__ = ["Tally"]


class Tally:
    """In how many cycles since the last reset, or `restart`, each of some bits of an output was 1."""

    def __init__(self, dut: Any, name: str, first: int, count: int) -> None:
        handle = child(dut, name)
        self._read = bits_reader(handle)
        end = len(handle) - first
        self._part = slice(end - count, end)  # the text begins with the last bit
        self.counts = [0] * count
        Engine.of(dut.clk).attach(self)

    def edge(self, cycle: int) -> None:
        """Count."""
        text = self._read()[self._part]
        if "1" in text:
            for n, bit in enumerate(reversed(text)):
                self.counts[n] += bit == "1"

    def clear(self) -> None:
        """A reset."""
        self.restart()

    def restart(self) -> None:
        """Forget all counts."""
        self.counts = [0] * len(self.counts)
