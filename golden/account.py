"""One account of KV cache traffic and storage for every method, in bits and in whole memory bursts."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from golden.errors import UserError

__all__ = ["DEFAULT_BURSTS", "FP16_BITS", "Account", "check_bursts"]

DEFAULT_BURSTS = (32, 64)
"""Burst sizes in bytes: four beats of a 64-bit bus, and a cache line or four beats of a 128-bit bus."""

FP16_BITS = 16

Counts = int | npt.NDArray[np.integer]


def check_bursts(bursts: tuple[int, ...]) -> tuple[int, ...]:
    """The burst sizes in ascending order, each once; `UserError` when one is no power of two from 1 to 4096 bytes."""
    if not bursts:
        raise UserError("at least one burst size in bytes is needed")
    for burst in bursts:
        if not 1 <= burst <= 4096 or burst & (burst - 1):
            raise UserError(f"a burst size must be a power of two from 1 to 4096 bytes, not {burst}")
    return tuple(sorted(set(bursts)))


@dataclass(kw_only=True)
class Account:
    """What a method fetched and what it stores, summed over queries, layers and KV heads; bits unless said otherwise.

    Query heads that share a KV head share what is fetched. A method reports its fetches with `fetch` and its final
    state with `store`; the harness alone reports, with `offer`, what an uncompressed cache would have cost.

    full_bits: FP16 traffic of the same queries: K and V of every token a query may see, its own included.
    read_bits: all bits fetched; metadata_bits_read: the masks, counts, indices, scales and summaries among them.
    burst_bytes: burst size in bytes -> bytes fetched when each contiguous piece takes whole bursts.
    stored_bits, stored_metadata_bits: state at the end; tokens that are still open or waiting belong to it.
    stored_elements: K and V elements that the state stands for, evicted ones included.
    """

    bursts: tuple[int, ...] = DEFAULT_BURSTS
    full_bits: int = 0
    read_bits: int = 0
    metadata_bits_read: int = 0
    burst_bytes: dict[int, int] = field(default_factory=dict)
    stored_bits: int = 0
    stored_metadata_bits: int = 0
    stored_elements: int = 0

    def __post_init__(self) -> None:
        self.bursts = check_bursts(self.bursts)
        self.burst_bytes = dict.fromkeys(self.bursts, 0)

    def fetch(self, bits: Counts, pieces: Counts = 1, metadata: Counts = 0) -> None:
        """Add `pieces` contiguous pieces of `bits` bits each, of which `metadata` bits each are metadata.

        Arrays are broadcast against each other: one entry per kind of piece. A piece begins on a burst boundary.
        """
        kinds = (np.asarray(numbers, np.int64) for numbers in (bits, pieces, metadata))
        size, count, meta = np.broadcast_arrays(*kinds)
        if (size < 0).any() or (count < 0).any() or (meta < 0).any() or (meta > size).any():
            raise ValueError(f"bits, pieces and metadata must be 0 or more, metadata at most bits, not {bits!r}")
        self.read_bits += int((size * count).sum())
        self.metadata_bits_read += int((meta * count).sum())
        for burst in self.bursts:
            self.burst_bytes[burst] += int((-(-size // (8 * burst)) * burst * count).sum())

    def fetch_bursts(self, bits: int, metadata: int, bursts: dict[int, int]) -> None:
        """Add `bits` bits, `metadata` of them metadata, that take `bursts[size]` bursts of each size in `self.bursts`.

        For pieces that do not begin on a burst boundary, or that share bursts: the caller has counted these itself.
        """
        if not 0 <= metadata <= bits:
            raise ValueError(f"metadata must be 0 to {bits} bits, not {metadata!r}")
        for burst in self.bursts:
            if bursts[burst] * 8 * burst < bits:
                raise ValueError(f"{bits} bits do not fit into {bursts[burst]} bursts of {burst} bytes")
            self.burst_bytes[burst] += int(bursts[burst]) * burst
        self.read_bits += int(bits)
        self.metadata_bits_read += int(metadata)

    def store(self, bits: int, metadata: int = 0) -> None:
        """Add `bits` bits to the final state, of which `metadata` are metadata."""
        if not 0 <= metadata <= bits:
            raise ValueError(f"metadata must be 0 to {bits} bits, not {metadata!r}")
        self.stored_bits += int(bits)
        self.stored_metadata_bits += int(metadata)

    def offer(self, first: int, queries: int, elements_per_token: int) -> None:
        """Add the FP16 traffic of `queries` queries, the first of which sees `first` earlier tokens and itself."""
        tokens = queries * first + queries * (queries + 1) // 2
        self.full_bits += tokens * elements_per_token * FP16_BITS

    @property
    def read_fraction(self) -> float:
        """Bits fetched, as a share of FP16 traffic."""
        return self.read_bits / self.full_bits

    def burst_fraction(self, burst: int) -> float:
        """Bytes fetched in whole bursts of `burst` bytes, as a share of FP16 traffic (which is not rounded)."""
        return 8 * self.burst_bytes[burst] / self.full_bits

    @property
    def stored_bits_per_element(self) -> float:
        """Bits of the final state per K or V element that it stands for."""
        return self.stored_bits / self.stored_elements

    @property
    def metadata_bits_per_element(self) -> float:
        """Bits of metadata in the final state per K or V element that it stands for."""
        return self.stored_metadata_bits / self.stored_elements
