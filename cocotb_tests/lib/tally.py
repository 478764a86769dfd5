"""Counts events that a design reports."""

from collections.abc import Iterable
from typing import Any

from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.signals import bits_reader, child

__all__ = ["Tally"]


class Tally:
    """In how many cycles since the last reset, or `restart`, each of some bits of an output was 1."""

    def __init__(self, dut: Any, name: str, bits: Iterable[int]) -> None:
        handle = child(dut, name)
        self._read = bits_reader(handle)
        self._places = [len(handle) - 1 - bit for bit in bits]  # the text begins with the last bit
        self.restart()
        Engine.of(dut.clk).attach(self)

    def edge(self, cycle: int) -> None:
        """Count."""
        text = self._read()
        for n, place in enumerate(self._places):
            if text[place] == "1":
                self.counts[n] += 1

    def clear(self) -> None:
        """A reset."""
        self.restart()

    def restart(self) -> None:
        """Forget all counts."""
        self.counts = [0] * len(self._places)
