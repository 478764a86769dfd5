"""Attention mass of a query, added to the sums that are kept of groups and tokens."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["SUM_BITS", "add_masses"]

#: bits of a sum; it saturates
SUM_BITS = 32


def add_masses(
    recent: NDArray[np.int64],
    votes: NDArray[np.int64],
    group: NDArray[np.bool_],
    index: NDArray[np.int64],
    mass: NDArray[np.int64],
    *,
    first: int,
    group_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums ``recent[groups]`` and ``votes[INT8 tokens]`` with the masses of a query.

    An entry ``group``, ``index``, ``mass`` is that of a group, or of a token, which counts for the token and for its
    group; token 0 is the first one of group ``first``. Sums saturate. Entries of what has no sum are dropped.
    """
    owner = np.where(group, index, first + index // group_tokens)
    recent, votes = recent.copy(), votes.copy()
    for sums, places, counted in ((recent, owner, np.ones(len(mass), bool)), (votes, index, ~group)):
        counted = counted & (places < len(sums))
        np.add.at(sums, places[counted], mass[counted])
        np.minimum(sums, (1 << SUM_BITS) - 1, out=sums)
    return recent, votes
