"""Heads of a random model in the middle of a text: what their caches hold, and the error of an output."""

import numpy as np
import pytest

from cocotb_tests.golden import tiny_model
from golden.calibrate import calibration_for, to_fixed
from golden.errors import UserError
from golden.heads import model_heads
from golden.mha.core import attend
from golden.model import load_model, prefill
from golden.model.attention import causal_attention
from golden.settings import default_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Model, prefill of 256 tokens, calibration and settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVO_CACHE", str(tmp_path_factory.mktemp("cache")))
        model = load_model(tiny_model.write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
        settings = default_settings()
        calibration = calibration_for(model, settings, context=512, progress=False)
        yield model, prefill(model, "legal", 256, progress=False), calibration, settings


def test_cache_holds_all_groups_but_two(made):
    heads = list(model_heads(*made, [(0, 1), (1, 0)], context=250, count=3))
    assert [(head.layer, head.kv_head) for head in heads] == [(0, 1), (1, 0)]
    for head in heads:
        assert head.state.tokens == 250
        assert len(head.state.closed) == 2 and len(head.state.k_codes) == 64 + 58
        assert head.q_rows.shape == (2, 3, 16)
        assert head.v_fraction == made[2].v_fraction[head.layer, head.kv_head]
        np.testing.assert_array_equal(head.v_rows, to_fixed(head.v, head.v_fraction))


def test_error_is_relative_to_float_attention(made):
    (head,) = model_heads(*made, [(1, 1)], context=256, count=4)
    exact = causal_attention(head.q, head.k[None], head.v[None])
    assert head.error(to_fixed(exact, head.v_fraction)) < 1e-3
    assert head.error(to_fixed(1.25 * exact, head.v_fraction)) == pytest.approx(0.25, abs=1e-3)
    assert head.error(np.zeros(exact.shape, np.int16)) == 1
    out, _ = attend(head.state, head.q_rows, shift=head.shift)
    assert 0 < head.error(out) < 0.5


def test_refuses_queries_beyond_the_open_group(made):
    with pytest.raises(UserError, match="queries must be from 1 to 2 with a context of 194, not 3"):
        list(model_heads(*made, [(0, 0)], context=194, count=3))
    with pytest.raises(UserError, match="the prefill has 256 tokens, 257 are needed"):
        list(model_heads(*made, [(0, 0)], context=257, count=1))
