"""What a bench of the whole accelerator is told: registers, rings, memory before and after."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib.dram_config import DramConfig
from golden.control.commands import LINE_BYTES, queue_names
from golden.control.memory import pack_rows
from golden.decoder import DecoderLayer
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from sim.compiler import Program, expected_memory

__all__ = ["Plan", "dram_for", "plan_for"]

Piece = tuple[int, bytes]


@dataclass(kw_only=True)
class Plan:
    """One run of a compiled program.

    Parameters
    ----------
    name: of the run.
    settings: registers by name.
    rings: by queue: first line, log2 of the size, and the number of commands before and in the measured part.
    image: byte address and content of memory before.
    expected: label, byte address and content of memory when all is done.
    padded: rows of INT8 blocks take the room of 16-bit ones.
    limit: cycles that the run may take.
    """

    name: str
    settings: dict[str, int]
    rings: dict[int, tuple[int, int, int, int]]
    image: list[Piece] = field(repr=False)
    expected: list[tuple[str, int, bytes]] = field(repr=False)
    padded: bool = False
    limit: int = 5_000_000


def dram_for(config: AcceleratorConfig, lines: int, part: str = "ideal", **changes: float) -> DramConfig:
    """A memory of so many lines."""
    words = lines * LINE_BYTES * 8 // config.dsq.bus_bits
    sizes = {"data_bits": config.dsq.bus_bits, "addr_bits": config.cache.addr_bits, "words": words}
    return DramConfig(part=part, id_bits=KvCache.id_bits(config), **sizes, **changes)  # type: ignore[arg-type]


def plan_for(
    name: str,
    program: Program,
    after: DecoderLayer,
    outputs: Iterable[NDArray[np.integer]],
    *,
    padded: bool = False,
    prefetch: bool = True,
    share: int = 64,
    pressure: int = 256,
    limit: int = 5_000_000,
) -> Plan:
    """The run of a program.

    after: the decoder when it has decoded all steps; outputs: its residuals ``[n, hidden]`` of each step.
    """
    names = queue_names(program.config.gemm.cores)
    rings, image = {}, list(program.image)
    for queue, key in enumerate(names):
        line, size, content = program.ring(key)
        image.append((line * LINE_BYTES, content))
        count = len(program.queues[key])
        rings[queue] = (line, size, program.setup[key], count - program.setup[key])
    expected = []
    for step, rows in enumerate(outputs):
        for i, row in enumerate(rows):
            content = pack_rows(row[None])[: 4 * len(row)]
            expected.append((f"step {step}, sequence {i}: output", program.output(step, i) * LINE_BYTES, content))
    expected += [("cache", address, content) for address, content in expected_memory(program, after)]
    settings = {
        "window_base": 0,
        "window_end": program.lines,
        "record_base": program.record_base,
        "block_base": program.block_base,
        "cache": int(prefetch) | share << 8 | pressure << 16,
        "watchdog": limit,
    }
    return Plan(
        name=name, settings=settings, rings=rings, image=image, expected=expected, padded=padded, limit=limit
    )
