"""Peers that evict tokens for good: H2O and SnapKV. What they keep is FP16."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from golden.account import FP16_BITS, Account
from golden.model import ModelConfig
from golden.model.attention import causal_attention
from golden.peers.protocol import BLOCK_TOKENS, Float
from golden.peers.rows import Rows, to_fp16

__all__ = ["H2o", "SnapKv", "max_pool"]

SCORE_BITS = 16
"""H2O's accumulated score of a token, kept and fetched with it (FP16)."""


def max_pool(x: Float, width: int) -> Float:
    """The maximum over `width` (odd) neighbours along the last axis, fewer at its ends."""
    half = width // 2
    spare = [(0, 0)] * (x.ndim - 1) + [(half, half)]
    padded = np.pad(x, spare, constant_values=-np.inf)
    pooled: Float = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1).max(axis=-1)
    return pooled


def _highest(scores: Float, count: int) -> npt.NDArray[np.intp]:
    """Ascending positions of the `count` highest scores of each row; of equal ones the first."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    return np.sort(order[..., :count], axis=-1)


class _EvictingCache(ABC):
    """Kept tokens of a layer: rows, and the attention they received from the latest block and from all blocks."""

    def __init__(self, geometry: ModelConfig, k: Float, v: Float, block_mass: Float, score_bits: int) -> None:
        self._geometry, self._score_bits = geometry, score_bits
        self._row_bits = geometry.head_dim * FP16_BITS
        self.k, self.v = Rows(to_fp16(k)), Rows(to_fp16(v))
        self.total: Float = block_mass.sum(axis=1)
        self.latest: Float = block_mass[:, -1].copy()
        self.seen = k.shape[1]

    def attend(self, q: Float, k: Float, v: Float, account: Account) -> Float:
        """See `LayerCache`."""
        before, new = self.k.length, k.shape[1]
        if self.seen % BLOCK_TOKENS == 0:
            self.latest[:] = 0
        self.k.append(to_fp16(k))
        self.v.append(to_fp16(v))
        mass = np.empty((self._geometry.kv_heads, 1, before + new), np.float32)
        output = causal_attention(q, self.k.valid, self.v.valid, mass=mass)
        grow = ((0, 0), (0, new))
        self.total, self.latest = np.pad(self.total, grow) + mass[:, 0], np.pad(self.latest, grow) + mass[:, 0]
        tokens, heads = np.arange(before + 1, before + new + 1), self._geometry.kv_heads
        account.fetch(tokens * self._row_bits, 2 * heads)
        account.fetch(tokens * self._score_bits, heads, tokens * self._score_bits)
        self.seen += new
        if self.seen % BLOCK_TOKENS == 0:
            self.evict()
        return output

    def stored(self, account: Account) -> None:
        """See `LayerCache`."""
        tokens = self.k.length * self._geometry.kv_heads
        account.store(tokens * 2 * self._row_bits)
        account.store(tokens * self._score_bits, tokens * self._score_bits)

    @abstractmethod
    def evict(self) -> None:
        """Drop tokens; called at the end of the prompt and of each block."""

    def keep(self, index: npt.NDArray[np.intp]) -> None:
        """Keep the tokens at the ascending positions `index` [kv_heads, count]."""
        self.k.keep(index)
        self.v.keep(index)
        self.total = np.take_along_axis(self.total, index, axis=1)
        self.latest = np.take_along_axis(self.latest, index, axis=1)


class _H2oCache(_EvictingCache):
    """One layer under H2O."""

    def __init__(self, method: "H2o", geometry: ModelConfig, k: Float, v: Float, block_mass: Float) -> None:
        super().__init__(geometry, k, v, block_mass, SCORE_BITS)
        self._method = method
        self.evict()

    def evict(self) -> None:
        """Keep the newest tokens, and of the others those with the most attention so far."""
        recent = min(max(round(self._method.recent * self.seen), BLOCK_TOKENS), self.k.length)
        older = self.k.length - recent
        heavy = min(round(self._method.heavy * self.seen), older)
        newest = np.broadcast_to(np.arange(older, self.k.length), (self._geometry.kv_heads, recent))
        self.keep(np.concatenate([_highest(self.total[:, :older], heavy), newest], axis=1))


@dataclass(frozen=True, kw_only=True)
class H2o:
    """H2O: keeps the tokens with the highest accumulated attention ("heavy hitters") and the newest ones.

    Zhenyu Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    NeurIPS 2023 (arXiv 2306.14048): 20% of the cache, half heavy hitters, half recent. There one token is evicted per
    token; here up to 64 at the end of each block. Query heads of a KV head vote together. Accumulated scores, which
    every step updates, count as metadata.

    heavy, recent: shares of the tokens seen so far; at least one block is recent.
    """

    name: str = "h2o"
    heavy: float = 0.10
    recent: float = 0.10

    def __post_init__(self) -> None:
        if min(self.heavy, self.recent) < 0 or not 0 < self.heavy + self.recent <= 1:
            shares = f"{self.heavy!r}, {self.recent!r}"
            raise ValueError(f"the shares heavy and recent must add up to 1 at most, not {shares}")

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> _H2oCache:
        """See `CacheMethod`."""
        return _H2oCache(self, geometry, k, v, block_mass)


class _SnapKvCache(_EvictingCache):
    """One layer under SnapKV. The newest block is the observation window; what lies before is evicted once."""

    def __init__(self, method: "SnapKv", geometry: ModelConfig, k: Float, v: Float, block_mass: Float) -> None:
        super().__init__(geometry, k, v, block_mass, 0)
        self._method = method
        self._settled = 0
        self.evict()

    def evict(self) -> None:
        """Evict from the tokens between those settled earlier and the observation window."""
        window = self.k.length - BLOCK_TOKENS
        due = window - self._settled
        if due > 0:
            votes = max_pool(self.latest[:, self._settled : window], self._method.pooling)
            chosen = _highest(votes, max(round(self._method.fraction * due), 1)) + self._settled
            heads = (self._geometry.kv_heads, -1)
            settled = np.broadcast_to(np.arange(self._settled), (heads[0], self._settled))
            newest = np.broadcast_to(np.arange(window, self.k.length), (heads[0], BLOCK_TOKENS))
            self.keep(np.concatenate([settled, chosen, newest], axis=1))
            self._settled += chosen.shape[1]


@dataclass(frozen=True, kw_only=True)
class SnapKv:
    """SnapKV: the last queries of the prompt vote, with pooling over neighbours, on which prompt tokens stay.

    Yuhong Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024 (arXiv 2404.14469):
    observation window kept whole, max pooling over 7 tokens, a fixed budget; the share kept here is 8%. There the
    prompt alone is compressed and everything generated stays; here each later block of 64 is cut to the same share
    once the queries of the block after it have voted, so that traffic does not grow with the scored tokens. Query
    heads of a KV head vote together.

    fraction: share of the tokens before the window that stays. pooling: neighbours (odd).
    """

    name: str = "snapkv"
    fraction: float = 0.08
    pooling: int = 7

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction!r}")
        if self.pooling < 1 or self.pooling % 2 == 0:
            raise ValueError(f"pooling must be an odd number of tokens, not {self.pooling!r}")

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> _SnapKvCache:
        """See `CacheMethod`."""
        return _SnapKvCache(self, geometry, k, v, block_mass)
