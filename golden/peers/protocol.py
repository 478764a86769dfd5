"""What a method must offer to be evaluated: it holds one layer's keys and values and computes attention over them."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from golden.account import Account
from golden.model import ModelConfig

__all__ = ["BLOCK_TOKENS", "CacheMethod", "Float", "LayerCache", "elements_per_token"]

Float = npt.NDArray[np.float32]

BLOCK_TOKENS = 64
"""Tokens of a block: methods close a group, and evict, when a sequence's length is a multiple of it."""


def elements_per_token(geometry: ModelConfig) -> int:
    """K and V elements of a token in one layer."""
    return 2 * geometry.kv_heads * geometry.head_dim


class LayerCache(Protocol):
    """The cache of one layer of one sequence."""

    def attend(self, q: Float, k: Float, v: Float, account: Account) -> Float:
        """Attention of 1 to 64 new tokens that lie within one block of 64.

        q [q_heads, n, head_dim], k and v [kv_heads, n, head_dim]: the new tokens see the ones before them, each other
        causally, and join the cache. Returns [q_heads, n, head_dim]; adds the fetches of the n queries to `account`.
        """

    def stored(self, account: Account) -> None:
        """Add the bits of the present state to `account`."""


class CacheMethod(Protocol):
    """A way to keep keys and values."""

    @property
    def name(self) -> str:
        """Name in tables and plots."""

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """The cache of layer `layer` after a prompt of P tokens, P a multiple of 64, computed with exact attention.

        geometry: the model's; query heads h * q_heads / kv_heads and following share KV head h.
        k, v [kv_heads, P, head_dim]; block_mass [kv_heads, P / 64, P]: the attention probability that each token
        received from the queries of each block of 64, summed over these and the query heads of the KV head.
        """
