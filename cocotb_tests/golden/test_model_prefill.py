"""Prefills: equal to the forward pass, kept on disk, resumed after an interruption, refused with one sentence."""

import json
import threading

import numpy as np
import pytest

from cocotb_tests.golden.gguf_variants import Shape, write_gguf
from golden.errors import UserError
from golden.model import KvCache, Model, load_model, load_tokenizer, prefill, prefill_cache, texts

CONTEXT = 128
LAYERS = 5


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("KVO_CACHE", str(tmp_path / "cache"))
    return load_model(write_gguf(tmp_path / "m.gguf", Shape(layers=LAYERS)))


def folders(tmp_path):
    """Names of the folders in the cache, without their key."""
    return sorted(path.suffix for path in (tmp_path / "cache" / "prefill").iterdir() if path.is_dir())


def count_layers(model, monkeypatch, fail_at=None):
    """List that receives each layer that is computed; an interrupt comes up in layer `fail_at`."""
    layers, finish = [], model.finish

    def counted(layer, x, attention):
        if layer == fail_at:
            raise KeyboardInterrupt
        layers.append(layer)
        return finish(layer, x, attention)

    monkeypatch.setattr(model, "finish", counted)
    return layers


def test_equals_the_forward_pass(model):
    p = prefill(model, "code", CONTEXT, progress=False)
    cache = KvCache(model.config)
    hidden = model.hidden(p.tokens[:-1], cache)
    assert p.tokens.dtype == np.int32 and len(p.tokens) == CONTEXT + 1
    assert p.tokens.tolist() == load_tokenizer(model.path).encode(texts.read("code"))[: CONTEXT + 1]
    assert p.hidden.dtype == np.float32 and np.array_equal(p.hidden, hidden)
    assert p.k.dtype == np.float16 and np.array_equal(p.k, cache.k[:, :, :CONTEXT].astype(np.float16))
    assert p.v.dtype == np.float16 and np.array_equal(p.v, cache.v[:, :, :CONTEXT].astype(np.float16))


def test_block_mass_equals_summed_probabilities(model):
    p = prefill(model, "code", CONTEXT, progress=False)
    c, x, positions = model.config, model.embed(p.tokens[:-1]), np.arange(CONTEXT)
    q, k, _ = model.qkv(0, x, positions)
    expected = np.zeros((c.kv_heads, CONTEXT // 64, CONTEXT))
    for head in range(c.q_heads):
        kv_head = head // (c.q_heads // c.kv_heads)
        for query in range(CONTEXT):
            weights = np.exp(k[kv_head, : query + 1] @ q[head, query] / np.sqrt(c.head_dim))
            expected[kv_head, query // 64, : query + 1] += weights / weights.sum()
    assert p.block_mass.shape == (LAYERS, *expected.shape)
    assert np.allclose(p.block_mass[0], expected, rtol=1e-3, atol=1e-6)
    assert np.allclose(p.block_mass.astype(np.float64).sum((2, 3)), CONTEXT * c.q_heads / c.kv_heads, rtol=1e-3)


def test_is_computed_once(model, monkeypatch, tmp_path):
    first = prefill(model, "code", CONTEXT, progress=False)
    layers = count_layers(model, monkeypatch)
    again = prefill(model, "code", CONTEXT, progress=False)
    assert layers == [] and folders(tmp_path) == [""]
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in vars(first))


def test_key_holds_model_text_and_context(model, monkeypatch, tmp_path):
    prefill(model, "code", CONTEXT, progress=False)
    layers = count_layers(model, monkeypatch)
    prefill(model, "code", CONTEXT + 64, progress=False)
    prefill(model, "prose", CONTEXT, progress=False)
    other = load_model(write_gguf(tmp_path / "other.gguf", Shape(layers=LAYERS, ffn=32)))
    other_layers = count_layers(other, monkeypatch)
    prefill(other, "code", CONTEXT, progress=False)
    assert layers == [*range(LAYERS)] * 2 and other_layers == [*range(LAYERS)]


@pytest.mark.parametrize("fail_at", [0, 1, 3, LAYERS - 1])
def test_goes_on_after_an_interruption(model, monkeypatch, tmp_path, fail_at):
    with monkeypatch.context() as patch:
        before = count_layers(model, patch, fail_at)
        with pytest.raises(KeyboardInterrupt):
            prefill(model, "code", CONTEXT, progress=False)
    assert before == [*range(fail_at)] and folders(tmp_path) == [".partial"]
    for path in (tmp_path / "cache" / "prefill").glob("*.partial/k.npy"):  # half a layer more, as after a power cut
        path.write_bytes(path.read_bytes() + b"half a layer")
    after = count_layers(model, monkeypatch)
    resumed = prefill(model, "code", CONTEXT, progress=False)
    assert after == [*range(fail_at, LAYERS)] and folders(tmp_path) == [""]
    monkeypatch.setenv("KVO_CACHE", str(tmp_path / "second"))
    whole = prefill(model, "code", CONTEXT, progress=False)
    assert all(np.array_equal(getattr(resumed, name), getattr(whole, name)) for name in vars(whole))


def test_a_second_process_waits_for_the_first(model, monkeypatch, capsys):
    entered, leave, finish = threading.Event(), threading.Event(), Model.finish

    def slow(self, layer, x, attention):
        entered.set()
        assert leave.wait(20)
        return finish(self, layer, x, attention)

    monkeypatch.setattr(Model, "finish", slow)
    results = []
    work = [threading.Thread(target=lambda: results.append(prefill(model, "code", CONTEXT, False))) for _ in range(2)]
    work[0].start()
    assert entered.wait(20)
    work[1].start()
    while work[1].is_alive() and "waiting for another process" not in capsys.readouterr().err:
        work[1].join(0.05)
    leave.set()
    for thread in work:
        thread.join(20)
    assert len(results) == 2 and np.array_equal(results[0].k, results[1].k)


def test_accepts_a_file_and_token_ids(model, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("th" * 200, encoding="utf-8")
    from_file = prefill(model, path, CONTEXT, progress=False)
    from_ids = prefill(model, [256] * 129, CONTEXT, progress=False)
    assert np.array_equal(from_file.tokens, from_ids.tokens) and np.array_equal(from_file.k, from_ids.k)
    about = [json.loads(file.read_text()) for file in (tmp_path / "cache" / "prefill").glob("*/about.json")]
    assert about == [{"format": "kvo prefill 1", "model": "variant", "text": str(path), "context": CONTEXT}]


def test_shows_progress(model, capsys):
    prefill(model, "tech", CONTEXT)
    assert f"{LAYERS}/{LAYERS}" in capsys.readouterr().err


@pytest.mark.parametrize("context", [0, 32, 100, 576])
def test_rejects_contexts_the_model_cannot_hold(model, context):
    sentence = f"^a context of {context} tokens is not possible: a multiple of 64 up to the model's 512 is needed$"
    with pytest.raises(UserError, match=sentence):
        prefill(model, "code", context)


def test_rejects_a_text_that_is_too_short(model, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("the " * 10, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        prefill(model, path, CONTEXT)
    assert str(caught.value) == f"text '{path}' has 20 tokens, 129 are needed: give a longer text or less context"


def test_rejects_a_cache_folder_that_cannot_be_written(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError) as caught:
        prefill(model, "code", CONTEXT)
    folder = tmp_path / "file"
    assert str(caught.value) == f"cannot use the cache folder {folder}: Not a directory; KVO_CACHE names another one"


def test_cache_folder_follows_the_user(monkeypatch):
    monkeypatch.delenv("KVO_CACHE", raising=False)
    assert prefill_cache.cache_folder().name == "kvo"
