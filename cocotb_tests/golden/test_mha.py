"""Query forms, scores and the value sum against exact fractions."""

from dataclasses import fields
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import calibration, clustered, generator, rows
from golden.dsq.row_quantizer import quantize_rows
from golden.mha.query import prepare_query
from golden.mha.scores import SCORE_BITS, scores
from golden.mha.softmax import EXP2, MASKED, softmax_streaming
from golden.mha.value_sum import SCALED_BITS, Sums, accumulate, finish_output, scale_weights
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
    assert int(made[0]) == min(half_up(weight * scale(code)), (1 << SCALED_BITS) - 1)


def test_scaled_weights_saturate_at_32_bits():
    """Weights of nearly one do from scales of 2**16 on; the largest scale of an INT16 row is 288."""
    codes = np.array([129, 199, 207, 208, 255], np.uint8)
    assert [int(scale(int(code))) for code in codes] == [288, 15 << 13, 15 << 14, 1 << 18, 15 << 20]
    top = (1 << SCALED_BITS) - 1
    assert scale_weights(np.full(5, EXP2[255]), codes).tolist() == [288 * 65359, *[top] * 4]
    assert scale_weights(np.full(5, 1 << 14), codes).tolist() == [288 << 14, 15 << 27, 15 << 28, top, top]
    assert scale_weights(np.array([1, 0]), np.array([255, 255], np.uint8)).tolist() == [15 << 20, 0]


def test_scaled_weights_are_exact_from_a_scale_of_eight_on():
    weights = np.arange(1, 65536, 97)
    for code in range(88, 136):
        exact = weights * float(scale(code))
        np.testing.assert_array_equal(scale_weights(weights, np.full(len(weights), code, np.uint8)), exact)


def plain_sums(weights: list, maximum: list, is_delta: list, scales: list, codes: list) -> Sums:
    """One row's accumulators in unbounded integers, token by token: shift all, then add."""
    exact, delta, scalars, highest = [0] * len(codes[0]), [0] * len(codes[0]), [0, 0, 0], maximum[0]
    for weight, top, of_delta, code, row in zip(weights, maximum, is_delta, scales, codes, strict=True):
        rise, highest = top - highest, top
        exact, delta, scalars = ([x >> rise for x in sums] for sums in (exact, delta, scalars))
        scaled = min(half_up(weight * scale(code)), (1 << 32) - 1)
        if of_delta:
            delta = [x + scaled * c for x, c in zip(delta, row, strict=True)]
            scalars[0] += scaled
            scalars[1] += weight
        else:
            exact = [x + scaled * c for x, c in zip(exact, row, strict=True)]
        scalars[2] += weight
    return Sums(exact=exact, delta=delta, scaled=scalars[0], rest=scalars[1], total=scalars[2])


def drawn_tokens(draw: np.random.Generator, tokens: int, head_dim: int, highest_scale: int) -> tuple:
    """V of mixed tokens: whether each is a delta, scales, codes."""
    is_delta = draw.random(tokens) < 0.5
    int8, delta = draw.integers(-128, 128, (tokens, head_dim)), draw.integers(0, 4, (tokens, head_dim))
    scales = draw.integers(0, highest_scale + 1, tokens, dtype=np.uint8)
    return is_delta, scales, np.where(is_delta[:, None], delta, int8).astype(np.int8)


def assert_sums(made: Sums, row: int, expected: Sums) -> None:
    """Every accumulator of one row."""
    for field in fields(Sums):
        np.testing.assert_array_equal(getattr(made, field.name)[row], getattr(expected, field.name), field.name)


