"""Part of Prologue: a row's power, and one over its root (golden `prepare_rows`, `inverse_root`)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.gemm.prologue import EPSILON_BITS
from rtl.config import GemmConfig
from rtl.gemm._row_sums import square_sum_bits, sum_bits

__all__ = ["EXPONENT_BITS", "FACTOR_BITS", "InverseRoot"]

FACTOR_BITS = 16
EXPONENT_BITS = 7
#: the root has as many bits as the factor; its first one is known
_ROOT_STEPS = FACTOR_BITS - 1


def power_bits(config: GemmConfig) -> int:
    """Width of any power, and more: the lowest bit is 8 * n bits below the upper two, so that zero ends there, too."""
    most = (config.max_k**2 << 2 * config.act_bits - 2) + (1 << EPSILON_BITS) - 1
    return most.bit_length() + (2 - most.bit_length()) % 8


class InverseRoot(wiring.Component):
    """Finds ``k * squares + (epsilon >> 2 * shift)``, less ``total**2`` with ``layer``, and one over its root.

    One bit after the other, in one accumulator: epsilon is shifted right by 8 or 2 bits a cycle, bits of ``k`` add
    multiples of ``squares``, bits of ``total`` subtract those of ``total``. The power is shifted left by 8 or 2 bits a
    cycle until one of its upper two bits is set, then gives two bits a cycle to the root. The quotient of 2**31 and the
    root follows, in the same subtractor. That of 2**31 and 2**15 would have one bit more than fit; division without the
    first step gives 2**16 - 1 then, as it should.

    Members
    -------
    valid : a row is there; it stays until ``done`` and ``ready``.
    epsilon, shift, k, squares, total, layer : the row's.
    done : ``factor`` and ``exponent`` are there; high until ``ready``, which is high in no other cycle.
    """

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        super().__init__(
            {
                "valid": In(1),
                "epsilon": In(EPSILON_BITS),
                "shift": In(range(33 - config.act_bits)),
                "k": In(range(config.max_k + 1)),
                "squares": In(square_sum_bits(config)),
                "total": In(signed(sum_bits(config))),
                "layer": In(1),
                "done": Out(1),
                "ready": In(1),
                "factor": Out(FACTOR_BITS),
                "exponent": Out(signed(EXPONENT_BITS)),
            }
        )

    @staticmethod
    def cycles(config: GemmConfig, *, layer: bool, k: int | None = None) -> int:
        """Cycles from ``valid`` to ``done`` at most, for rows of ``k`` elements or the longest ones."""
        shifts = max(shift // 4 + shift % 4 for shift in range(33 - config.act_bits))
        product = (config.max_k if k is None else k).bit_length() + sum_bits(config) * layer
        normalize = (power_bits(config) - 2) // 8 + 2
        return 1 + shifts + 1 + product + normalize + 1 + _ROOT_STEPS + FACTOR_BITS

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width, total_bits = power_bits(self.config), len(self.total)
        power, operand = (Signal(width, name=name, reset_less=True) for name in ("power", "operand"))
        multiplier = Signal(max(len(self.k), total_bits), reset_less=True)
        left = Signal(range(max(33 - self.config.act_bits, total_bits, FACTOR_BITS)), reset_less=True)
        root = Signal(FACTOR_BITS, reset_less=True)
        rest = Signal(FACTOR_BITS + 2, reset_less=True)

        # Bits of a square count negative, but for the sign bit, the last one.
        squaring, dividing = Signal(), Signal()
        negative = squaring & (left != 0)
        added = Signal.like(power)
        m.d.comb += added.eq(power + (operand ^ negative.replicate(width)) + negative)
        upper = power[-2:]
        minuend, subtrahend = Signal(FACTOR_BITS + 3), Signal(FACTOR_BITS + 2)
        fits = minuend >= subtrahend
        m.d.comb += [
            minuend.eq(Mux(dividing, rest << 1, Cat(upper, rest))),
            subtrahend.eq(Mux(dividing, root, Cat(Const(1, 2), self.factor))),
        ]

        def multiply() -> None:
            with m.If(multiplier[0]):
                m.d.sync += power.eq(added)
            m.d.sync += [operand.eq(operand << 1), multiplier.eq(multiplier >> 1)]

        def subtract() -> None:
            m.d.sync += [
                rest.eq(Mux(fits, minuend - subtrahend, minuend)),
                self.factor.eq(Cat(fits, self.factor)),
                left.eq(left - 1),
            ]

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [power.eq(self.epsilon), left.eq(self.shift), self.exponent.eq(-width // 2)]
                m.d.sync += [operand.eq(self.squares), multiplier.eq(self.k)]
                with m.If(self.valid):
                    m.next = "ALIGN"
            with m.State("ALIGN"):
                with m.If(left >= 4):
                    m.d.sync += [power.eq(power >> 8), left.eq(left - 4)]
                with m.Elif(left != 0):
                    m.d.sync += [power.eq(power >> 2), left.eq(left - 1)]
                with m.Else():
                    m.next = "PRODUCT"
            with m.State("PRODUCT"):
                multiply()
                with m.If(~multiplier[1:].any()):
                    m.next = "NORMALIZE"
                    with m.If(self.layer):
                        m.d.sync += [operand.eq(self.total), multiplier.eq(self.total), left.eq(total_bits - 1)]
                        m.next = "SQUARE"
            with m.State("SQUARE"):
                m.d.comb += squaring.eq(1)
                multiply()
                m.d.sync += left.eq(left - 1)
                with m.If(left == 0):
                    m.next = "NORMALIZE"
            with m.State("NORMALIZE"):
                least = self.exponent == -1
                with m.If(~power[-8:].any() & ~least):
                    m.d.sync += [power.eq(power << 8), self.exponent.eq(self.exponent + 4)]
                with m.Elif(~upper.any() & ~least):
                    m.d.sync += [power.eq(power << 2), self.exponent.eq(self.exponent + 1)]
                with m.Else():
                    # The root's first bit, 1; zero counts as one.
                    m.d.sync += [self.factor.eq(1), rest.eq(Mux(upper[1], upper - 1, 0)), left.eq(_ROOT_STEPS - 1)]
                    m.d.sync += power.eq(power << 2)
                    m.next = "ROOT"
            with m.State("ROOT"):
                subtract()
                m.d.sync += power.eq(power << 2)
                with m.If(left == 0):
                    m.d.sync += [root.eq(Cat(fits, self.factor)), rest.eq(1 << FACTOR_BITS - 1)]
                    m.d.sync += left.eq(FACTOR_BITS - 1)
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.comb += dividing.eq(1)
                subtract()
                with m.If(left == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                with m.If(self.ready):
                    m.next = "IDLE"
        return m
