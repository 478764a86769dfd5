"""Memories for synthesis: their attributes, a FIFO."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.fifo import SyncFIFOBuffered

__all__ = ["BLOCK", "BLOCK_DEPTH", "NO_COLLISIONS", "BlockFifo", "ram_style"]

#: a memory of which no word is read and written at once, or what is read then does not count: without the attribute
#: yosys adds logic to block RAM that gives the word before it was written
NO_COLLISIONS = {"no_rw_check": 1}
#: a memory of so many words is worth block RAM
BLOCK_DEPTH = 32
BLOCK = {"ram_style": "block"}


def ram_style(depth: int) -> dict[str, str]:
    """Block RAM, or lookup tables for few words."""
    return BLOCK if depth >= BLOCK_DEPTH else {"ram_style": "distributed"}


class BlockFifo(SyncFIFOBuffered):
    """A FIFO in block RAM: what it reads has been written, since its level is not 0, so no word is both at once."""

    def elaborate(self, platform: Any) -> Module:
        m = super().elaborate(platform)
        m.submodules.storage.attrs.update(NO_COLLISIONS | BLOCK)
        return m
