"""Tokenizer of a GGUF file: byte-level BPE built with PyPI `tokenizers`."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from golden.errors import UserError
from golden.model.gguf_file import GgufFile, open_gguf

__all__ = ["ModelTokenizer", "load_tokenizer"]

CONTROL_TOKEN, USER_TOKEN = 3, 4
"""Values of `tokenizer.ggml.token_type` that are matched as a whole, before the text is split."""

LLAMA_3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class ModelTokenizer:
    """Text to token ids and back.

    Special tokens written out in the text ("<|im_start|>") become their id. `bos` and `eos` are the ids of the
    tokens that begin and end a text, None when the model has none; `stop` holds the ids at which generation ends.
    """

    def __init__(self, file: GgufFile) -> None:
        metadata = file.metadata
        self.pre: str = metadata.get("tokenizer.ggml.pre", "default")
        self._tokenizer = _build(file, self.pre)
        self.vocab: int = len(file.require("tokenizer.ggml.tokens"))
        self.bos: int | None = metadata.get("tokenizer.ggml.bos_token_id")
        self.eos: int | None = metadata.get("tokenizer.ggml.eos_token_id")
        ends = {self.eos, metadata.get("tokenizer.ggml.eot_token_id")}
        self.stop = frozenset(token for token in ends if token is not None)
        self._bos_first = bool(metadata.get("tokenizer.ggml.add_bos_token", self.pre == "llama-bpe"))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, after the `bos` token when the file asks for it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos, *ids] if self._bos_first and self.bos is not None else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special tokens written out; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)
        return text


def load_tokenizer(path: Path | str | None = None) -> ModelTokenizer:
    """Tokenizer of the GGUF file at `path` (None: the default model); `UserError` when its kind is not supported."""
    return ModelTokenizer(open_gguf(path))


def _build(file: GgufFile, pre: str) -> Tokenizer:
    """The file's BPE behind the pre-tokenizer that its `tokenizer.ggml.pre` names."""
    kind = file.require("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UserError(f"{file.path} has a tokenizer of kind {kind!r}; supported is 'gpt2' (byte-level BPE)")
    splits = {
        "smollm": (pre_tokenizers.Digits(individual_digits=True), _byte_level(split=True)),
        "gpt-2": (_byte_level(split=True),),
        "llama-bpe": (pre_tokenizers.Split(Regex(LLAMA_3_WORDS), "isolated"), _byte_level(split=False)),
    }
    if pre not in splits:
        raise UserError(f"{file.path} has a tokenizer with pre-tokenizer {pre!r}; supported are {', '.join(splits)}")
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits[pre]))
    tokenizer.decoder = decoders.ByteLevel()
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    special = [token for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL_TOKEN, USER_TOKEN)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _byte_level(*, split: bool) -> pre_tokenizers.ByteLevel:
    """GPT-2's mapping of bytes to printable characters, with or without its split into words."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