@pytest.mark.parametrize("highest_scale", [135, 255])
@pytest.mark.parametrize("spread", [0, 300, 2000, 30000, 1 << 22])
def test_sums_match_plain_loops(spread, highest_scale):
    """Rows of scores from equal ones to such that every rise clears the sums; masked ones among them."""
    draw = generator("sums", spread, highest_scale)
    score = np.clip(np.floor(draw.normal(0, spread, (6, 90))), -(1 << 25), (1 << 25) - 4).astype(np.int32)
    score[1] = np.sort(score[1])
    score[2] = np.sort(score[2])[::-1]
    score[3:][draw.random((3, 90)) < 0.4] = MASKED
    score[5] = MASKED
    weights, maximum = softmax_streaming(score)
    is_delta, scales, codes = drawn_tokens(draw, 90, 16, highest_scale)
    made = accumulate(weights, maximum, is_delta, scales, codes)
    for row in range(6):
        columns = (weights[row].tolist(), maximum[row].tolist(), is_delta, scales.tolist(), codes.tolist())
        assert_sums(made, row, plain_sums(*columns))
    assert not any(np.any(getattr(made, field.name)[5]) for field in fields(Sums))


def test_sums_shift_before_the_token_that_raised_the_maximum():
    """Three tokens by hand: negative sums round down."""
    weights, maximum = np.array([[40001, 32768, 5]], np.int32), np.array([[0, 2, 2]], np.int32)
    codes = np.array([[-1, 3], [1, 2], [7, -7]], np.int8)
    made = accumulate(weights, maximum, np.array([False, True, False]), np.full(3, 88, np.uint8), codes)
    expected = Sums(
        exact=[(-8 * 40001 >> 2) + 8 * 5 * 7, (3 * 8 * 40001 >> 2) - 8 * 5 * 7],
        delta=[8 * 32768, 2 * 8 * 32768],
        scaled=8 * 32768,
        rest=32768,
        total=(40001 >> 2) + 32768 + 5,
    )
    assert_sums(made, 0, expected)
    low = accumulate(weights[:, :2], maximum[:, :2], np.array([False, True]), np.zeros(2, np.uint8), codes[:2])
    once = half_up(40001 * scale(0))
    assert low.exact.tolist() == [[-once >> 2, 3 * once >> 2]]


def test_sums_of_a_whole_context_are_exact():
    """32,768 tokens at full weight under the largest scales: sums of up to 2**54 stay integers."""
    tokens = 32768
    weights, maximum = np.full((1, tokens), EXP2[255]), np.zeros((1, tokens), np.int32)
    is_delta = np.arange(tokens) % 2 == 1
    scales = np.where(is_delta, 255, 135).astype(np.uint8)
    codes = np.where(is_delta[:, None], 3, -127).astype(np.int8)
    made = accumulate(weights, maximum, is_delta, scales, codes)
    scaled, top = 480 * 65359, (1 << 32) - 1
    assert made.exact.tolist() == [[-127 * scaled * 16384]] and made.delta.tolist() == [[3 * top * 16384]]
    assert made.scaled.tolist() == [top * 16384]
    assert made.rest.tolist() == [65359 * 16384] and made.total.tolist() == [65359 * 32768]


def drawn_sums(draw: np.random.Generator, bits: int, count: int = 16) -> tuple[Sums, np.ndarray, np.ndarray]:
    """Accumulators of two rows with totals of ``bits`` bits, and outputs in and beyond INT16; shapes and means."""
    total = draw.integers(1 << (bits - 1), 1 << bits, 2)
    sums = Sums(
        exact=(draw.uniform(-40000, 40000, (2, count)) * total[:, None]).astype(np.int64),
        delta=draw.integers(0, 3 << (bits + 3), (2, count)),
        scaled=draw.integers(0, 1 << (bits + 3), 2),
        rest=(draw.random(2) * total).astype(np.int64),
        total=total,
    )
    return sums, draw.integers(1, 4096, count), draw.integers(-32768, 32768, count)


