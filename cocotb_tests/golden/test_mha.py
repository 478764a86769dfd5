"""Query forms, scores and the value sum against exact fractions."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import calibration, clustered, generator, rows
from golden.dsq.row_quantizer import quantize_rows
from golden.mha.scores import SCORE_BITS, prepare_query, scores
from golden.mha.value_sum import divide_half_up, finish_output, scale_weights
from golden.reference import hadamard


def half_up(x: Fraction) -> int:
    """The definition."""
    return floor(x + Fraction(1, 2))


def scale(code: int) -> Fraction:
    """What a scale code stands for."""
    return Fraction(8 + code % 8) * Fraction(2) ** (code // 8 - 11)


def exact_score(q: list[int], q_scale: int, k: list[int], k_scale: int, shift: int) -> int:
    """One score in unbounded numbers."""
    dot = sum(a * b for a, b in zip(q, k, strict=True))
    value = half_up(dot * scale(q_scale) * scale(k_scale) / Fraction(2) ** shift)
    return min(max(value, -(2 ** (SCORE_BITS - 1))), 2 ** (SCORE_BITS - 1) - 1)


@pytest.mark.parametrize("head_dim", [16, 80, 128, 1024])
def test_scores_match_exact_fractions(head_dim):
    draw = generator("scores", head_dim)
    q, k = (draw.integers(-127, 128, (n, head_dim)).astype(np.int8) for n in (4, 12))
    k[0], k[1] = 127 * np.sign(q[0]), -128
    q_scale, k_scale = draw.integers(0, 136, 4, dtype=np.uint8), draw.integers(0, 256, 12, dtype=np.uint8)
    for shift in (-4, 0, 7, 15, 23, 31):
        made = scores(q, q_scale, k, k_scale, shift=shift)
        for i in range(4):
            for j in range(12):
                assert made[i, j] == exact_score(q[i].tolist(), int(q_scale[i]), k[j].tolist(), int(k_scale[j]), shift)


@given(st.integers(-(2**20), 2**20), st.integers(0, 255), st.integers(0, 255), st.integers(-8, 40))
def test_scores_round_any_product_of_scales(dot, q_scale, k_scale, shift):
    """Ties, tiny and saturating products included; the dot product is made of two rows."""
    k = np.zeros(130, np.int8)
    q = np.full(130, 127, np.int8)
    k[:128] = np.clip(dot // 127 - 127 * np.arange(128) * np.sign(dot), -127, 127)
    q[129], k[129] = 1, dot % 127
    made = scores(q[None], np.array([q_scale], np.uint8), k[None], np.array([k_scale], np.uint8), shift=shift)
    assert made[0, 0] == exact_score(q.tolist(), q_scale, k.tolist(), k_scale, shift)


@given(st.lists(st.integers(-127, 127), min_size=8, max_size=8), st.integers(8, 15), st.integers(16, 23))
def test_scores_are_exact_to_their_last_bit(codes, q_scale, k_scale):
    """Products of up to 29 bits give scores of 20 bits and more, with few bits behind the point: ties are common."""
    q, k = np.full(128, 127, np.int8), np.array([*codes, *[90] * 120], np.int8)
    for shift in range(-14, -8):
        made = scores(q[None], np.array([q_scale], np.uint8), k[None], np.array([k_scale], np.uint8), shift=shift)
        assert made[0, 0] == exact_score(q.tolist(), q_scale, k.tolist(), k_scale, shift)


def test_scores_saturate_both_ways():
    q, code = np.full((1, 64), 127, np.int8), np.array([129], np.uint8)
    k = np.concatenate([q, -q])
    limit = 1 << (SCORE_BITS - 1)
    assert scores(q, code, k, np.repeat(code, 2), shift=0).tolist() == [[limit - 1, -limit]]


def test_scores_batch_over_leading_axes():
    draw = generator("batch")
    q, q_scale = quantize_rows(rows(draw, 6, 64).reshape(3, 2, 64))
    k, k_scale = quantize_rows(rows(draw, 5, 64))
    made = scores(q, q_scale, k, k_scale, shift=12)
    assert made.shape == (3, 2, 5)
    np.testing.assert_array_equal(made[1], scores(q[1], q_scale[1], k, k_scale, shift=12))


@pytest.mark.parametrize("head_dim", [32, 64, 96])
def test_query_has_the_rotated_row_in_both_forms(head_dim):
    """Codes times scale lie within the INT8 bound of the rotated row, alone and times the shape."""
    draw = generator("query", head_dim)
    x, shape = clustered(draw, 20, head_dim), calibration(draw, head_dim).k_shape
    query = prepare_query(x, shape)
    factor = {32: 0.5**0.5, 64: 1, 96: 0.5**0.5}[head_dim]
    rotated = np.clip(x @ hadamard(head_dim).T * factor, -32768, 32767)
    shaped = np.clip(rotated * shape / 256, -32768, 32767)
    gain = shape.max() / 256
    forms = (query.codes, query.scale, rotated, 1), (query.shaped_codes, query.shaped_scale, shaped, gain)
    for codes, code, expected, error in forms:
        step = np.array([float(scale(int(c))) for c in code])[:, None]
        assert (np.abs(codes * step - expected) <= 0.535 * step + 0.5 * error + 0.5).all()


def test_shaped_query_saturates():
    query = prepare_query(np.full((1, 16), 32767, np.int16), np.full(16, 4095))
    assert query.shaped_codes[0, 0] == query.codes[0, 0] and query.shaped_scale == query.scale
    assert not query.shaped_codes[0, 1:].any()


def test_zero_query_scores_zero():
    query = prepare_query(np.zeros((2, 64), np.int16), np.full(64, 256))
    k, k_scale = quantize_rows(clustered(generator("zero"), 7, 64))
    assert not scores(query.codes, query.scale, k, k_scale, shift=10).any()
    assert not scores(query.shaped_codes, query.shaped_scale, k, k_scale, shift=10).any()


@given(st.integers(0, 65535), st.integers(0, 255))
def test_scaled_weights_match_exact_fractions(weight, code):
    made = scale_weights(np.array([weight]), np.array([code], np.uint8))
    assert int(made[0]) == half_up(weight * scale(code)) and made[0] == int(made[0])


def test_scaled_weights_are_exact_from_a_scale_of_eight_on():
    weights = np.arange(1, 65536, 97)
    for code in range(88, 136):
        exact = weights * float(scale(code))
        np.testing.assert_array_equal(scale_weights(weights, np.full(len(weights), code, np.uint8)), exact)


@given(st.integers(-(2**50), 2**50), st.integers(1, 2**36))
def test_division_matches_exact_fractions(numerator, denominator):
    made = divide_half_up(np.array([numerator]), np.array([denominator]))
    assert made.tolist() == [half_up(Fraction(numerator, denominator))]


def test_division_by_zero_gives_zero():
    assert divide_half_up(np.array([5, -5, 0]), np.array([0, 0, 0])).tolist() == [0, 0, 0]


def test_output_matches_exact_fractions():
    draw = generator("output")
    for _ in range(20):
        exact, delta = draw.integers(-(2**45), 2**45, (2, 16)), draw.integers(-(2**40), 2**40, (2, 16))
        rest, total = draw.integers(0, 2**31, 2), draw.integers(2**15, 2**32, 2)
        shape, mean = draw.integers(1, 4096, 16), draw.integers(-32768, 32768, 16)
        made = finish_output(exact, delta, rest, total, shape, mean)
        for i in range(2):
            for c in range(16):
                spread = half_up(Fraction(int(delta[i, c]) * int(shape[c]), 512))
                numerator = int(exact[i, c]) + spread + int(rest[i]) * int(mean[c])
                value = half_up(Fraction(numerator, int(total[i])))
                assert made[i, c] == min(max(value, -32768), 32767)


def test_output_saturates_and_is_zero_without_weight():
    shape, mean = np.full(4, 256), np.array([9, 9, 9, 9])
    exact = np.array([[10**12, -(10**12), 7, 0]])
    zero = np.zeros((1, 4), np.int64)
    one = finish_output(exact, zero, np.array([0]), np.array([32768]), shape, mean)
    assert one.tolist() == [[32767, -32768, 0, 0]]
    assert not finish_output(zero, zero, np.array([0]), np.array([0]), shape, mean).any()
