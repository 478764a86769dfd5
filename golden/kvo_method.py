"""The integer DSQ+HCAP method as the evaluation runs it: every layer's attention on the compressed cache."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.account import Account
from golden.calibrate import ModelCalibration, fixed_rows, to_fixed
from golden.dsq.record import RecordLayout
from golden.dsq.rotation import rotation_block, rotation_shift
from golden.mha.core import attend
from golden.mha.scores import SCORE_FRACTION_BITS
from golden.model import ModelConfig
from golden.settings import LOG2E, KvoSettings
from golden.state import HeadState
from golden.traffic import add_fetch, add_int8_tokens, record_bits

__all__ = ["KvoLayer", "KvoMethod", "score_shift"]


def score_shift(q_fraction: int, k_fraction: int, head_dim: int) -> int:
    """Right shift from the product of rotated q and K units to a score with 8 fraction bits."""
    lost = 2 * rotation_shift(head_dim) - (rotation_block(head_dim).bit_length() - 1)
    return q_fraction + k_fraction - lost - SCORE_FRACTION_BITS


@dataclass(frozen=True)
class KvoMethod:
    """DSQ+HCAP with ``settings`` and a model's ``calibration``; float rows are rounded to INT16 at the border."""

    settings: KvoSettings
    calibration: ModelCalibration
    name: str = "kvo"

    def open(
        self,
        geometry: ModelConfig,
        layer: int,
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        block_mass: NDArray[np.floating],
    ) -> "KvoLayer":
        """The cache of one layer after a prompt: ``k, v[kv_heads, P, head_dim]``, ``block_mass[kv_heads, P / 64,
        P]``."""
        return KvoLayer(self, geometry, layer, k, v, block_mass)


class KvoLayer:
    """One layer's cache under :class:`KvoMethod`."""

    def __init__(
        self,
        method: KvoMethod,
        geometry: ModelConfig,
        layer: int,
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        block_mass: NDArray[np.floating],
    ) -> None:
        self.settings, self.calibration, self.layer = method.settings, method.calibration, layer
        self.geometry = geometry
        s = self.settings
        self.layout = RecordLayout(
            head_dim=geometry.head_dim,
            group_tokens=s.group_tokens,
            salient_tokens=s.salient_tokens,
            delta_bits=s.delta_bits,
            bus_bits=s.bus_bits,
        )
        self.heads = [HeadState(s, self.calibration.head(layer, h)) for h in range(geometry.kv_heads)]
        for h, state in enumerate(self.heads):
            votes = np.asarray(block_mass[h], np.float32)
            tokens = votes.shape[1]
            votes = votes.reshape(tokens // s.group_tokens, -1, tokens).sum(axis=1)
            state.load(*fixed_rows(self.calibration, layer, h, k[h], v[h]), votes)

    def attend(
        self, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32], account: Account
    ) -> NDArray[np.float32]:
        """Attention of n tokens of one block: ``q[q_heads, n, head_dim]``, ``k, v[kv_heads, n, head_dim]``, causal."""
        c, dim = self.calibration, self.geometry.head_dim
        kv_heads, n, _ = k.shape
        q_heads = q.reshape(kv_heads, -1, n, dim) * np.float32(LOG2E / np.sqrt(dim))
        out = np.empty(q_heads.shape, np.float32)
        for h, state in enumerate(self.heads):
            i = self.layer, h
            state.append(*fixed_rows(c, self.layer, h, k[h], v[h]))
            waiting = min(self.settings.group_tokens, state.tokens - n - state.compressed_tokens)
            q_fraction = int(c.q_fraction[i])
            shift = score_shift(q_fraction, int(c.k_fraction[i]), dim)
            rows, fetch = attend(state, to_fixed(q_heads[h], q_fraction), shift=shift)
            out[h] = rows * np.float32(2.0 ** -int(c.v_fraction[i]))
            add_fetch(account, fetch, self.layout)
            add_int8_tokens(account, fetch, waiting, dim)
            if state.tokens % self.settings.group_tokens == 0:
                state.close_group()
        return out.reshape(q.shape)

    def stored(self, account: Account) -> None:
        """Add the stored bits: records, and INT8 tokens with two scales each."""
        bits, metadata = record_bits(self.layout)
        for state in self.heads:
            account.store(len(state.closed) * bits, len(state.closed) * metadata)
            tokens = len(state.k_codes)
            account.store(tokens * 2 * (8 * self.geometry.head_dim + 8), tokens * 16)
