"""Rounding of weights for inputs: what `round_along` keeps small, what the bias takes off."""

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from golden.gemm.weights import Inputs, quantize_projection, round_along


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 7), (40, 96), (16, 576)])
def test_errors_nearly_cancel_along_the_direction(n, k):
    """The product of errors and direction is a fraction of what rounding gives, other inputs lose little by it."""
    draw = generator("along", n, k)
    scaled = draw.uniform(-126, 126, (n, k))
    direction, variance = 3 * draw.normal(size=k) * np.exp(draw.normal(size=k)), np.exp(draw.normal(size=k))
    codes, plain = round_along(scaled, direction, variance), np.floor(scaled + 0.5)
    assert np.array_equal(codes, np.floor(codes)) and np.abs(codes).max() <= 127
    along = [np.abs((c - scaled) @ direction).mean() for c in (codes, plain)]
    others = [(np.square(c - scaled) @ variance).mean() for c in (codes, plain)]
    if k > 50:
        assert along[0] < 0.25 * along[1] and others[0] < 1.1 * others[1]


def test_no_direction_is_rounding_half_up():
    scaled = np.append(generator("plain").uniform(-127, 127, (4, 30)), [[0.5, -0.5, 126.5, -126.5] + [0] * 26], axis=0)
    assert np.array_equal(round_along(scaled, np.zeros(30), np.ones(30)), np.floor(scaled + 0.5))


def test_bias_takes_off_the_error_of_the_mean():
    """For the mean input, outputs are right to a unit, though weights are rounded."""
    draw = generator("mean")
    weight, mean = draw.normal(size=(20, 64)), 5 * draw.normal(size=64)
    inputs = Inputs(mean=mean, variance=np.ones(64), first=mean)
    made = quantize_projection(weight, unit=0.001, input_unit=1.0, inputs=inputs, bias=np.arange(20.0))
    plain = quantize_projection(weight, unit=0.001, input_unit=1.0, bias=np.arange(20.0))
    exact = (weight @ mean + np.arange(20.0)) / 0.001
    errors = []
    for one in (made, plain):
        scale = one.columns.scale * 2.0**-one.columns.shift
        errors.append(np.abs(one.weights @ mean * scale + one.columns.bias - exact).max())
    assert errors[0] < 1 + 2.0**-16 * np.abs(exact).max() and errors[1] > 10 * errors[0], errors
    assert np.array_equal(made.weights, plain.weights)
