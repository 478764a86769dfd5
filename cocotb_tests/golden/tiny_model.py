"""A random Llama-type model of a few thousand weights, as a GGUF file, for tests of the evaluation."""

from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, Q_HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 2, 32, 4, 2, 16, 48, 512


def byte_symbols() -> list[str]:
    """The printable character of each byte in byte-level BPE."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def write_tiny_model(path: Path, seed: int = 1) -> Path:
    """Write the model; its tokens are the 256 bytes and "th"."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(Q_HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_context_length(CONTEXT)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_symbols(), "th"])
    writer.add_token_merges(["t h"])

    def add(name: str, *shape: int, gain: float = 1.0) -> None:
        weights = random.normal(size=shape) * gain / np.sqrt(shape[-1])
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    add("token_embd", 257, HIDDEN, gain=4)
    add_norm("output_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add_norm(f"{block}.ffn_norm")
        add(f"{block}.attn_q", Q_HEADS * HEAD_DIM, HIDDEN, gain=1.5)
        add(f"{block}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN, gain=1.5)
        add(f"{block}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
        add(f"{block}.attn_output", HIDDEN, Q_HEADS * HEAD_DIM)
        add(f"{block}.ffn_gate", FFN, HIDDEN)
        add(f"{block}.ffn_up", FFN, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