@pytest.mark.parametrize("bits", [1, 2, 8, 16, 19, 20, 21, 24, 32, 36])
def test_output_matches_exact_fractions(bits):
    """The numerator cut to what gives the total 20 bits, times the inverse: and near the quotient itself."""
    draw = generator("output", bits)
    worst = Fraction(0)
    for _ in range(20):
        sums, shape, mean = drawn_sums(draw, bits)
        made = finish_output(sums, shape, mean)
        for i, total in enumerate(sums.total.tolist()):
            cut, inverse = max(bits - 20, 0), half_up(Fraction(1 << (bits - 1 + 18), total))
            for c in range(16):
                odd = 2 * int(sums.delta[i, c]) - 3 * int(sums.scaled[i])
                numerator = int(sums.exact[i, c]) + half_up(Fraction(odd * int(shape[c]), 512))
                numerator += int(sums.rest[i]) * int(mean[c])
                value = half_up(Fraction((numerator >> cut) * inverse, 1 << (bits - 1 + 18 - cut)))
                assert made[i, c] == min(max(value, -32768), 32767)
                exact = Fraction(min(max(Fraction(numerator, total), Fraction(-32768)), Fraction(32767)))
                worst = max(worst, abs(int(made[i, c]) - exact))
    print(f"totals of {bits} bits: outputs within {float(worst):.4f} of the quotient")
    assert worst < 0.5 + 0.125 + 2**-18


def sums_of(exact: list, total: list) -> Sums:
    """Sums of INT8 tokens alone."""
    zero = np.zeros(len(total), np.int64)
    return Sums(exact=np.array(exact), delta=np.zeros_like(exact), scaled=zero, rest=zero, total=np.array(total))


def test_output_saturates_and_is_zero_without_weight():
    shape, mean = np.full(4, 256), np.array([9, 9, 9, 9])
    one = finish_output(sums_of([[10**12, -(10**12), 7, 0]], [32768]), shape, mean)
    assert one.tolist() == [[32767, -32768, 0, 0]]
    huge = finish_output(sums_of([[2**60, -(2**60), 2**41 - 1, -(2**41)]] * 2, [1, 65359 << 20]), shape, mean)
    assert huge.tolist() == [[32767, -32768, 32767, -32768], [32767, -32768, 32, -32]]
    assert not finish_output(sums_of([[0, 5, -5, 0]], [0]), shape, mean).any()


@pytest.mark.parametrize("total", [655359, (1 << 20) - 1, 3 << 20, 987654321, (1 << 36) - 12345])
def test_output_rounds_up_from_the_cut_half_on(total):
    """The least numerators whose cut form reaches k + 1/2, and those one below."""
    length = total.bit_length()
    cut, inverse = max(length - 20, 0), half_up(Fraction(1 << (length - 1 + 18), total))
    value = np.arange(-30000, 30000, 1777)
    tie = [-(-((2 * int(k) + 1) << (length - 2 + 18 - cut)) // inverse) << cut for k in value]
    shape, mean = np.full(len(tie), 256), np.zeros(len(tie), np.int64)
    for below, more in ((0, 1), (1, 0)):
        made = finish_output(sums_of([[x - below for x in tie]], [total]), shape, mean)
        np.testing.assert_array_equal(made[0], value + more)


def test_output_of_whole_quotients_is_exact():
    """Sums that are multiples of the total give that multiple: one token gives its row."""
    draw = generator("whole")
    total = np.concatenate([draw.integers(1, 1 << bits, 8) for bits in (4, 10, 16, 20, 27, 36)])
    value = draw.integers(-32768, 32768, (len(total), 16))
    made = finish_output(sums_of(value * total[:, None], total), np.full(16, 256), np.zeros(16, np.int64))
    np.testing.assert_array_equal(made, value)


def test_output_of_a_delta_token_lies_on_its_level():
    """Codes 0..3 at a scale of 16 and shape 1: mean - 24, - 8, + 8, + 24."""
    weights, maximum = np.full((1, 1), 40000, np.int32), np.zeros((1, 1), np.int32)
    for code, offset in enumerate((-24, -8, 8, 24)):
        sums = accumulate(weights, maximum, np.array([True]), np.array([96], np.uint8), np.full((1, 4), code, np.int8))
        made = finish_output(sums, np.full(4, 256), np.array([0, 100, -100, 32760]))
        assert made.tolist() == [[min(mean + offset, 32767) for mean in (0, 100, -100, 32760)]]
