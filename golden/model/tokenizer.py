"""Tokenizer of a GGUF file, built with PyPI `tokenizers`: byte-level BPE, or SentencePiece's BPE."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from golden.errors import UserError
from golden.model.gguf_file import GgufFile, open_gguf

__all__ = ["ModelTokenizer", "load_tokenizer"]

CONTROL_TOKEN, USER_TOKEN = 3, 4
"""Values of `tokenizer.ggml.token_type` that are matched as a whole, before the text is split."""

LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
"""GPT-2's mapping of bytes to printable characters, alone and behind its split into words."""

PRE_TOKENIZERS = {
    "smollm": (pre_tokenizers.Digits(individual_digits=True), WORDS_TO_BYTES),
    "gpt-2": (WORDS_TO_BYTES,),
    "llama-bpe": (pre_tokenizers.Split(Regex(LLAMA_3_WORDS), "isolated"), BYTES),
}
"""Steps that split a text before the merges, by the `tokenizer.ggml.pre` that names them."""


class ModelTokenizer:
    """Text to token ids and back.

    Special tokens written out in the text ("<|im_start|>") become their id. `bos` and `eos` are the ids of the
    tokens that begin and end a text, None when the model has none; `stop` holds the ids at which generation ends.
    """

    def __init__(self, file: GgufFile) -> None:
        metadata = file.metadata
        self._tokenizer = _build(file)
        pre = metadata.get("tokenizer.ggml.pre", "default")
        sentence_piece = metadata["tokenizer.ggml.model"] == "llama"
        self.kind = "SentencePiece" if sentence_piece else f"byte-level BPE, pre-tokenizer {pre}"
        self.vocab: int = len(file.require("tokenizer.ggml.tokens"))
        self.bos: int | None = metadata.get("tokenizer.ggml.bos_token_id")
        self.eos: int | None = metadata.get("tokenizer.ggml.eos_token_id")
        ends = {self.eos, metadata.get("tokenizer.ggml.eot_token_id")}
        self.stop = frozenset(token for token in ends if token is not None)
        self._bos_first = bool(metadata.get("tokenizer.ggml.add_bos_token", sentence_piece or pre == "llama-bpe"))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, after the `bos` token when the file asks for it."""
        ids = self.encode_plain(text)
        return [self.bos, *ids] if self._bos_first and self.bos is not None else ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` alone."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special tokens written out; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)
        return text


def load_tokenizer(path: Path | str | None = None) -> ModelTokenizer:
    """Tokenizer of the GGUF file at `path` (None: the default model); `UserError` when its kind is not supported."""
    return ModelTokenizer(open_gguf(path))


def _build(file: GgufFile) -> Tokenizer:
    """The file's tokenizer, special tokens included."""
    kind = file.require("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UserError(
            f"{file.path} has a tokenizer of kind {kind!r}; supported are 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece)"
        )
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    tokenizer = _byte_level(file, tokens) if kind == "gpt2" else _sentence_piece(file, tokens)
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    special = [token for token, type_ in zip(tokens, types, strict=False) if type_ in (CONTROL_TOKEN, USER_TOKEN)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """Byte-level BPE behind the split that the file's `tokenizer.ggml.pre` names."""
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise UserError(
            f"{file.path} has a tokenizer with pre-tokenizer {pre!r}; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(PRE_TOKENIZERS[pre]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """SentencePiece's BPE: neighbours whose union is a token merge, the highest score first; the rest becomes bytes."""
    scores: list[float] = file.require("tokenizer.ggml.scores")
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [
        (-scores[number], (token[:cut], token[cut:]))
        for number, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    merges = [pair for _, pair in sorted(pairs, key=lambda item: item[0])]
    unknown = tokens[file.metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer
