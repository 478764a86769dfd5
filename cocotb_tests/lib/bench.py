"""Clock, reset, waiting and measuring inside a cocotb test."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import SimTimeoutError
from cocotb.triggers import with_timeout as cocotb_with_timeout

from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.environment import seed

__all__ = ["PERIOD_NS", "cycles", "latency", "reset", "start", "throughput", "with_timeout"]

PERIOD_NS = 10

T = TypeVar("T")


async def start(dut: Any) -> None:
    """Start `dut.clk` and reset the design. Create sources and sinks before or after it."""
    cocotb.log.info("seed %d", seed())
    Clock(dut.clk, PERIOD_NS, unit="ns").start()
    await reset(dut)


async def reset(dut: Any, count: int = 3) -> None:
    """Hold `dut.rst` for `count` cycles, also in the middle of traffic: all agents drop what they had in flight."""
    engine = Engine.of(dut.clk)
    engine.in_reset = True
    engine.clear()
    if hasattr(dut, "rst"):
        dut.rst.value = 1
    await engine.cycles(count)
    if hasattr(dut, "rst"):
        dut.rst.value = 0
    engine.in_reset = False


async def cycles(dut: Any, count: int) -> None:
    """Wait for `count` cycles of `dut.clk`."""
    await Engine.of(dut.clk).cycles(count)


async def with_timeout(awaitable: Awaitable[T], count: int) -> T:
    """Await something for at most `count` cycles, else fail."""
    try:
        return await cocotb_with_timeout(awaitable, count * PERIOD_NS, "ns")
    except SimTimeoutError:
        raise AssertionError(f"not done after {count} cycles") from None


def latency(source: Any, sink: Any, index_in: int = 0, index_out: int = 0) -> int:
    """Return the cycles from a transfer at `source` to a transfer at `sink` (the first ones by default)."""
    return sink.transfers[index_out] - source.transfers[index_in]


def throughput(agent: Any, first: int = 0, last: int = -1) -> float:
    """Return the transfers per cycle of an agent between two of its transfers."""
    transfers = agent.transfers
    last = last % len(transfers)
    return (last - first) / (transfers[last] - transfers[first])
