"""Words that a read request gives: those of the memory, or errors in their place."""

from collections.abc import Callable

from golden.cache.axi import is_error

__all__ = ["read"]


def read(
    address: int, count: int, bad: bool, *, memory: Callable[[int], int], response: Callable[[int], int]
) -> list[tuple[int, bool]]:
    """Words of a request as ``(data, error)``, in order.

    A ``bad`` request reads nothing: all its words are errors, and their data, here 0, mean nothing. Otherwise ``error``
    marks exactly the words that the slave answered with SLVERR or DECERR; their data are what the slave gave.

    Parameters
    ----------
    address, count, bad : the request, counted in words
    memory : the data that the slave gives for a word address
    response : its AXI response
    """
    if bad:
        return [(0, True)] * count
    return [(memory(word), is_error(response(word))) for word in range(address, address + count)]
