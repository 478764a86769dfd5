"""The float reference itself, and how far the integer functions are from it on a real model's cache."""

import numpy as np
import pytest

from cocotb_tests.golden.draws import clustered, generator, real
from cocotb_tests.lib.real import RealGroup
from golden.dsq.compressor import compress
from golden.dsq.dequantizer import expand
from golden.dsq.row_quantizer import quantize_rows, quantize_token_rows, reconstruct_rows
from golden.dsq.salient import pick_salient
from golden.reference import attention, dsq_rows, hadamard, keep_runs, quantize_int8, softmax


@pytest.mark.parametrize(("head_dim", "block"), [(16, 16), (48, 16), (64, 64), (96, 32), (128, 128)])
def test_hadamard_is_orthonormal_in_blocks(head_dim, block):
    h = hadamard(head_dim)
    np.testing.assert_allclose(h @ h.T, np.eye(head_dim), atol=1e-12)
    np.testing.assert_allclose(h, h.T, atol=1e-12)
    np.testing.assert_allclose(np.abs(h[:block, :block]), block**-0.5, atol=1e-12)
    assert not h[:block, block:].any()
    assert (h[:, ::block].sum(axis=1) > 0).all()  # the first row of a block sums its channels


def test_int8_rows_have_127_steps():
    x = np.array([[127.0, -126.5, 0.49, 0.5], [0, 0, 0, 0], [-254, 1, 1.0001, 3]])
    expected = [[127, -126, 0, 1], [0, 0, 0, 0], [-254, 2, 2, 4]]
    np.testing.assert_allclose(quantize_int8(x), expected, atol=1e-9)


def test_group_by_hand():
    """Two channels, unrotated blocks of two: base (10, 0); difference (4, 2); scale 3 at norm 2; levels 1.5 and 0.5."""
    k = np.array([[127.0, 0], [123, 2]]) @ hadamard(2).T
    v = np.array([[127.0, 0], [127, -127]])
    ones = np.ones(2)
    made_k, made_v = dsq_rows(
        k, v, np.array([0]), k_shape=ones, v_shape=ones, v_mean=np.array([7.0, 7.0]), k_norm=2, v_norm=4, delta_bits=2
    )
    difference = quantize_int8(np.array([[123.0, 2]]))[0] - [127, 0]
    step = np.abs(difference).sum() / 2
    assert np.abs(difference[0]) >= step > np.abs(difference[1])
    np.testing.assert_allclose(made_k[0], [127, 0], atol=1e-9)
    np.testing.assert_allclose(made_k[1], [127 - 1.5 * step, 0.5 * step], atol=1e-9)
    np.testing.assert_allclose(made_v[0], [127, 0], atol=1e-9)
    step = (120 + 134) / 4
    np.testing.assert_allclose(made_v[1], [7 + 1.5 * step, 7 - 1.5 * step], atol=1e-9)


def test_all_salient_group_is_int8():
    draw = generator("all salient")
    k, v = draw.normal(size=(8, 16)), draw.normal(size=(8, 16))
    ones = np.ones(16)
    made = dsq_rows(
        k, v, np.arange(8), k_shape=ones, v_shape=ones, v_mean=0 * ones, k_norm=1, v_norm=1, delta_bits=2
    )  # fmt: skip
    np.testing.assert_array_equal(made[0], quantize_int8(k @ hadamard(16).T))
    np.testing.assert_array_equal(made[1], quantize_int8(v))


def test_softmax_by_hand():
    p = softmax(np.array([[0.0, 1, -np.inf], [-np.inf] * 3, [1000, 1000, 1000]]))
    np.testing.assert_allclose(p, [[1 / 3, 2 / 3, 0], [0, 0, 0], [1 / 3] * 3], atol=1e-12)


def test_keep_runs_by_hand():
    distance, run_length = np.array([3.0, 1, 2, 9]), np.array([5, 4, 6, 1])
    assert keep_runs(distance, run_length, margin=10, keep_count=10).tolist() == [False, True, True, False]
    assert keep_runs(distance, run_length, margin=1.5, keep_count=10).tolist() == [False, True, False, False]
    assert keep_runs(distance, run_length, margin=10, keep_count=3).tolist() == [False] * 4
    assert keep_runs(distance, run_length, margin=10, keep_count=16).all()


def test_attention_is_the_weighted_mean_of_v():
    draw = generator("attention")
    q, k, v = draw.normal(size=(3, 8)), draw.normal(size=(5, 8)), draw.normal(size=(5, 8))
    masked = np.zeros((3, 5), bool)
    masked[0, 1:], masked[2] = True, True
    out, probability = attention(q, k, v, masked=masked)
    np.testing.assert_allclose(out[0], v[0], atol=1e-12)
    weight = 2 ** (q[1] @ k.T)
    np.testing.assert_allclose(out[1], weight @ v / weight.sum(), atol=1e-12)
    assert not out[2].any() and not probability[2].any()


def errors(group: RealGroup, salient_tokens: int, delta_bits: int) -> np.ndarray:
    """Squared errors of the integer and the float method, for K and for V: ``[2, 2]``."""
    c = group.calibration
    salient = pick_salient(group.mass, group.first_group, salient_tokens=salient_tokens, sink_tokens=4)
    codes = quantize_token_rows(group.k_rows, group.v_rows)
    made = compress(*codes, salient, c, delta_bits=delta_bits)
    rows = expand(made, c, delta_bits=delta_bits)
    k, v = group.k_rows.astype(float), group.v_rows.astype(float)
    exact = k @ hadamard(k.shape[1]).T, v
    reference = dsq_rows(
        k,
        v,
        salient,
        k_shape=c.k_shape / 256,
        v_shape=c.v_shape / 256,
        v_mean=c.v_mean.astype(float),
        k_norm=c.k_norm / 256,
        v_norm=c.v_norm / 256,
        delta_bits=delta_bits,
    )
    return np.array(
        [
            [((integer - truth[made.order]) ** 2).sum(), ((real - truth) ** 2).sum()]
            for integer, real, truth in zip(rows, reference, exact, strict=True)
        ]
    )


@pytest.mark.parametrize(("salient_tokens", "delta_bits"), [(13, 2), (10, 4)])
def test_integer_groups_lose_no_more_than_float_ones(salient_tokens, delta_bits):
    """Real groups: 3-bit mantissas, whole steps and INT16 cost a few percent of the squared error of the method."""
    groups = real(salient_tokens=salient_tokens, delta_bits=delta_bits)
    made = np.array([errors(g, salient_tokens, delta_bits) for g in groups])
    ratio = made[..., 0] / made[..., 1]  # [group, K or V]
    for name, r in (("K", ratio[:, 0]), ("V", ratio[:, 1])):
        print(
            f"{name}, {salient_tokens} salient, {delta_bits} bits: squared error integer / float "
            f"{r.mean():.3f} ({r.min():.3f} to {r.max():.3f})"
        )
    assert (np.abs(ratio.mean(axis=0) - 1) < 0.02).all()
    assert ratio.max() < 1.2


def test_integer_rows_lose_what_the_scale_rounds_up():
    """INT8 rows alone: the scale is up to an eighth larger than the float one, the squared error up to 27%."""
    v_rows = np.concatenate([g.v_rows for g in real()])
    print(f"V rows with a scale of at least 8: {(quantize_rows(v_rows)[1] >= 11 << 3).mean():.2%}")
    for name, x in (("real", v_rows), ("clustered", clustered(generator("int8"), 2000, 64))):
        exact = x.astype(float)
        integer = ((reconstruct_rows(*quantize_rows(x)) - exact) ** 2).sum()
        ratio = integer / ((quantize_int8(exact) - exact) ** 2).sum()
        print(f"{name} INT8 rows: squared error integer / float {ratio:.3f}")
        assert 1 < ratio < 1.27
