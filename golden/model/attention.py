"""Causal attention in float32, in blocks of queries, with the attention mass that each block gives to each token."""

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_TOKENS", "causal_attention"]

Float = npt.NDArray[np.float32]

BLOCK_TOKENS = 64


def causal_attention(q: Float, k: Float, v: Float, *, mass: Float | None = None) -> Float:
    """Softmax(q k' / sqrt(head_dim)) v, where a query sees its own token and the ones before it.

    q [q_heads, queries, head_dim], k and v [kv_heads, tokens, head_dim]; the queries are those of the last `queries`
    tokens. Query heads h * q_heads / kv_heads and following share KV head h. Returns [q_heads, queries, head_dim].
    mass [kv_heads, ceil(queries / 64), tokens], when given, is overwritten with the probability that each token
    receives from the queries of a block, summed over these and over the query heads of the KV head.
    """
    q_heads, queries, head_dim = q.shape
    kv_heads, tokens, _ = k.shape
    shared = q_heads // kv_heads
    start = tokens - queries
    scale = np.float32(head_dim**-0.5)
    future = np.triu(np.full((BLOCK_TOKENS, BLOCK_TOKENS), -np.inf, np.float32), 1)
    buffer = np.empty(shared * min(BLOCK_TOKENS, queries) * tokens, np.float32)
    output = np.empty((q_heads, queries, head_dim), np.float32)
    if mass is not None:
        mass.fill(0)
    for kv_head in range(kv_heads):
        heads = slice(kv_head * shared, (kv_head + 1) * shared)
        for block, first in enumerate(range(0, queries, BLOCK_TOKENS)):
            last = min(first + BLOCK_TOKENS, queries)
            rows, seen = shared * (last - first), start + last
            scores = buffer[: rows * seen].reshape(rows, seen)
            np.matmul(q[heads, first:last].reshape(rows, head_dim) * scale, k[kv_head, :seen].T, out=scores)
            scores.reshape(shared, last - first, seen)[:, :, start + first :] += future[: last - first, : last - first]
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            share = 1 / scores.sum(axis=1)
            if mass is not None:
                np.matmul(share, scores, out=mass[kv_head, block, :seen])
            values = scores @ v[kv_head, :seen]
            values *= share[:, None]
            output[heads, first:last] = values.reshape(shared, last - first, head_dim)
    return output
