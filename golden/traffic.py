"""What a fetch costs: information bits and whole bursts of a packed record."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from golden.account import Account
from golden.dsq.record import RecordLayout, Section
from golden.mha.core import Fetch

__all__ = ["RECORD_ALIGNMENT", "add_fetch", "add_int8_tokens", "record_bits"]

#: records start at multiples of this many bytes
RECORD_ALIGNMENT = 64


def record_bits(layout: RecordLayout) -> tuple[int, int]:
    """Stored bits of a record, alignment included, and how many of them are metadata (header and padding)."""
    codes = layout.head_dim * (
        layout.salient_tokens * 16 + (layout.group_tokens - layout.salient_tokens) * (layout.delta_bits + 2)
    )
    stored = -(-layout.record_bytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT * 8
    return stored, stored - codes


@lru_cache
def _lines(section: Section, row_bytes: int, burst: int) -> tuple[int, NDArray[np.float32]]:
    """First burst that a section touches, and which of those from it on each row touches: ``[rows, bursts]``."""
    start = section.offset + section.stride * np.arange(section.rows)
    first, last = start // burst, (start + row_bytes - 1) // burst
    origin = int(first[0]) if section.rows else 0
    count = int(last[-1]) - origin + 1 if section.rows else 0
    line = origin + np.arange(count)
    return origin, ((line >= first[:, None]) & (line <= last[:, None])).astype(np.float32)


def _touched(layout: RecordLayout, parts: list[tuple[Section, NDArray[np.bool_]]], burst: int) -> int:
    """Bursts that one phase's rows touch, each counted once a group and query: ``mask[n, g, rows]`` per section."""
    total = None
    for section, mask in parts:
        if not section.rows:
            continue
        origin, incidence = _lines(section, -(-layout.head_dim * section.code_bits // 8), burst)
        hit = (mask.reshape(-1, section.rows).astype(np.float32) @ incidence) > 0
        if total is None:
            total = np.zeros((len(hit), -(-layout.record_bytes // burst) + 1), bool)
        total[:, origin : origin + hit.shape[1]] |= hit
    return 0 if total is None else int(np.count_nonzero(total))


def add_fetch(account: Account, fetch: Fetch, layout: RecordLayout) -> None:
    """Add what the n queries of ``fetch`` read of the compressed groups.

    Three phases read a record one after the other: the scan (header and upper nibbles, one piece), the K rows (lower
    nibbles and deltas), the V rows. A burst that two phases touch is read twice. Records are taken to start on a burst.
    """
    if not fetch.scanned.size:
        return
    queries = len(fetch.lower)
    s, dim = layout.salient_tokens, layout.head_dim
    scan_bits = 8 * layout.upper.end
    account.fetch(bits=scan_bits, pieces=int(fetch.scanned.sum()) * queries, metadata=scan_bits - 4 * s * dim)
    phases = [
        [(layout.lower, fetch.lower), (layout.k_delta, fetch.k_delta)],
        [(layout.k_fine, fetch.v_delta), (layout.v_salient, fetch.v_salient), (layout.v_delta, fetch.v_delta)],
    ]
    for parts in phases:
        bits = sum(int(mask.sum()) * dim * section.code_bits for section, mask in parts if section.rows)
        account.fetch_bursts(bits, 0, {burst: _touched(layout, parts, burst) for burst in account.bursts})


def add_int8_tokens(account: Account, fetch: Fetch, waiting: int, head_dim: int) -> None:
    """Add the INT8 tokens that the causal queries of ``fetch`` read: ``waiting`` ones of a full group, then open ones.

    A token has ``head_dim`` K codes, as many V codes and two scales. K of a group is one piece, its scales included; so
    are the scales of V, and every V row that is read.
    """
    queries, tokens = fetch.v_int8.shape
    row_bits = 8 * head_dim
    for sizes in (np.full(queries, waiting), tokens - waiting - queries + 1 + np.arange(queries)):
        account.fetch(bits=sizes * (row_bits + 8), metadata=sizes * 8)
        account.fetch(bits=sizes * 8, metadata=sizes * 8)
    account.fetch(bits=row_bits, pieces=int(fetch.v_int8.sum()))
