"""What a write request changes in memory, and its answer."""

from collections.abc import Callable, MutableMapping, Sequence

from golden.cache.axi import bursts, is_error

__all__ = ["merge", "write"]


def merge(old: int, new: int, strobe: int, *, word_bytes: int) -> int:
    """A word whose bytes come from ``new`` where ``strobe`` has a 1 (bit 0: lowest byte), else from ``old``."""
    mask = sum(0xFF << 8 * byte for byte in range(word_bytes) if strobe >> byte & 1)
    return (old & ~mask) | (new & mask)


def write(
    memory: MutableMapping[int, int],
    address: int,
    words: Sequence[tuple[int, int]],
    bad: bool,
    *,
    max_burst: int,
    word_bytes: int,
    response: Callable[[int], int],
) -> bool:
    """Change ``memory`` as a request does; returns ``error``.

    A ``bad`` request changes nothing and is an error; otherwise it is one when a burst of it was answered so. What a
    burst with an error has changed is the slave's matter: here it changes nothing.

    Parameters
    ----------
    memory : word address to data; missing words are zero
    address, words, bad : the request; words are ``(data, strobe)``
    response : AXI response of the burst that begins at a word address
    """
    if bad:
        return True
    error, left = False, list(words)
    for start, beats in bursts(address, len(words), max_burst=max_burst, word_bytes=word_bytes):
        part, left = left[:beats], left[beats:]
        if is_error(response(start)):
            error = True
            continue
        for word, (data, strobe) in enumerate(part, start):
            memory[word] = merge(memory.get(word, 0), data, strobe, word_bytes=word_bytes)
    return error
