"""Fixed-point arithmetic as Amaranth expressions, equal to `golden/fixed.py` and the scalar parts of `golden/dsq`.

Every function returns a combinational expression: latency 0, nothing is registered. The caller puts registers around
it; the depth of logic is stated where it is more than one adder. No result is ever truncated: it is as wide as it must
be.
"""

from amaranth.hdl import Cat, Const, Mux, Value, ValueLike

from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS

__all__ = [
    "ALL_EXPONENTS",
    "clamp",
    "half_up",
    "half_up_by",
    "half_up_scaled",
    "reconstruct",
    "saturate",
    "saturate_unsigned",
    "split_scale",
]

#: from here on every nonzero product of a scale's significand saturates 16 bits, so larger exponents need no wider
#: shift
ALL_EXPONENTS = SCALE_BIAS + 12


def half_up(value: ValueLike, shift: int) -> Value:
    """``floor(value / 2**shift + 1/2)`` for a constant shift; a negative one multiplies by ``2**-shift``.

    One incrementer, one bit wider than ``value >> shift``.
    """
    value = Value.cast(value)
    if shift <= 0:
        return value.shift_left(-shift)
    doubled = value.shift_right(shift - 1)
    if len(doubled) == 0:
        return Const(0, 1)
    return doubled.shift_right(1) + doubled[0]


def half_up_by(value: ValueLike, shift: ValueLike) -> Value:
    """``floor(value / 2**shift + 1/2)`` for an unsigned shift known at run time.

    A barrel shifter of ``len(shift)`` levels and an incrementer. A register between the two is possible: shift
    ``value << 1`` right by ``shift``, store, then ``half_up(stored, 1)``.
    """
    return half_up(Value.cast(value).shift_left(1) >> Value.cast(shift), 1)


def half_up_scaled(value: ValueLike, exponent: ValueLike, *, fraction_bits: int, max_exponent: int) -> Value:
    """``half_up(value, fraction_bits - exponent)`` for an exponent known at run time, 0 to ``max_exponent``.

    Larger exponents count as ``max_exponent``. Depth: comparison and subtraction of the exponent (constant over a row,
    so worth a register), then as `half_up_by`.
    """
    value, exponent = Value.cast(value), Value.cast(exponent)
    left = max(max_exponent - fraction_bits, 0)
    top = fraction_bits + left
    if (1 << len(exponent)) - 1 > max_exponent:
        exponent = Mux(exponent > max_exponent, max_exponent, exponent)
    right = (top - exponent)[: top.bit_length()]
    return half_up_by(value.shift_left(left), right)


def saturate(value: ValueLike, bits: int) -> Value:
    """Clamp to the range of a signed integer of ``bits`` bits, the result's shape (sign-extended if narrower)."""
    value = Value.cast(value)
    if not value.shape().signed:
        value = Cat(value, Const(0, 1)).as_signed()
    if len(value) <= bits:
        return Cat(value, value[-1].replicate(bits - len(value))).as_signed()
    upper, sign = value[bits - 1 :], value[-1]
    fits = upper.all() | ~upper.any()
    return Mux(fits, value[:bits], Cat((~sign).replicate(bits - 1), sign)).as_signed()


def saturate_unsigned(value: ValueLike, bits: int) -> Value:
    """The lesser of an unsigned ``value`` and ``2**bits - 1``, ``bits`` wide."""
    value = Value.cast(value)
    if value.shape().signed:
        raise TypeError(f"value must be unsigned, not {value.shape()!r}")
    if len(value) <= bits:
        return Cat(value, Const(0, bits - len(value)))
    return value[:bits] | value[bits:].any().replicate(bits)


def clamp(value: ValueLike, limit: int) -> Value:
    """Clamp a signed ``value`` to ``-limit .. limit``; the result has the fewest bits that hold it."""
    value = saturate(value, limit.bit_length() + 1)
    clamped = Mux(value < -limit, -limit, Mux(value > limit, limit, value))
    return clamped[: limit.bit_length() + 1].as_signed()


def split_scale(code: ValueLike) -> tuple[Value, Value]:
    """Significand (``8 + mantissa``, 4 bits) and exponent (5 bits) of a scale code: wires only."""
    code = Value.cast(code)
    return Cat(code[:3], Const(1, 1)), code[3:8]


def reconstruct(code: ValueLike, scale: ValueLike, *, max_exponent: int = MAX_EXPONENT) -> Value:
    """One element of golden ``reconstruct_rows``: INT8 ``code`` times ``scale``, ``half_up``, saturated to INT16.

    Exact for scales whose exponent is at most ``max_exponent``: those of all rows that RowQuantizer makes by default,
    all 256 scale codes with ``ALL_EXPONENTS``. Depth: an 8 x 4 bit product, a barrel shifter of 5 levels, an
    incrementer and the saturation. To spread it over registers use the parts: ``code * significand``, `half_up_scaled`
    with ``fraction_bits = SCALE_BIAS`` (or `half_up_by`), `saturate`.
    """
    significand, exponent = split_scale(scale)
    product = Value.cast(code).as_signed() * significand
    return saturate(half_up_scaled(product, exponent, fraction_bits=SCALE_BIAS, max_exponent=max_exponent), 16)
