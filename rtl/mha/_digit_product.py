"""Long products from multipliers of 18 x 18 bits, in two pipeline stages."""

from amaranth.hdl import Module, Signal, Value

__all__ = ["DIGIT_BITS", "digit_product", "stored"]

#: long factors are cut into digits of so many bits, which fit a signed multiplier of 18
DIGIT_BITS = 17


def stored(m: Module, name: str, value: Value) -> Signal:
    """A register that follows the value, where the module's open conditions let it."""
    register = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def digit_product(m: Module, name: str, long: Value, short: Value, addend: Value | None = None) -> Signal:
    """``long * short`` two cycles later, plus an addend of one cycle later: digit by digit, then the sum."""
    parts = [] if addend is None else [addend]
    for n, begin in enumerate(range(0, len(long), DIGIT_BITS)):
        digit = long[begin : begin + DIGIT_BITS]
        if begin + DIGIT_BITS >= len(long) and long.shape().signed:
            digit = digit.as_signed()
        parts.append(stored(m, f"{name}_digit_{n}", digit * short) << begin)
    return stored(m, f"{name}_product", sum(parts[1:], parts[0]))
