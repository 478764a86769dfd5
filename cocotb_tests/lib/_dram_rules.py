"""What an AXI4 master must keep to, watched at the port of `DramModel`."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.utils import exact_log2

__all__ = ["Rule", "watch_rules"]

_BOUNDARY_BITS = 12  # no burst crosses 4 KiB
_INCR = 1


class Rule(IntEnum):
    """A rule, and the bit of ``violations`` that says that it was broken."""

    #: bursts are INCR, of whole words
    KIND = 0
    #: no burst crosses a border of 4 KiB
    BOUNDARY = 1
    #: ``wlast`` comes with the last word of a burst and with no other one
    LAST = 2
    #: once valid, valid and payload hold until the transfer
    HELD = 3


def watch_rules(m: Module, axi: Any, word_bytes: int) -> Value:
    """Return one bit per rule but `Rule.LAST`: broken in this cycle."""
    payloads = {
        "ar": (axi.arid, axi.araddr, axi.arlen, axi.arsize, axi.arburst),
        "aw": (axi.awid, axi.awaddr, axi.awlen, axi.awsize, axi.awburst),
        "w": (axi.wdata, axi.wstrb, axi.wlast),
    }
    broken = Signal(len(Rule))
    for channel, fields in payloads.items():
        valid, ready = getattr(axi, f"{channel}valid"), getattr(axi, f"{channel}ready")
        payload = Cat(fields)
        waiting, held = Signal(name=f"{channel}_waiting"), Signal(len(payload), name=f"{channel}_held")
        m.d.sync += [waiting.eq(valid & ~ready), held.eq(payload)]
        with m.If(waiting & ~(valid & (payload == held))):
            m.d.comb += broken[Rule.HELD].eq(1)
        if channel != "w":
            _, address, length, size, burst = fields
            last = address[:_BOUNDARY_BITS] + length * word_bytes
            with m.If(valid & ((burst != _INCR) | (size != exact_log2(word_bytes)))):
                m.d.comb += broken[Rule.KIND].eq(1)
            with m.If(valid & (last >> _BOUNDARY_BITS).any()):
                m.d.comb += broken[Rule.BOUNDARY].eq(1)
    return broken
