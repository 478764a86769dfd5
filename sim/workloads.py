"""Real attention work for simulations: heads of the embedded model in the middle of a text, of any length."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from golden.calibrate import calibration_for
from golden.errors import UserError
from golden.heads import Head, build_head, model_heads, query_rows
from golden.model import Model, Prefill, load_model, prefill, texts
from golden.model.attention import BLOCK_TOKENS
from golden.settings import default_settings
from rtl.config import AcceleratorConfig

__all__ = ["attention_heads", "check_context", "head_named", "joined_rows", "joined_votes"]


@cache
def _model() -> Model:
    return load_model()


def check_context(context: int) -> None:
    """`UserError` when no workload has that many tokens."""
    most = _model().config.context_length * (len(texts.names()) + 1)
    if not 2 <= context <= most:
        raise UserError(f"a context must be from 2 to {most} tokens, not {context}")


def head_named(text: str) -> tuple[int, int]:
    """Layer and KV head of the embedded model from ``14.1``; `UserError` when it has none such."""
    c = _model().config
    try:
        layer, kv_head = (int(part) for part in text.split("."))
    except ValueError:
        raise UserError(f"a head must be LAYER.KV_HEAD, such as 14.1, not '{text}'") from None
    if not (0 <= layer < c.layers and 0 <= kv_head < c.kv_heads):
        raise UserError(f"a head must lie within 0.0 and {c.layers - 1}.{c.kv_heads - 1}, not {text}")
    return layer, kv_head


def attention_heads(
    config: AcceleratorConfig,
    heads: Sequence[tuple[int, int]],
    *,
    context: int,
    count: int,
    text: str = "legal",
    progress: bool = False,
) -> Iterator[Head]:
    """Heads (layer, kv_head) after ``context`` tokens with the queries of the newest ``count``, in the core's layout.

    A context beyond the model's own is made of the caches of several texts, one behind the other: the queries are those
    of the last text, the traffic that of a long cache.
    """
    model = _model()
    c = model.config
    q_heads = c.q_heads // c.kv_heads
    if (config.dsq.head_dim, config.mha.q_heads) != (c.head_dim, q_heads):
        raise UserError(f"the core has other heads than {c.name}: head_dim {c.head_dim}, {q_heads} query heads")
    settings = replace(
        default_settings(),
        bus_bits=config.dsq.bus_bits,
        delta_bits=config.dsq.delta_bits,
        tile_groups=config.mha.tile_groups,
    )
    calibration = calibration_for(model, settings, progress=progress)
    longest = c.context_length
    if context <= longest:
        sample = prefill(model, text, -(-context // BLOCK_TOKENS) * BLOCK_TOKENS, progress=progress)
        yield from model_heads(model, sample, calibration, settings, heads, context=context, count=count)
        return
    names = [texts.CALIBRATION, *(name for name in texts.names() if name != text), text]
    parts = -(-context // longest)
    samples = [prefill(model, name, longest, progress=progress) for name in names[len(names) - parts :]]
    queries: dict[int, Any] = dict(enumerate(query_rows(model, samples[-1], longest, count)))
    shared = c.q_heads // c.kv_heads
    skipped = sum(sample.k.shape[2] for sample in samples) - context
    prompt = (context - 1) // settings.group_tokens * settings.group_tokens
    for layer, h in heads:
        k, v = (joined_rows([getattr(s, name) for s in samples], layer, h)[-context:] for name in "kv")
        yield build_head(
            calibration,
            settings,
            layer,
            h,
            k=k,
            v=v,
            votes=joined_votes(samples, layer, h, skipped, prompt),
            q=queries[layer][h * shared : (h + 1) * shared],
        )


def joined_rows(parts: Sequence[Any], layer: int, kv_head: int) -> Any:
    """K or V of several prefills, one behind the other, ``[tokens, head_dim]``."""
    return np.concatenate([np.asarray(part[layer, kv_head], np.float32) for part in parts])


def joined_votes(samples: Sequence[Prefill], layer: int, kv_head: int, skipped: int, prompt: int) -> Any:
    """Attention masses ``[blocks, prompt]`` of ``prompt`` tokens behind the first ``skipped``, from each block of 64
    queries; each text's tokens are seen by its own queries alone."""
    whole = sum(sample.k.shape[2] for sample in samples)
    votes = np.zeros((whole // BLOCK_TOKENS, whole), np.float32)
    first = 0
    for sample in samples:
        size = sample.k.shape[2]
        rows = slice(first // BLOCK_TOKENS, (first + size) // BLOCK_TOKENS)
        votes[rows, first : first + size] = sample.block_mass[layer, kv_head]
        first += size
    return votes[skipped // BLOCK_TOKENS :, skipped:][: prompt // BLOCK_TOKENS, :prompt]
