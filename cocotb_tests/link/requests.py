"""Requests to the link, right and spoiled."""

import random

from cocotb_tests.link.bus import COUNTER, FAULTY
from golden.link.host_link import FIXED, REQUEST_SYNC, WORD_BYTES, Operation, Request, encode_request

__all__ = ["corner_requests", "random_request", "spoiled"]

TOP = (1 << 32) - WORD_BYTES


def _write(sequence: int, address: int, words: list[int], *, fixed: int = 0) -> Request:
    data = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)
    return Request(operation=Operation.WRITE | fixed, sequence=sequence, words=len(words), address=address, data=data)


def _read(sequence: int, address: int, words: int, *, fixed: int = 0) -> Request:
    return Request(operation=Operation.READ | fixed, sequence=sequence, words=words, address=address)


def corner_requests(max_words: int) -> list[Request]:
    """Every operation, status and end of a range; sequence numbers that repeat and that wrap."""
    n, counter, faulty = max_words, WORD_BYTES * COUNTER, WORD_BYTES * FAULTY
    every = [~(k * 0x01020304) & 0xFFFFFFFF for k in range(n)]
    hello = Request(operation=Operation.HELLO, sequence=0)
    return [
        _read(0, 0, 1),  # before any HELLO
        hello,
        _write(1, 0x100, every),
        _read(2, 0x100, n),
        _read(2, 0x200, n),  # answered as the one before
        _write(2, 0x100, [5]),  # too
        _read(1, 0x100, 1),  # only the last number counts
        _read(3, counter, n, fixed=FIXED),
        _read(3, counter, n, fixed=FIXED),
        hello,
        _read(3, counter, 1),  # new after HELLO
        _write(4, counter, every, fixed=FIXED),
        _read(5, counter - WORD_BYTES * (n - 1), n),
        *(request for k in {0, n // 2, n - 1} for request in (_read((6 + k) % 250, faulty - WORD_BYTES * k, n),) * 2),
        _write(255, faulty - WORD_BYTES * (n // 2), every),
        _write(255, faulty - WORD_BYTES * (n // 2), every),
        _read(0, TOP - WORD_BYTES * (n // 2), n),
        *(_read(1, address, 1) for address in (1, 2, 0x103)),
        _write(1, 0x102, [7]),
        *(Request(operation=operation, sequence=9) for operation in (0, 4, 0x7F, FIXED, FIXED | Operation.HELLO)),
        *([_read(9, 0, n + 1), _write(9, 0x300, [*every, 1]), _read(9, 0, 256)] if n < 256 else []),
        _read(0, 0, n),  # answered as the last one that was carried out
        _read(9, 0x0, n),
    ]


def random_request(draw: random.Random, sequence: int, max_words: int) -> Request:
    """One that is carried out, near the places that a `WordBus` has."""
    words = draw.choice([1, max_words, draw.randint(1, max_words)])
    address = WORD_BYTES * draw.choice([COUNTER, FAULTY - max_words, draw.randint(0, 8), draw.randint(0, 1 << 29)])
    fixed = draw.choice([0, 0, FIXED])
    if draw.random() < 0.5:
        return _read(sequence, address, words, fixed=fixed)
    return _write(sequence, address, [draw.getrandbits(32) for _ in range(words)], fixed=fixed)


def spoiled(draw: random.Random, request: Request) -> list[int | None]:
    """The bytes of a request with something wrong, None being a byte with a wrong stop bit."""
    frame: list[int | None] = [*encode_request(request)]
    place = draw.randrange(len(frame))
    match draw.randrange(8):
        case 0:
            frame[place] = (frame[place] or 0) ^ 1 << draw.randrange(8)
        case 1:
            del frame[place]
        case 2:
            frame.insert(place, draw.choice([REQUEST_SYNC, draw.getrandbits(8)]))
        case 3:
            frame[place] = None
        case 4:
            frame = frame[: place + 1]
        case 5:
            frame += frame[: place + 1]
        case 6:
            frame = [*(byte for byte in draw.randbytes(5) if byte != REQUEST_SYNC), None, *frame]
        case 7:
            frame = [REQUEST_SYNC, *frame]
    return frame
