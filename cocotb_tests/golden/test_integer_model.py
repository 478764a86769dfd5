"""The integer model: each projection against float, all of it on a text, its interface."""

from dataclasses import replace

import numpy as np
import pytest

from golden.calibrate import calibration_for
from golden.gemm.core import Command, project
from golden.gemm.prologue import Norm
from golden.integer_model import IntegerLayer, fixed_residuals, integer_model_for, residual_basis
from golden.model import load_model, prefill
from golden.model.attention import causal_attention
from golden.settings import default_settings

TOKENS = 64


@pytest.fixture(scope="module")
def models():
    """The embedded model, its integer form, and 64 tokens of a text that is not calibrated on."""
    model = load_model()
    calibration = calibration_for(model, default_settings(), progress=False)
    return model, integer_model_for(model, calibration, progress=False), prefill(model, "prose", 4096).tokens[:TOKENS]


def share(got, exact):
    """Root mean square of the difference in shares of that of ``exact``."""
    return float(np.sqrt(np.square(got - exact).sum() / np.square(exact).sum()))


def test_projections_follow_float(models):
    """Layer by layer on the float model's rows; weights alone are off by half a percent."""
    model, integer, tokens = models
    x, positions = model.embed(tokens), np.arange(len(tokens))
    for layer in range(0, model.config.layers):
        q, k, v = model.qkv(layer, x, positions)
        attention = causal_attention(q, k, v)
        after = model.finish(layer, x, attention)
        if layer % 7 == 0:
            rows = fixed_residuals(x)
            for got, exact in zip(integer.qkv(layer, rows, positions), (q, k, v), strict=True):
                assert share(got, exact) < 0.03
            change = (integer.finish(layer, rows, attention) - rows) / 4096 @ residual_basis(x.shape[1]).T
            assert share(change, after - x) < 0.05
        x = after


def test_predicts_as_float_does(models):
    model, integer, tokens = models
    x, rows, positions = model.embed(tokens), integer.embed(tokens), np.arange(len(tokens))
    for layer in range(model.config.layers):
        x = model.finish(layer, x, causal_attention(*model.qkv(layer, x, positions)))
        rows = integer.finish(layer, rows, causal_attention(*integer.qkv(layer, rows, positions)))
    exact, got = model.logits(x).astype(np.float64), integer.logits(rows).astype(np.float64)
    exact, got = (z - np.log(np.exp(z).sum(axis=1, keepdims=True)) for z in (exact, got))
    kl = (np.exp(exact) * (exact - got)).sum(axis=1).mean()
    assert kl < 0.02, kl


def test_inputs_make_weights_better(models):
    """The mean output is closer to float's, and the first token's is much closer, on the text that was rounded for."""
    model, integer, _ = models
    calibration = calibration_for(model, default_settings(), progress=False)
    tokens = prefill(model, "code", 4096).tokens[:128]
    plain = IntegerLayer(model, calibration, 0)
    x = model.embed(tokens)
    exact = np.square(x).mean(axis=1, keepdims=True) + model.config.norm_eps
    exact = (x / np.sqrt(exact) * model.weights(0).attention_norm) @ model.weights(0).qkv.T
    v = slice(-model.config.kv_heads * model.config.head_dim, None)
    errors = []
    for layer in (plain, integer.layers[0]):
        columns = layer.qkv.columns
        unit = np.repeat(2.0 ** -calibration.v_fraction[0].astype(float), model.config.head_dim)
        out, _ = project(
            fixed_residuals(x),
            layer.qkv.weights[v],
            replace(columns, scale=columns.scale[v], shift=columns.shift[v], bias=columns.bias[v]),
            Command(norm=Norm.RMS, epsilon=layer.qkv_command.epsilon),
            act_bits=16,
        )
        difference = out * unit - exact[:, v]
        errors.append((np.abs(difference[1:].mean(axis=0)).mean(), np.abs(difference[0]).mean()))
    assert errors[1][0] < 0.7 * errors[0][0] and errors[1][1] < 0.5 * errors[0][1], errors
