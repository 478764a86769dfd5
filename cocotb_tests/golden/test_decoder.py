"""The decoder layer: bit for bit the integer model with a compressed cache; variants of cache and fusion."""

import re

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.tiny_layer import tiny_layers
from golden.account import Account
from golden.decoder import swiglu_block
from golden.fixed import half_up
from golden.gemm.weights import identity_projection
from golden.kvo_method import KvoMethod
from golden.mha.core import attend
from golden.settings import KvoSettings


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Layers with groups of 64 tokens, as the integer model has them."""
    return tiny_layers(tmp_path_factory.mktemp("decoder"), salient_tokens=8, delta_bits=4)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kv", ["dsq", "dsq+hcap"])
def test_equals_the_integer_model_on_its_cache(made, layer, kv):
    """Through the close of a group that is compressed, after a prompt of two groups."""
    c, prompt, count = made.model.config, 128, 70
    draw = generator("prompt", layer)
    k, v = draw.normal(0, 1, (2, c.kv_heads, prompt, c.head_dim)).astype(np.float32)
    mass = draw.gamma(0.3, 1, (c.kv_heads, prompt // 64, prompt)).astype(np.float32)
    decoder = made.decoder(layer, kv=kv)
    cache = KvoMethod(decoder.settings, made.calibration).open(c, layer, k, v, mass)
    sequence = decoder.open(cache.heads)
    for token, x in enumerate(made.rows("tie", count)[:, None]):
        positions = np.array([prompt + token])
        attention = cache.attend(*made.integer.qkv(layer, x, positions), Account())
        out = made.integer.finish(layer, x, attention)
        np.testing.assert_array_equal(decoder.step([sequence], x).out, out)
    assert len(decoder.sequences[sequence][0].closed) == 2
    assert decoder.sequences[sequence][0].history.tolist() == cache.heads[0].history.tolist()


def test_sequences_do_not_mix(made):
    """Three sequences of different lengths decoded together, each as if it were alone."""
    heads = [made.heads(f"mix{tokens}", tokens) for tokens in (130, 191, 64)]
    together, alone = made.decoder(), made.decoder()
    for given in heads:
        together.open(given)
        alone.open(given)
    for step, x in enumerate(made.rows("mix", 9).reshape(3, 3, -1)):
        order = np.roll([0, 1, 2], step)
        got = together.step(order, x)
        for row, sequence in enumerate(order):
            want = alone.step([sequence], x[row : row + 1])
            for name in ("qkv", "attention", "after", "middle", "out"):
                np.testing.assert_array_equal(getattr(got, name)[row : row + 1], getattr(want, name))
    assert [states[0].tokens for states in together.sequences] == [133, 194, 67]
    assert [len(states[0].closed) for states in together.sequences] == [1, 2, 0]
    assert [states[0].tokens for states in heads] == [130, 191, 64]


def test_empty_sequence_begins_at_position_zero(made):
    decoder, x = made.decoder(), made.rows("empty", 1)
    sequence = decoder.open()
    got = decoder.step([sequence], x)
    q = made.integer.qkv(0, x, np.array([0]))[0]
    head = got.qkv[0, : made.model.config.head_dim]
    np.testing.assert_array_equal(np.sign(head), np.sign(q[0, 0]))
    one_token = got.attention[0].reshape(-1, made.model.config.head_dim)
    assert (one_token[0] == one_token[1]).all()  # both query heads of a KV head see nothing but its one V row


def test_dense_cache_compresses_nothing(made):
    decoder = made.decoder(kv="dense")
    heads = made.heads("dense", 150, dense=True)
    sequence = decoder.open(heads)
    steps = [decoder.step([sequence], x[None]) for x in made.rows("dense", 50)]
    state = decoder.sequences[sequence][0]
    assert not state.closed and state.tokens == 200 == len(state.k_codes)
    assert steps[-1].fetches[0][0].v_int8.all()
    c, last = made.model.config, steps[-1]
    q = last.qkv[0].astype(np.int16).reshape(-1, c.head_dim)[: decoder.shared, None]
    out, _ = attend(state, q, shift=decoder.score_shift(0))
    got = last.attention[0].reshape(-1, c.head_dim)[: decoder.shared]
    np.testing.assert_array_equal(got, half_up(out[:, 0], decoder.out_shift(0)))
    with pytest.raises(ValueError, match="heads of a dense cache must have no compressed groups"):
        decoder.open(made.heads("compressed", 192))


def test_positions_may_be_others_than_counts(made):
    decoder, x = made.decoder(), made.rows("positions", 1)
    heads = made.heads("positions", 70)
    first, second, third = (decoder.open(heads) for _ in range(3))
    usual, same, other = (
        decoder.step([i], x, positions).qkv
        for i, positions in ((first, None), (second, np.array([70])), (third, np.array([7])))
    )
    assert (usual == same).all() and (usual != other).any()


def test_passes_of_their_own_lose_little(made):
    """V is the same; what is turned or multiplied in a pass of its own has been rounded to codes before."""
    fused, unfused = made.decoder(), made.decoder(fused=False)
    heads = made.heads("unfused", 100)
    x = made.rows("unfused", 3)
    one, other = ([decoder.open(heads) for _ in range(3)] for decoder in (fused, unfused))
    want, got = fused.step(one, x), unfused.step(other, x)
    v = slice(-fused.widths[2], None)
    assert (want.qkv[:, v] == got.qkv[:, v]).all() and (want.qkv != got.qkv).any()
    for name in ("qkv", "attention", "after", "middle", "out"):
        exact = getattr(want, name).astype(float)
        difference = np.sqrt(np.square(getattr(got, name) - exact).sum() / np.square(exact).sum())
        assert difference < 0.02, (name, difference)


def test_identity_is_one():
    projection = identity_projection(5)
    assert (projection.weights == np.eye(5)).all()
    assert (projection.columns.scale * 2.0**-projection.columns.shift == 1).all() and not projection.columns.bias.any()


def test_blocks_of_swiglu_fill_lines():
    assert [swiglu_block(ffn) for ffn in (48, 1536, 11008)] == [32, 64, 64]
    with pytest.raises(ValueError, match="ffn must be a multiple of 16, not 40"):
        swiglu_block(40)


def test_rejects_unknown_caches(made):
    with pytest.raises(ValueError, match=re.escape("kv must be one of dense, dsq, dsq+hcap, not 'fp16'")):
        made.decoder(kv="fp16")
    assert made.decoder(kv="dsq").settings.prune is False
    assert made.decoder().settings == KvoSettings(salient_tokens=8, delta_bits=4)
