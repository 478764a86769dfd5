"""KV cache of one (layer, kv_head) as the hardware keeps it: compressed groups, the waiting group, the open group."""

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.dsq.compressor import VALUE_BITS, Calibration, CompressedGroup, compress
from golden.dsq.dequantizer import decode_deltas
from golden.dsq.row_quantizer import quantize_token_rows
from golden.dsq.salient import pick_salient
from golden.hcap.history import update_history
from golden.settings import KvoSettings

__all__ = ["Groups", "HeadState", "fixed_mass"]


def fixed_mass(mass: NDArray[np.floating]) -> NDArray[np.int64]:
    """Attention mass that was summed elsewhere in the units of the cache, 2**-16, half up."""
    return np.floor(mass.astype(np.float64) * 65536 + 0.5).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """All compressed groups of a head, stacked: g groups, S bases, R = N - S other tokens, head_dim channels."""

    k_base: NDArray[np.int8]  # [g, S, head_dim]
    k_base_scale: NDArray[np.uint8]  # [g, S]
    run_length: NDArray[np.int64]  # [g, S]
    base_of: NDArray[np.int64]  # [g, R] index of each delta row's base in its group
    k_level: NDArray[np.int8]  # [g, R, head_dim] odd levels, twice the delta in steps
    k_group_scale: NDArray[np.uint8]  # [g]
    v_salient: NDArray[np.int8]  # [g, S, head_dim]
    v_salient_scale: NDArray[np.uint8]  # [g, S]
    v_level: NDArray[np.int8]  # [g, R, head_dim]
    v_group_scale: NDArray[np.uint8]  # [g]

    @staticmethod
    def stack(groups: list[CompressedGroup], *, delta_bits: int) -> "Groups":
        """Stack the fields of closed groups."""
        levels_k = [decode_deltas(g.k_delta, delta_bits=delta_bits) for g in groups]
        levels_v = [decode_deltas(g.v_delta, delta_bits=VALUE_BITS) for g in groups]
        return Groups(
            k_base=np.stack([g.k_base for g in groups]),
            k_base_scale=np.stack([g.k_base_scale for g in groups]),
            run_length=np.stack([g.run_length for g in groups]),
            base_of=np.stack([np.repeat(np.arange(len(g.run_length)), g.run_length) for g in groups]),
            k_level=np.stack(levels_k).astype(np.int8),
            k_group_scale=np.array([g.k_group_scale for g in groups], np.uint8),
            v_salient=np.stack([g.v_salient for g in groups]),
            v_salient_scale=np.stack([g.v_salient_scale for g in groups]),
            v_level=np.stack(levels_v).astype(np.int8),
            v_group_scale=np.array([g.v_group_scale for g in groups], np.uint8),
        )


class HeadState:
    """One head's cache. Tokens enter by ``append``; mass enters by ``observe``; groups close by ``close_group``.

    The newest closed group waits in INT8 beside the open one, so that the queries of the group after it vote on what
    is salient.
    """

    def __init__(self, settings: KvoSettings, calibration: Calibration) -> None:
        self.settings, self.calibration = settings, calibration
        dim = len(calibration.k_shape)
        self.closed: list[CompressedGroup] = []
        self.groups: Groups | None = None
        self.k_codes, self.v_codes = np.zeros((0, dim), np.int8), np.zeros((0, dim), np.int8)
        self.k_scale, self.v_scale = np.zeros(0, np.uint8), np.zeros(0, np.uint8)
        #: attention mass of each INT8 token, units of 2**-16
        self.mass = np.zeros(0, np.int64)
        #: history of each group, compressed or not, and the mass since the last group close
        self.history, self.recent = np.zeros(0, np.int64), np.zeros(0, np.int64)

    @property
    def compressed_tokens(self) -> int:
        """Tokens in compressed groups."""
        return len(self.closed) * self.settings.group_tokens

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.compressed_tokens + len(self.k_codes)

    def copy(self) -> "HeadState":
        """The same cache, which goes its own way from now on."""
        made = copy.copy(self)
        made.closed, made.mass, made.recent = self.closed.copy(), self.mass.copy(), self.recent.copy()
        return made

    def append(self, k_rows: NDArray[np.int16], v_rows: NDArray[np.int16]) -> None:
        """Quantize INT16 rows ``[n, head_dim]`` into the open group."""
        k_codes, k_scale, v_codes, v_scale = quantize_token_rows(k_rows, v_rows)
        self.k_codes, self.v_codes = np.concatenate([self.k_codes, k_codes]), np.concatenate([self.v_codes, v_codes])
        self.k_scale, self.v_scale = np.concatenate([self.k_scale, k_scale]), np.concatenate([self.v_scale, v_scale])
        self.mass = np.concatenate([self.mass, np.zeros(len(k_codes), np.int64)])
        more = -(-self.tokens // self.settings.group_tokens) - len(self.recent)
        self.recent = np.concatenate([self.recent, np.zeros(more, np.int64)])
        self.history = np.concatenate([self.history, np.zeros(more, np.int64)])

    def observe(self, group_mass: NDArray[np.int64], token_mass: NDArray[np.int64]) -> None:
        """Add attention mass: ``group_mass[compressed groups]`` and ``token_mass[INT8 tokens]``, units of 2**-16."""
        n = self.settings.group_tokens
        self.mass += token_mass
        self.recent[: len(group_mass)] += group_mass
        owner = len(group_mass) + np.arange(len(token_mass)) // n
        np.add.at(self.recent, owner, token_mass)

    def close_group(self) -> None:
        """Called when the open group is full: history moves on, the waiting group (if any) is compressed."""
        n = self.settings.group_tokens
        self.history = update_history(self.history, self.recent)
        self.recent = np.zeros_like(self.recent)
        if len(self.k_codes) < 2 * n:
            return
        self._compress_first()
        self.groups = Groups.stack(self.closed, delta_bits=self.settings.delta_bits)

    def _compress_first(self) -> None:
        n, s = self.settings.group_tokens, self.settings
        mass = np.minimum(self.mass[:n], (1 << 32) - 1).astype(np.uint32)
        salient = pick_salient(mass, not self.closed, salient_tokens=s.salient_tokens, sink_tokens=s.sink_tokens)
        rows = self.k_codes[:n], self.k_scale[:n], self.v_codes[:n], self.v_scale[:n]
        self.closed.append(compress(*rows, salient, self.calibration, delta_bits=s.delta_bits))
        self.k_codes, self.k_scale = self.k_codes[n:], self.k_scale[n:]
        self.v_codes, self.v_scale = self.v_codes[n:], self.v_scale[n:]
        self.mass = self.mass[n:]

    def load(self, k_rows: NDArray[np.int16], v_rows: NDArray[np.int16], block_mass: NDArray[np.floating]) -> None:
        """Fill an empty cache with a prompt ``[P, head_dim]`` whose attention was computed elsewhere.

        P is a multiple of the group; ``block_mass[P / group_tokens, P]`` is the attention mass from each group's
        queries.
        """
        n = self.settings.group_tokens
        self.append(k_rows, v_rows)
        fixed = fixed_mass(block_mass)
        for block in range(len(fixed)):
            seen = (block + 1) * n
            self.mass[: seen - self.compressed_tokens] += fixed[block, self.compressed_tokens : seen]
            group_mass = fixed[block].reshape(-1, n).sum(axis=1)
            self.history = update_history(self.history, group_mass)
            if seen - self.compressed_tokens >= 2 * n:
                self._compress_first()
        self.recent = np.zeros_like(self.history)
        if self.closed:
            self.groups = Groups.stack(self.closed, delta_bits=self.settings.delta_bits)
