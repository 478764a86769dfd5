"""A peer that keeps everything and fetches what a query may need: Quest."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from golden.account import FP16_BITS, Account
from golden.model import ModelConfig
from golden.peers.protocol import BLOCK_TOKENS, Float, LayerCache, elements_per_token
from golden.peers.quantized import Fp16
from golden.peers.rows import Rows, to_fp16

__all__ = ["Quest"]


class _QuestCache:
    """One layer under Quest: FP16 rows, and per page the least and greatest key of each channel."""

    def __init__(self, method: "Quest", geometry: ModelConfig, k: Float, v: Float) -> None:
        self._method, self._geometry = method, geometry
        self._shared = geometry.q_heads // geometry.kv_heads
        self._k, self._v = Rows(to_fp16(k)), Rows(to_fp16(v))

    def attend(self, q: Float, k: Float, v: Float, account: Account) -> Float:
        """See `LayerCache`."""
        geometry, before = self._geometry, self._k.length
        closed = before // BLOCK_TOKENS * BLOCK_TOKENS
        self._k.append(to_fp16(k))
        self._v.append(to_fp16(v))
        heads, new, head_dim = q.shape
        scaled = (q * np.float32(head_dim**-0.5)).reshape(geometry.kv_heads, self._shared * new, head_dim)
        chosen = self._choose(scaled, closed, new)
        scores = (scaled @ self._k.valid.transpose(0, 2, 1)).reshape(geometry.kv_heads, self._shared, new, -1)
        hidden = np.repeat(~chosen, self._method.page, axis=2)[:, None]
        np.copyto(scores[..., :closed], -np.inf, where=hidden)
        scores[..., before:] += np.triu(np.full((new, new), -np.inf, np.float32), 1)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        shares = scores.sum(axis=-1).reshape(geometry.kv_heads, -1, 1)
        output: Float = scores.reshape(geometry.kv_heads, self._shared * new, -1) @ self._v.valid / shares
        self._report(chosen, closed, before, account)
        return output.reshape(heads, new, head_dim)

    def stored(self, account: Account) -> None:
        """See `LayerCache`."""
        geometry, tokens = self._geometry, self._k.length
        account.store(tokens * elements_per_token(geometry) * FP16_BITS)
        summaries = tokens // self._method.page * elements_per_token(geometry) * FP16_BITS
        account.store(summaries, summaries)

    def _choose(self, q: Float, closed: int, new: int) -> npt.NDArray[np.bool_]:
        """The pages that each query fetches, [kv_heads, new, pages]; q is scaled, [kv_heads, shared * new, head_dim].

        A query head's bound of a page is the greatest score any key within the page's ranges could have. Heads that
        share a KV head take the page's best bound, each relative to the head's best page.
        """
        geometry, pages = self._geometry, closed // self._method.page
        keys = self._k.valid[:, :closed].reshape(geometry.kv_heads, pages, self._method.page, geometry.head_dim)
        bound = np.maximum(q, 0) @ keys.max(axis=2).transpose(0, 2, 1)
        bound += np.minimum(q, 0) @ keys.min(axis=2).transpose(0, 2, 1)
        bound -= bound.max(axis=-1, keepdims=True, initial=-np.inf)
        best = bound.reshape(geometry.kv_heads, self._shared, new, pages).max(axis=1)
        count = min(max(round(self._method.fraction * pages), 1), pages)
        order = np.argsort(-best, axis=-1, kind="stable")[..., :count]
        chosen = np.zeros(best.shape, np.bool_)
        np.put_along_axis(chosen, order, True, axis=-1)
        return chosen

    def _report(self, chosen: npt.NDArray[np.bool_], closed: int, before: int, account: Account) -> None:
        """Add the fetches of queries that chose the pages `chosen`: all summaries, these pages, the open block."""
        kv_heads, new, pages = chosen.shape
        row = self._geometry.head_dim * FP16_BITS
        account.fetch(pages * 2 * row, kv_heads * new, pages * 2 * row)
        account.fetch(self._method.page * row, 2 * int(chosen.sum()))
        account.fetch(np.arange(before - closed + 1, before - closed + new + 1) * row, 2 * kv_heads)


@dataclass(frozen=True, kw_only=True)
class Quest:
    """Quest: fetches the pages of tokens whose per-channel key ranges allow the highest scores for the query.

    Jiaming Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024
    (arXiv 2406.10774): pages of 16 tokens, the ranges' ends in FP16, top pages up to a fixed budget, the first two
    layers left dense. Here the budget is 5% of the pages and, as every layer counts alike in the traffic that is
    compared, no layer is dense (`dense_layers` makes some so). Query heads of a KV head share the pages. The open
    block of 64 is always fetched.

    page: tokens of a page, a divisor of 64. fraction: share of the pages fetched. dense_layers: see above.
    """

    name: str = "quest"
    page: int = 16
    fraction: float = 0.05
    dense_layers: int = 0

    def __post_init__(self) -> None:
        if self.page < 1 or BLOCK_TOKENS % self.page:
            raise ValueError(f"page must be a divisor of {BLOCK_TOKENS}, not {self.page!r}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction!r}")
        if self.dense_layers < 0:
            raise ValueError(f"dense_layers must be 0 or more, not {self.dense_layers!r}")

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """See `CacheMethod`."""
        if layer < self.dense_layers:
            return Fp16().open(geometry, layer, k, v, block_mass)
        return _QuestCache(self, geometry, k, v)
