"""Which tokens of a group keep INT8: the attention sinks, then the highest attention mass."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["pick_salient"]


def pick_salient(
    mass: NDArray[np.uint32], first_group: bool, *, salient_tokens: int, sink_tokens: int = 4
) -> NDArray[np.int64]:
    """Indices, ascending, of the ``salient_tokens`` tokens of one group that stay INT8.

    ``mass[group_tokens]`` is the attention mass of each token (unsigned 32 bits). In a sequence's first group the
    tokens 0 .. ``sink_tokens``-1 win before all others; of equal masses the lower index wins.
    """
    token = np.arange(mass.shape[0])
    is_sink = (token < sink_tokens) & bool(first_group)
    order = np.lexsort((token, -mass.astype(np.int64), ~is_sink))
    return np.sort(order[:salient_tokens])
