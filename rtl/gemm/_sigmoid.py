"""Part of Epilogue: SiLU of a gate (golden `sigmoid` and the first product of `swiglu_pairs`)."""

from typing import Any

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.gemm.epilogue import GATE_BITS, SIGMOID
from rtl.common.fixed import saturate
from rtl.gemm._delay import Delay
from rtl.gemm._long_product import half_up_sum, long_product, stored

__all__ = ["Silu"]

#: sigmoids are 2**15 and what the table has above it
_HALF = 1 << 15
_STEP_BITS = 8
#: a gate is in the table if its magnitude has at most so many bits
_INDEX_BITS = 8
_ENTRY = data.StructLayout({"above": 16, "step": 11})


class Silu(wiring.Component):
    """``half_up(gate * sigmoid(gate), 16)`` of ``y`` saturated to 24 bits, the gate.

    Registers: gate, magnitude, entry of the table as it is read, entry, product of its step with the rest, sigmoid,
    two partial products, result.

    Latency: ``latency`` cycles with ``en``. Throughput: one a cycle.

    Members
    -------
    en : all stages move on.
    y : an output of 32 bits.
    o : its SiLU.
    """

    latency = 8

    def __init__(self) -> None:
        super().__init__({"en": In(1), "y": In(signed(32)), "o": Out(signed(GATE_BITS))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        entries = [
            {"above": int(value) - _HALF, "step": int(step)}
            for value, step in zip(SIGMOID[:-1], np.diff(SIGMOID), strict=True)
        ]
        m.submodules.table = table = Memory(shape=_ENTRY, depth=len(entries), init=entries)
        m.submodules.gate = late_gate = Delay(signed(GATE_BITS), cycles=5)
        read = table.read_port()

        with m.If(self.en):
            gate = stored(m, "gate_1", saturate(self.y, GATE_BITS))
            magnitude = stored(m, "magnitude", Mux(gate < 0, -gate, gate)[:GATE_BITS])
            index, rest = magnitude[_STEP_BITS : _STEP_BITS + _INDEX_BITS], magnitude[:_STEP_BITS]
            rests = [stored(m, "rest_1", rest)]
            rests.append(stored(m, "rest_2", rests[0]))
            beyond = stored(m, "beyond", magnitude[_STEP_BITS + _INDEX_BITS :].any())
            negative = gate[-1]
            signs = [negative := stored(m, f"negative_{n}", negative) for n in range(4)]
            entry = Signal(_ENTRY, reset_less=True)
            m.d.sync += entry.eq(read.data)
            with m.If(beyond):
                m.d.sync += [entry.above.eq(_HALF), entry.step.eq(0)]

            # With s half units to add or to take off: half_up(s / 2) added is (2 * base + s + 1) >> 1, taken off it is
            # (2 * base + ~s + 1) >> 1.
            product = stored(m, "product", entry.step * rests[1])
            base = stored(m, "base", Mux(signs[2], _HALF - entry.above, _HALF + entry.above)[:17])
            halves = Cat(product >> _STEP_BITS - 1, Const(0, 1)).as_signed()
            sigmoid = stored(m, "sigmoid", ((Cat(Const(1, 1), base) + Mux(signs[3], ~halves, halves)) >> 1)[:17])
            low, high = long_product(m, "silu", late_gate.o, sigmoid)
            m.d.sync += self.o.eq(half_up_sum(low, high, 16))
        m.d.comb += [
            read.en.eq(self.en),
            read.addr.eq(index),
            late_gate.en.eq(self.en),
            late_gate.i.eq(gate),
        ]
        return m
