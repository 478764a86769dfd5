"""Small random GGUF files of any shape, right and wrong ones, for the tests of golden.model."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
"""Bytes that byte-level BPE shows as themselves; the others take the characters from 256 on, in order."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What varies between the files."""

    layers: int = 2
    hidden: int = 24
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 40
    tied: bool = True


def vocabulary() -> list[str]:
    """The 256 bytes, two merged tokens and one special token."""
    spare = iter(range(256, 512))
    return [*(chr(byte) if byte in BYTES else chr(next(spare)) for byte in range(256)), "th", "the", "<|end|>"]


def write_gguf(
    path: Path,
    shape: Shape | None = None,
    *,
    architecture: str = "llama",
    changes: dict[str, Any] | None = None,
    leave_out: Collection[str] = (),
    add: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write a model of random weights to `path`.

    changes: metadata key -> value (str, int, float or list of int) set beside or in place of the usual ones.
    leave_out: tensors and metadata keys not written. add: further tensors and their shapes.
    """
    s = shape or Shape()
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    tokens = vocabulary()
    metadata = {
        "general.name": "variant",
        f"{architecture}.block_count": s.layers,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": s.hidden,
        f"{architecture}.feed_forward_length": s.ffn,
        f"{architecture}.attention.head_count": s.q_heads,
        f"{architecture}.attention.head_count_kv": s.kv_heads,
        f"{architecture}.attention.key_length": s.head_dim,
        f"{architecture}.attention.value_length": s.head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    } | (changes or {})
    kinds = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
    for key, value in metadata.items():
        if key in leave_out:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            writer.add_key_value(key, value, kinds[type(value)])
    shapes = {"token_embd": (len(tokens), s.hidden), "output_norm": (s.hidden,)}
    shapes |= {} if s.tied else {"output": (len(tokens), s.hidden)}
    for layer in range(s.layers):
        shapes |= {
            f"blk.{layer}.attn_norm": (s.hidden,),
            f"blk.{layer}.attn_q": (s.q_heads * s.head_dim, s.hidden),
            f"blk.{layer}.attn_k": (s.kv_heads * s.head_dim, s.hidden),
            f"blk.{layer}.attn_v": (s.kv_heads * s.head_dim, s.hidden),
            f"blk.{layer}.attn_output": (s.hidden, s.q_heads * s.head_dim),
            f"blk.{layer}.ffn_norm": (s.hidden,),
            f"blk.{layer}.ffn_gate": (s.ffn, s.hidden),
            f"blk.{layer}.ffn_up": (s.ffn, s.hidden),
            f"blk.{layer}.ffn_down": (s.hidden, s.ffn),
        }
    tensors = {f"{name}.weight": size for name, size in shapes.items()} | (add or {})
    for name, size in tensors.items():
        if name not in leave_out:
            values = (
                random.normal(size=size) * 1.5 / np.sqrt(size[-1]) if len(size) > 1 else random.uniform(0.5, 2, size)
            )
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
