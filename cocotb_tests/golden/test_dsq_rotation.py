"""The Hadamard rotation against the float reference: rounding, saturation, dot products, blocks."""

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator, rows
from golden.dsq.rotation import rotate, rotation_block, rotation_shift
from golden.reference import hadamard

HEAD_DIMS = range(16, 129, 16)
BLOCKS = {16: 16, 32: 32, 48: 16, 64: 64, 80: 16, 96: 32, 112: 16, 128: 128}
SHIFTS = {16: 2, 32: 3, 64: 3, 128: 4}


def unrounded(x: np.ndarray) -> np.ndarray:
    """The reference's rotation in the integer one's scale."""
    head_dim = x.shape[-1]
    block, shift = BLOCKS[head_dim], SHIFTS[BLOCKS[head_dim]]
    return x @ hadamard(head_dim).T * (np.sqrt(block) / 2**shift)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_block_is_the_largest_power_of_two_that_divides(head_dim):
    assert rotation_block(head_dim) == BLOCKS[head_dim]
    assert rotation_shift(head_dim) == SHIFTS[BLOCKS[head_dim]]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_equals_the_reference_within_half_a_unit(head_dim):
    x = rows(generator("rotation", head_dim), 200, head_dim)
    exact = np.clip(unrounded(x), -32768, 32767)
    assert np.abs(rotate(x) - exact).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rounds_ties_up(head_dim):
    """One unit in channel 0 gives 2**-shift everywhere; half a unit after the shift rounds to 1, minus half to 0."""
    x = np.zeros((2, head_dim), np.int16)
    x[0, 0], x[1, 0] = 1 << (SHIFTS[BLOCKS[head_dim]] - 1), -1 << (SHIFTS[BLOCKS[head_dim]] - 1)
    expected = np.zeros((2, head_dim), np.int16)
    expected[0, : BLOCKS[head_dim]] = 1
    np.testing.assert_array_equal(rotate(x), expected)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_keeps_dot_products_up_to_rounding(head_dim):
    """Each rounding moves an element by at most 1/2, so a dot product by at most half of both absolute sums."""
    draw = generator("dot products", head_dim)
    a, b = (np.clip(draw.normal(0, 2500, (300, head_dim)), -8000, 8000).astype(np.int16) for _ in range(2))
    ra, rb = rotate(a).astype(np.int64), rotate(b).astype(np.int64)
    factor = BLOCKS[head_dim] / 4 ** SHIFTS[BLOCKS[head_dim]]
    assert factor in (1, 0.5)
    error = np.abs((ra * rb).sum(axis=1) - factor * (a.astype(np.int64) * b).sum(axis=1))
    assert (error <= 0.5 * (np.abs(ra) + np.abs(rb)).sum(axis=1) + head_dim / 4).all()
    norms = np.linalg.norm(ra, axis=1) * np.linalg.norm(rb, axis=1)
    assert (error / norms).max() < 1e-3


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_never_grows_in_norm(head_dim):
    x = rows(generator("norm", head_dim), 200, head_dim)
    slack = np.sqrt(head_dim) / 2  # of the rounding
    assert (np.linalg.norm(rotate(x), axis=1) <= np.linalg.norm(x.astype(float), axis=1) + slack).all()


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_saturates_both_ways(head_dim):
    """Equal extreme values meet in the first channel of each block, eight (block 64) times too large for INT16."""
    block = BLOCKS[head_dim]
    expected = np.zeros((2, head_dim), np.int16)
    expected[0, ::block], expected[1, ::block] = -32768, 32767
    extreme = np.repeat(np.array([[-32768], [32767]], np.int16), head_dim, axis=1)
    np.testing.assert_array_equal(rotate(extreme), expected)


@pytest.mark.parametrize("head_dim", [48, 80, 96, 112])
def test_rotates_each_block_on_its_own(head_dim):
    x = rows(generator("blocks", head_dim), 20, head_dim)
    block = BLOCKS[head_dim]
    parts = [rotate(x[:, at : at + block]) for at in range(0, head_dim, block)]
    np.testing.assert_array_equal(rotate(x), np.concatenate(parts, axis=1))


def test_keeps_zero_rows_and_leading_axes():
    x = rows(generator("axes"), 6, 64)
    np.testing.assert_array_equal(rotate(x.reshape(2, 3, 64)), rotate(x).reshape(2, 3, 64))
    assert not rotate(np.zeros((3, 80), np.int16)).any()
