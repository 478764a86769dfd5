"""Part of Epilogue: products of a long and a short factor, from multipliers of 18 x 18 bits."""

from amaranth.hdl import Cat, Const, Module, Signal, Value

__all__ = ["LOW_BITS", "half_up_sum", "long_product", "stored"]

#: what one signed multiplier takes of a long factor without sign; the rest of it goes to another one
LOW_BITS = 17


def stored(m: Module, name: str, value: Value) -> Signal:
    """A register that follows the value, where the module's open conditions let it."""
    register = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def half_up_sum(a: Value, b: Value, shift: int) -> Value:
    """``half_up(a + b, shift)`` in one adder, where one of the two has zeros below bit ``shift - 1``."""

    def with_carry(value: Value) -> Value:
        odd = Cat(Const(1, 1), value >> shift - 1)
        return odd.as_signed() if value.shape().signed else odd

    return (with_carry(a) + with_carry(b)) >> 2


def long_product(m: Module, name: str, long: Value, short: Value) -> tuple[Value, Value]:
    """Two numbers whose sum is ``long * short``, a cycle later; ``long`` is signed, ``short`` is not, with 17 bits.

    The second one has zeros in its lowest ``LOW_BITS`` bits.
    """
    low = stored(m, f"{name}_low", long[:LOW_BITS] * short)
    high = stored(m, f"{name}_high", long[LOW_BITS:].as_signed() * short)
    return low, high << LOW_BITS
