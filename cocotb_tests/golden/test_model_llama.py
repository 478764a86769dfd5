"""The model against llama.cpp's recorded results, and against a loop-by-loop computation on small random models.

`data/llama_cpp.npz` was written by `python -m golden.model.crosscheck --fixture`.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from cocotb_tests.golden.gguf_variants import Shape, write_gguf
from golden.model import KvCache, Model, load_model, texts
from golden.model.crosscheck import LOGIT_TOLERANCE

TEXTS = [*texts.names(), texts.CALIBRATION]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "data" / "llama_cpp.npz") as file:
        return dict(file)


@pytest.mark.parametrize("text", TEXTS)
def test_logits_equal_llama_cpp(model, reference, text):
    ids, best = reference[f"{text}_ids"], reference[f"{text}_top_ids"]
    logits = model.logits(model.hidden(ids)[-len(best) :])
    largest = reference[f"{text}_max_logit"]
    difference = np.abs(np.take_along_axis(logits, best, 1) - reference[f"{text}_top_logits"])
    assert difference.max() <= LOGIT_TOLERANCE * largest.max()
    assert np.abs(np.abs(logits).max(1) - largest).max() <= LOGIT_TOLERANCE * largest.max()


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_tokens_equal_llama_cpp(model, reference, text):
    ids, greedy = reference[f"{text}_ids"], reference[f"{text}_greedy"]
    prompt = ids[: len(reference[f"{text}_top_ids"])]
    logits = model.forward(np.concatenate([prompt, greedy]))
    assert np.array_equal(logits[len(prompt) - 1 : -1].argmax(1), greedy)
    assert model.generate(prompt, 8) == greedy[:8].tolist()


def test_decoding_with_a_cache_equals_the_full_forward(model, reference):
    ids = reference["prose_ids"][:96]
    full = model.forward(ids)
    cache = KvCache(model.config, capacity=4)
    cuts = [0, 1, 2, 40, 41, 96]
    parts = [model.forward(ids[a:b], cache) for a, b in itertools.pairwise(cuts)]
    assert cache.length == len(ids)
    assert np.abs(np.concatenate(parts) - full).max() <= LOGIT_TOLERANCE * np.abs(full).max()


def naive_logits(model: Model, tokens: list[int], frequency_factors: np.ndarray | None = None) -> np.ndarray:
    """Logits in float64, token by token and head by head, from the tensors of the file."""
    c, tensors = model.config, {name: data.astype(np.float64) for name, (data, _) in model.file.tensors.items()}
    factors = np.ones(c.head_dim // 2) if frequency_factors is None else frequency_factors

    def norm(row, gain):
        return row / np.sqrt((row * row).mean() + c.norm_eps) * tensors[gain]

    def rotate(head, position):
        turned = np.empty_like(head)
        for i in range(c.head_dim // 2):
            angle = position / c.rope_scale * c.rope_base ** (-2 * i / c.head_dim) / factors[i]
            a, b = head[2 * i], head[2 * i + 1]
            turned[2 * i] = a * np.cos(angle) - b * np.sin(angle)
            turned[2 * i + 1] = a * np.sin(angle) + b * np.cos(angle)
        return turned

    rows = [tensors["token_embd.weight"][token] for token in tokens]
    for layer in range(c.layers):
        w = {n.split(".")[2]: t for n, t in tensors.items() if n.startswith(f"blk.{layer}.")}
        keys, values, after = [], [], []
        for position, row in enumerate(rows):
            h = norm(row, f"blk.{layer}.attn_norm.weight")
            q, k, v = (
                np.split(w[name] @ h, n)
                for name, n in zip(("attn_q", "attn_k", "attn_v"), (c.q_heads, c.kv_heads, c.kv_heads), strict=True)
            )
            keys.append([rotate(head, position) for head in k])
            values.append(v)
            heads = []
            for number, head in enumerate(q):
                kv_head = number // (c.q_heads // c.kv_heads)
                turned = rotate(head, position)
                weights = np.exp([turned @ key[kv_head] / np.sqrt(c.head_dim) for key in keys])
                heads.append(sum(p * value[kv_head] for p, value in zip(weights / weights.sum(), values, strict=True)))
            row = row + w["attn_output"] @ np.concatenate(heads)
            h = norm(row, f"blk.{layer}.ffn_norm.weight")
            gate = w["ffn_gate"] @ h
            after.append(row + w["ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["ffn_up"] @ h)))
        rows = after
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    return np.array([output @ norm(row, "output_norm.weight") for row in rows])


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(tied=False, q_heads=6, kv_heads=2, head_dim=4),
        Shape(tied=False, q_heads=3, kv_heads=3, head_dim=10, hidden=17, ffn=33, layers=3),
        Shape(q_heads=5, kv_heads=1, head_dim=2, layers=1),
    ],
    ids=str,
)
def test_random_models_equal_the_naive_loops(tmp_path, shape):
    model = load_model(write_gguf(tmp_path / "m.gguf", shape))
    tokens = np.random.default_rng(1).integers(0, model.config.vocab, 70).tolist()
    expected = naive_logits(model, tokens)
    assert np.abs(model.forward(tokens) - expected).max() < 1e-5 * np.abs(expected).max()


def test_rotary_variants_equal_the_naive_loops(tmp_path):
    changes = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", changes=changes, add={"rope_freqs.weight": (4,)})
    model = load_model(path)
    tokens = list(range(60, 100))
    expected = naive_logits(model, tokens, model.file.tensors["rope_freqs.weight"][0])
    plain = load_model(write_gguf(tmp_path / "plain.gguf")).forward(tokens)
    assert np.abs(model.forward(tokens) - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(plain - expected).max() > 1e-2 * np.abs(expected).max()


def test_generate_ends_with_a_stop_token(tmp_path):
    model = load_model(write_gguf(tmp_path / "m.gguf"))
    made = model.generate([1, 2, 3], 6)
    assert len(made) == 6
    cut = model.generate([1, 2, 3], 6, stop=frozenset(made[2:3]))
    assert cut == made[: made.index(made[2]) + 1]
    with pytest.raises(ValueError, match=r"^tokens must hold at least one token id, not \[\]$"):
        model.generate([], 1)


def test_rejects_token_ids_outside_the_vocabulary(tmp_path):
    model = load_model(write_gguf(tmp_path / "m.gguf"))
    with pytest.raises(ValueError, match=r"^token ids must lie within 0\.\.258, not 3\.\.259$"):
        model.embed([3, 259])
