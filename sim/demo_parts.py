"""What DSQ+HCAP fetches, by kind: counted beside the account while a text is decoded."""

from collections.abc import Iterator
from contextlib import contextmanager

import golden.kvo_method
from golden.account import Account
from golden.dsq.record import RecordLayout
from golden.mha.core import Fetch
from golden.traffic import add_fetch, add_int8_tokens

__all__ = ["PARTS", "counted_parts"]

PARTS = {
    "scan": "scan: headers, upper nibbles of K bases",
    "k_lower": "lower nibbles of K bases",
    "k_delta": "K deltas, upper two bits",
    "k_fine": "K deltas, other bits",
    "v_salient": "V of salient tokens",
    "v_delta": "V deltas",
    "int8": "open and waiting groups, INT8",
}


@contextmanager
def counted_parts() -> Iterator[dict[str, int]]:
    """Count the bits of each of `PARTS` that caches of `KvoMethod` fetch inside this context.

    `golden.traffic` adds the bits to the account without their kind, so this stands between it and `golden.kvo_method`.
    Raises `RuntimeError` when the kinds do not add up to what the account got.
    """
    parts = dict.fromkeys(PARTS, 0)

    def records(account: Account, fetch: Fetch, layout: RecordLayout) -> None:
        before = account.read_bits
        add_fetch(account, fetch, layout)
        if not fetch.scanned.size:
            return
        found = {"scan": int(fetch.scanned.sum()) * len(fetch.lower) * 8 * layout.upper.end}
        for name, section, mask in (
            ("k_lower", layout.lower, fetch.lower),
            ("k_delta", layout.k_delta, fetch.k_delta),
            ("k_fine", layout.k_fine, fetch.v_delta),
            ("v_salient", layout.v_salient, fetch.v_salient),
            ("v_delta", layout.v_delta, fetch.v_delta),
        ):
            found[name] = int(mask.sum()) * layout.head_dim * section.code_bits if section.rows else 0
        if sum(found.values()) != account.read_bits - before:
            raise RuntimeError(f"kinds of {found} do not add up to {account.read_bits - before} bits")
        for name, bits in found.items():
            parts[name] += bits

    def int8_tokens(account: Account, fetch: Fetch, waiting: int, head_dim: int) -> None:
        before = account.read_bits
        add_int8_tokens(account, fetch, waiting, head_dim)
        parts["int8"] += account.read_bits - before

    golden.kvo_method.add_fetch, golden.kvo_method.add_int8_tokens = records, int8_tokens
    try:
        yield parts
    finally:
        golden.kvo_method.add_fetch, golden.kvo_method.add_int8_tokens = add_fetch, add_int8_tokens
