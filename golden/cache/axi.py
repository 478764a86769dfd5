"""AXI4 bursts of a request: how words of the bus become INCR bursts that never cross 4 KiB."""

__all__ = ["BOUNDARY_BYTES", "DECERR", "OKAY", "SLVERR", "bursts", "is_error"]

#: no burst crosses a multiple of this byte address (AMBA AXI, A3.4.1)
BOUNDARY_BYTES = 4096
OKAY, SLVERR, DECERR = 0, 2, 3


def bursts(address: int, count: int, *, max_burst: int, word_bytes: int) -> list[tuple[int, int]]:
    """Bursts of ``count`` words from word ``address`` on, as ``(address, beats)``.

    Each is as long as ``max_burst``, the 4 KiB boundary and the rest of the request allow.
    """
    page = BOUNDARY_BYTES // word_bytes
    found = []
    while count:
        beats = min(count, max_burst, page - address % page)
        found.append((address, beats))
        address, count = address + beats, count - beats
    return found


def is_error(response: int) -> bool:
    """Whether a response is SLVERR or DECERR; EXOKAY counts as OKAY."""
    return response >= SLVERR
