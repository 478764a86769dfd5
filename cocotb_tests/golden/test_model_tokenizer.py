"""Tokenizers against llama.cpp's recorded ids, and their way back to text."""

from pathlib import Path

import numpy as np
import pytest

from cocotb_tests.golden.gguf_variants import vocabulary, write_gguf
from golden.model import load_tokenizer, texts
from golden.model.crosscheck import PROBES, ids_crc32

TEXTS = [*texts.names(), texts.CALIBRATION]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.fixture(scope="module")
def reference():
    with np.load(Path(__file__).parent / "data" / "llama_cpp.npz") as file:
        return dict(file)


def test_known_ids(tokenizer):
    assert tokenizer.encode("Hello, world! 42") == [19556, 28, 905, 17, 216, 36, 34]
    assert tokenizer.encode("<|im_start|>a<|im_end|>") == [1, 81, 2]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.stop) == (1, 2, {2})


def test_probe_ids_equal_llama_cpp(tokenizer, reference):
    expected = np.split(reference["probes_ids"], np.cumsum(reference["probes_lengths"])[:-1])
    assert [tokenizer.encode(probe) for probe in PROBES] == [ids.tolist() for ids in expected]


@pytest.mark.parametrize("text", TEXTS)
def test_text_ids_equal_llama_cpp(tokenizer, reference, text):
    ids = tokenizer.encode(texts.read(text))
    assert (len(ids), ids_crc32(ids)) == (reference[f"{text}_count"], reference[f"{text}_crc32"])


def test_round_trip(tokenizer):
    for text in [*PROBES, *map(texts.read, TEXTS)]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decodes_half_a_character(tokenizer):
    ids = tokenizer.encode("한")
    assert len(ids) > 1 and "�" in tokenizer.decode(ids[:1])


@pytest.mark.parametrize(("pre", "parts"), [("smollm", ["1", "1"]), ("gpt-2", ["11"]), ("llama-bpe", ["11"])])
def test_digits_are_split_as_the_file_asks(tmp_path, pre, parts):
    tokens = [*vocabulary(), "11"]
    changes = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": ["1 1"],
    }
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", changes=changes))
    assert tokenizer.encode("11") == [tokens.index(part) for part in parts]


def test_begins_with_bos_when_the_file_asks(tmp_path):
    bos = {"tokenizer.ggml.bos_token_id": 258}
    asked = write_gguf(tmp_path / "a.gguf", changes=bos | {"tokenizer.ggml.add_bos_token": True})
    silent = write_gguf(tmp_path / "b.gguf", changes=bos)
    assert load_tokenizer(asked).encode("the") == [258, 257]
    assert load_tokenizer(asked).encode_plain("the") == [257]
    assert load_tokenizer(silent).encode("the") == [257]


def sentence_piece(path, **changes):
    """A file with a SentencePiece vocabulary of letters, bytes and a few pieces, and the ids of its pieces."""
    pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -3.0, -1.0, -4.0, -5.0, -2.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return load_tokenizer(write_gguf(path, changes=metadata | changes)), {t: i for i, t in enumerate(tokens)}


def test_sentence_piece_merges_by_score(tmp_path):
    tokenizer, ids = sentence_piece(tmp_path / "m.gguf")
    assert tokenizer.encode("abc") == [ids["<s>"], ids["▁"], ids["abc"]]
    assert tokenizer.encode_plain("ab a") == [ids["▁ab"], ids["▁a"]]
    assert tokenizer.encode_plain("cé") == [ids["▁"], ids["c"], ids["<0xC3>"], ids["<0xA9>"]]
    assert tokenizer.encode_plain("</s>") == [ids["</s>"]]
    for text in ["abc", " ab  ca", "cé d"]:
        assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_sentence_piece_without_a_space_in_front(tmp_path):
    tokenizer, ids = sentence_piece(tmp_path / "m.gguf", **{"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode_plain("abc ab") == [ids["abc"], ids["▁ab"]]
    assert tokenizer.decode(tokenizer.encode_plain(" abc ab")) == " abc ab"
