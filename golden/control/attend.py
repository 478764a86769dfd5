"""What ATTEND hands to the attention core."""

import numpy as np
from numpy.typing import NDArray

from golden.hcap.history import select_groups

__all__ = ["scan_list"]


def scan_list(
    *, records: int, tokens: int, salient: int, group_tokens: int, history: NDArray[np.int64] | None, drop_count: int
) -> list[tuple[bool, int, int]]:
    """What a query scans: whether it is an INT8 block, its group, its tokens; of a record, the salient ones.

    Blocks of ``group_tokens`` tokens, the last one of what is left, come first, then the records before them: all of
    them without ``history``, else those that `select_groups` finds.
    """
    full, rest = divmod(tokens, group_tokens)
    counts = [group_tokens] * full + [rest] * (rest > 0)
    blocks = [(True, records + n, count) for n, count in enumerate(counts)]
    listed = np.arange(records)
    if history is not None and records:
        listed = np.flatnonzero(select_groups(history[:records], drop_count=drop_count))
    return blocks + [(False, int(group), salient) for group in listed]
