"""Fixed-point expressions against golden, on Amaranth's simulator."""

from collections.abc import Callable

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, Value, signed, unsigned
from amaranth.sim import Simulator

from cocotb_tests.lib import rng
from golden import fixed as golden
from golden.dsq.compressor import STEP_BITS, channel_steps
from golden.dsq.row_quantizer import reconstruct_rows
from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS
from rtl.common.fixed import (
    ALL_EXPONENTS,
    clamp,
    half_up,
    half_up_by,
    half_up_scaled,
    reconstruct,
    saturate,
    saturate_unsigned,
    split_scale,
)


def evaluate(expression: Callable[..., Value], shapes: list, vectors: list[tuple[int, ...]]) -> list[int]:
    """Values of `expression` of inputs with `shapes`, for each of `vectors`."""
    inputs = [Signal(shape, name=f"input_{n}") for n, shape in enumerate(shapes)]
    value = expression(*inputs)
    result = Signal(value.shape())
    m = Module()
    m.d.comb += result.eq(value)
    results = []

    async def bench(ctx) -> None:
        for vector in vectors:
            for signal, word in zip(inputs, vector, strict=True):
                ctx.set(signal, word)
            results.append(ctx.get(result))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return results


def numbers(bits: int, is_signed: bool, label: str) -> list[int]:
    """Corner values and random ones of every magnitude."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    draw = rng(label)
    spread = [draw.randrange(low >> n, (high >> n) + 1) for n in range(bits - 1) for _ in range(4)]
    return [low, low + 1, high, high - 1, 0, 1, *([-1] if is_signed else []), *spread]


@pytest.mark.parametrize("shift", [-3, 0, 1, 2, 7, 19, 20, 21, 25])
@pytest.mark.parametrize("is_signed", [False, True])
def test_half_up_matches_golden(is_signed, shift):
    values = numbers(20, is_signed, "half_up")
    shape = signed(20) if is_signed else unsigned(20)
    results = evaluate(lambda v: half_up(v, shift), [shape], [(v,) for v in values])
    assert results == golden.half_up(values, shift).tolist()


@pytest.mark.parametrize("is_signed", [False, True])
def test_half_up_by_a_signal_matches_golden(is_signed):
    vectors = [(v, s) for v in numbers(20, is_signed, "half_up_by") for s in (0, 1, 2, 5, 18, 19, 20, 21, 31)]
    shape = signed(20) if is_signed else unsigned(20)
    results = evaluate(half_up_by, [shape, unsigned(5)], vectors)
    assert results == golden.half_up(*np.array(vectors).T).tolist()


@pytest.mark.parametrize(("fraction_bits", "max_exponent"), [(11, 16), (19, 31), (19, 16), (8, 3)])
def test_half_up_scaled_matches_golden(fraction_bits, max_exponent):
    vectors = [(v, e) for v in numbers(20, True, "half_up_scaled") for e in range(0, 32, 3)]
    results = evaluate(
        lambda v, e: half_up_scaled(v, e, fraction_bits=fraction_bits, max_exponent=max_exponent),
        [signed(20), unsigned(5)],
        vectors,
    )
    values, exponents = np.array(vectors).T
    assert results == golden.half_up(values, fraction_bits - np.minimum(exponents, max_exponent)).tolist()


@pytest.mark.parametrize("bits", [4, 16, 20, 24])
@pytest.mark.parametrize("is_signed", [False, True])
def test_saturate_matches_golden(is_signed, bits):
    values = numbers(20, is_signed, "saturate")
    shape = signed(20) if is_signed else unsigned(20)
    results = evaluate(lambda v: saturate(v, bits), [shape], [(v,) for v in values])
    assert results == golden.saturate(values, bits).tolist()


@pytest.mark.parametrize("bits", [4, 20, 24])
def test_saturate_unsigned_is_the_lesser(bits):
    values = numbers(20, False, "saturate_unsigned")
    results = evaluate(lambda v: saturate_unsigned(v, bits), [unsigned(20)], [(v,) for v in values])
    assert results == [min(v, (1 << bits) - 1) for v in values]


def test_saturate_unsigned_rejects_signed_values():
    with pytest.raises(TypeError, match=r"^value must be unsigned, not signed\(4\)$"):
        saturate_unsigned(Signal(signed(4)), 3)


@pytest.mark.parametrize("limit", [127, 100, 1])
def test_clamp_is_symmetric(limit):
    values = [*range(-300, 300), *numbers(20, True, "clamp")]
    results = evaluate(lambda v: clamp(v, limit), [signed(20)], [(v,) for v in values])
    assert results == np.clip(values, -limit, limit).tolist()


@pytest.mark.parametrize("max_exponent", [MAX_EXPONENT, ALL_EXPONENTS])
def test_reconstruct_matches_golden(max_exponent):
    scales = range(256) if max_exponent == ALL_EXPONENTS else range(8 * (max_exponent + 1))
    vectors = [(code, scale) for code in (-128, -127, -64, -1, 0, 1, 3, 100, 127) for scale in scales]
    results = evaluate(lambda c, s: reconstruct(c, s, max_exponent=max_exponent), [signed(8), unsigned(8)], vectors)
    codes, scales = np.array(vectors).T
    assert results == reconstruct_rows(codes[:, None], scales)[:, 0].tolist()


def test_channel_steps_are_expressions_of_these():
    """The recipe for golden `channel_steps` from `split_scale`, `half_up_scaled` and `saturate_unsigned`."""
    vectors = [(scale, shape) for scale in range(256) for shape in (1, 2, 200, 256, 1000, 4095)]

    def step(scale: Value, shape: Value) -> Value:
        significand, exponent = split_scale(scale)
        scaled = half_up_scaled(significand * shape, exponent, fraction_bits=SCALE_BIAS + 8, max_exponent=31)
        return saturate_unsigned(scaled, STEP_BITS)

    results = evaluate(step, [unsigned(8), unsigned(12)], vectors)
    assert results == [int(channel_steps(scale, np.array([shape]))[0]) for scale, shape in vectors]
