"""Peers that quantize every token: FP16 (the reference), INT8, INT4 and KIVI-2."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from golden.account import FP16_BITS, Account
from golden.model import ModelConfig
from golden.model.attention import causal_attention
from golden.peers.protocol import BLOCK_TOKENS, Float, LayerCache
from golden.peers.rows import Rows, to_fp16

__all__ = ["Fp16", "Int4", "Int8", "Kivi2", "quantize_affine", "quantize_symmetric"]


def quantize_symmetric(x: Float, axis: int, bits: int) -> Float:
    """x rounded to integers of `bits` bits times one FP16 scale per slice along `axis`: the values that are read back.

    scale = max |x| / (2^(bits - 1) - 1); codes are rounded half even and clipped to +-(2^(bits - 1) - 1).
    """
    top = np.float32(2 ** (bits - 1) - 1)
    scale = to_fp16(np.abs(x).max(axis=axis, keepdims=True) / top)
    codes = np.rint(x / np.where(scale > 0, scale, 1))
    return np.clip(codes, -top, top) * scale


def quantize_affine(x: Float, axis: int, bits: int) -> Float:
    """x rounded to codes 0 to 2^bits - 1 with one FP16 scale and one FP16 zero point per slice along `axis`.

    zero = min x, scale = (max x - min x) / (2^bits - 1); codes are rounded half even. Returns the values read back.
    """
    top = np.float32(2**bits - 1)
    low = x.min(axis=axis, keepdims=True)
    zero, scale = to_fp16(low), to_fp16((x.max(axis=axis, keepdims=True) - low) / top)
    codes = np.rint((x - zero) / np.where(scale > 0, scale, 1))
    return np.clip(codes, 0, top) * scale + zero


@dataclass(frozen=True, kw_only=True)
class _PerToken:
    """Each token's row in groups of `group` channels (the last one may be shorter)."""

    bits: int
    group: int
    affine: bool = True

    def apply(self, rows: Float) -> Float:
        """Rows [kv_heads, tokens, head_dim] as they are read back."""
        quantize = quantize_affine if self.affine else quantize_symmetric
        parts = [rows[:, :, first : first + self.group] for first in range(0, rows.shape[2], self.group)]
        return np.concatenate([quantize(part, 2, self.bits) for part in parts], axis=2)

    def sizes(self, tokens: int, head_dim: int) -> tuple[int, int]:
        """Bits of codes and of scales (and zero points) of one KV head's `tokens` rows."""
        groups = -(-head_dim // self.group)
        return tokens * head_dim * self.bits, tokens * groups * FP16_BITS * (2 if self.affine else 1)


@dataclass(frozen=True, kw_only=True)
class _PerChannel:
    """Each channel in groups of `group` tokens, which divides 64; with zero points."""

    bits: int
    group: int

    def apply(self, rows: Float) -> Float:
        """Rows [kv_heads, tokens, head_dim], a whole number of groups, as they are read back."""
        heads, tokens, head_dim = rows.shape
        groups = rows.reshape(heads, tokens // self.group, self.group, head_dim)
        return quantize_affine(groups, 2, self.bits).reshape(rows.shape)

    def sizes(self, tokens: int, head_dim: int) -> tuple[int, int]:
        """Bits of codes and of scales and zero points of one KV head's `tokens` rows."""
        return tokens * head_dim * self.bits, tokens // self.group * head_dim * FP16_BITS * 2


@dataclass(frozen=True, kw_only=True)
class _Scheme:
    """How K and V are quantized, and when.

    k, v: None keeps FP16. waiting: closed blocks of 64 that stay FP16 beside the open one; None quantizes each token
    as it arrives.
    """

    k: _PerToken | _PerChannel | None
    v: _PerToken | None
    waiting: int | None

    def packed(self, tokens: int) -> int:
        """Of `tokens` tokens, those that are quantized."""
        if self.waiting is None:
            return tokens
        return max(tokens // BLOCK_TOKENS - self.waiting, 0) * BLOCK_TOKENS

    def pieces(self, tokens: int, packed: int, head_dim: int) -> Iterator[tuple[int, int]]:
        """Bits and metadata bits of the contiguous pieces that hold one KV head's `tokens` tokens."""
        for part in (self.k, self.v):
            if part is None:
                yield tokens * head_dim * FP16_BITS, 0
                continue
            codes, scales = part.sizes(packed, head_dim)
            yield codes, 0
            yield scales, scales
            yield (tokens - packed) * head_dim * FP16_BITS, 0


class _QuantizedCache:
    """One layer under a `_Scheme`: rows are kept as they are read back, quantized ones in front of FP16 ones."""

    def __init__(self, scheme: _Scheme, geometry: ModelConfig, k: Float, v: Float) -> None:
        self._scheme, self._geometry = scheme, geometry
        self._k, self._v = Rows(to_fp16(k)), Rows(to_fp16(v))
        self._packed = 0
        self._pack()

    def attend(self, q: Float, k: Float, v: Float, account: Account) -> Float:
        """See `LayerCache`."""
        before = self._k.length
        self._k.append(to_fp16(k))
        self._v.append(to_fp16(v))
        if self._scheme.waiting is None:
            self._pack()
        output = causal_attention(q, self._k.valid, self._v.valid)
        for tokens in range(before + 1, self._k.length + 1):
            self._report(tokens, account)
        self._pack()
        return output

    def stored(self, account: Account) -> None:
        """See `LayerCache`."""
        for bits, metadata in self._scheme.pieces(self._k.length, self._packed, self._geometry.head_dim):
            account.store(bits * self._geometry.kv_heads, metadata * self._geometry.kv_heads)

    def _report(self, tokens: int, account: Account) -> None:
        """Add the fetches of one query that sees `tokens` tokens."""
        packed = min(tokens, self._packed)
        sizes = np.array(list(self._scheme.pieces(tokens, packed, self._geometry.head_dim)))
        account.fetch(sizes[:, 0], self._geometry.kv_heads, sizes[:, 1])

    def _pack(self) -> None:
        """Quantize the tokens that are due."""
        due = slice(self._packed, self._scheme.packed(self._k.length))
        if due.stop > due.start:
            for rows, part in ((self._k.valid, self._scheme.k), (self._v.valid, self._scheme.v)):
                if part is not None:
                    rows[:, due] = part.apply(rows[:, due])
            self._packed = due.stop


@dataclass(frozen=True, kw_only=True)
class Fp16:
    """Everything in FP16, everything fetched: what the others are compared with."""

    name: str = "fp16"

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """See `CacheMethod`."""
        return _QuantizedCache(_Scheme(k=None, v=None, waiting=None), geometry, k, v)


@dataclass(frozen=True, kw_only=True)
class Int8:
    """K and V in symmetric INT8 with one FP16 scale per token and KV head, from the token's arrival on.

    The plain INT8 cache of serving systems.
    """

    name: str = "int8"

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """See `CacheMethod`."""
        part = _PerToken(bits=8, group=geometry.head_dim, affine=False)
        return _QuantizedCache(_Scheme(k=part, v=part, waiting=None), geometry, k, v)


@dataclass(frozen=True, kw_only=True)
class Int4:
    """K in INT4 per channel over 64 tokens, V in INT4 per token over up to 64 channels, FP16 scales and zero points.

    The axes that KIVI found (Liu et al., ICML 2024, section 3.2) at 4 bits. The open block of 64 stays FP16.

    group: tokens of a K group, a divisor of 64, and channels of a V group.
    """

    name: str = "int4"
    group: int = 64

    def __post_init__(self) -> None:
        _check_group(self.group)

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """See `CacheMethod`."""
        k_part, v_part = _PerChannel(bits=4, group=self.group), _PerToken(bits=4, group=self.group)
        return _QuantizedCache(_Scheme(k=k_part, v=v_part, waiting=0), geometry, k, v)


@dataclass(frozen=True, kw_only=True)
class Kivi2:
    """KIVI-2: K in 2 bits per channel, V in 2 bits per token, asymmetric, the newest tokens in FP16.

    Zirui Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024 (arXiv 2402.02750):
    group size 32 for K (tokens) and V (channels), residual length 128. There the residual of K empties when it is full
    and that of V slides; here both hold the open block and one closed one, 65 to 128 tokens.

    group: tokens of a K group, a divisor of 64, and channels of a V group. waiting: closed blocks of 64 in FP16.
    """

    name: str = "kivi2"
    group: int = 32
    waiting: int = 1

    def __post_init__(self) -> None:
        _check_group(self.group)
        if self.waiting < 0:
            raise ValueError(f"waiting must be 0 or more, not {self.waiting!r}")

    def open(self, geometry: ModelConfig, layer: int, k: Float, v: Float, block_mass: Float) -> LayerCache:
        """See `CacheMethod`."""
        k_part, v_part = _PerChannel(bits=2, group=self.group), _PerToken(bits=2, group=self.group)
        return _QuantizedCache(_Scheme(k=k_part, v=v_part, waiting=self.waiting), geometry, k, v)


def _check_group(group: int) -> None:
    """Refuse a number of tokens that does not divide a block."""
    if group < 1 or BLOCK_TOKENS % group:
        raise ValueError(f"group must be a divisor of {BLOCK_TOKENS}, not {group!r}")
