"""Frames between host and HostLink on a serial line, and what the link answers to the bytes that it receives.

All fields are little endian. A frame is a row of 32-bit words: header, address (requests alone), data, CRC-32 of all
bytes before it. docs/blocks/link-host_link.md has the layout as tables.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "FIXED",
    "MAX_WORDS",
    "REPLY_BYTES",
    "REPLY_SYNC",
    "REQUEST_BYTES",
    "REQUEST_SYNC",
    "WITH_DATA",
    "WORD_BYTES",
    "Bus",
    "LinkModel",
    "Operation",
    "Reply",
    "Request",
    "Status",
    "decode_reply",
    "encode_reply",
    "encode_request",
]

REQUEST_SYNC, REPLY_SYNC = 0xA5, 0x5A
WORD_BYTES = 4
#: words of the longest frame; a link may have less
MAX_WORDS = 256
#: bytes of a request or reply without data
REQUEST_BYTES, REPLY_BYTES = 12, 8
#: bit of the operation: all words of the frame go to the same address
FIXED = 0x80
#: bit of the status: a reply has data
WITH_DATA = 0x80


class Operation(IntEnum):
    """What a request asks for."""

    READ = 1
    WRITE = 2
    #: forget the last sequence number, tell the number of words that a frame may have
    HELLO = 3


class Status(IntEnum):
    """What became of a request."""

    OK = 0
    #: the bus answered with an error
    ERROR = 1
    #: the bus did not answer
    TIMEOUT = 2
    #: an operation, address or number of words that the link does not know
    UNSUPPORTED = 3
    #: no whole and right request came: send it again
    REPEAT = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """A frame to the link: ``words`` words from byte ``address`` on; a write carries as many in ``data``."""

    operation: int
    sequence: int
    words: int = 1
    address: int = 0
    data: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A frame from the link. ``last`` is the index of the last word tried, which is the one with the error, if any."""

    status: int
    sequence: int
    last: int = 0
    data: bytes = b""


#: A bus: ``(word address, write, data)`` gives ``(data, error)``, or None if there is no result in time.
Bus = Callable[[int, bool, int], tuple[int, bool] | None]


def _with_crc(frame: bytes) -> bytes:
    return frame + struct.pack("<I", zlib.crc32(frame))


def encode_request(request: Request) -> bytes:
    """The bytes of a request."""
    fields = (REQUEST_SYNC, request.operation, request.sequence, request.words - 1, request.address)
    return _with_crc(struct.pack("<BBBBI", *fields) + request.data)


def encode_reply(reply: Reply) -> bytes:
    """The bytes of a reply."""
    status = reply.status | (WITH_DATA if reply.data else 0)
    return _with_crc(struct.pack("<BBBB", REPLY_SYNC, status, reply.sequence, reply.last) + reply.data)


def decode_reply(received: bytes) -> tuple[Reply | None, int]:
    """The reply at the start of ``received``, and how many bytes it has there, with garbage before it.

    Without a reply the number says how many bytes have to come until there may be one; 0 says that what is there is no
    reply, since its CRC is wrong.
    """
    start = received.find(REPLY_SYNC)
    frame = received[start:] if start >= 0 else b""
    if len(frame) < REPLY_BYTES:
        return None, REPLY_BYTES - len(frame)
    _, status, sequence, last = frame[:4]
    end = REPLY_BYTES + (WORD_BYTES * (last + 1) if status & WITH_DATA else 0)
    if len(frame) < end:
        return None, end - len(frame)
    frame = frame[:end]
    if _with_crc(frame[:-4]) != frame:
        return None, 0
    reply = Reply(status=status & ~WITH_DATA, sequence=sequence, last=last, data=frame[4:-4])
    return reply, start + end


class LinkModel:
    """What a HostLink with a bus answers."""

    def __init__(self, bus: Bus, *, max_words: int = MAX_WORDS) -> None:
        self._bus, self._max_words = bus, max_words
        self._sequence = 0
        self._done: Reply | None = None  # what the last accesses gave

    def answer(self, burst: Sequence[int | None]) -> bytes:
        """The bytes that the link sends to a burst of bytes; None is one with a wrong stop bit.

        A burst has no pause in it that is long enough to end a frame, and one after it. One frame is answered; if more
        bytes come than it has, the link asks to repeat what they were.
        """
        start = next((n for n, byte in enumerate(burst) if byte == REQUEST_SYNC), len(burst))
        frame = list(burst[start:])
        if not frame:
            return b""
        sound = frame[: frame.index(None)] if None in frame else frame
        received = bytes(byte for byte in sound if byte is not None)
        if len(received) >= 4:
            self._sequence = received[2]
            is_write = received[1] & ~FIXED == Operation.WRITE
            end = REQUEST_BYTES + (WORD_BYTES * (received[3] + 1) if is_write else 0)
            if len(received) >= end and _with_crc(received[: end - 4]) == received[:end]:
                reply = encode_reply(self._carry_out(received[:end]))
                return reply + (self._repeat() if len(frame) > end else b"")
        return self._repeat()

    def _repeat(self) -> bytes:
        return encode_reply(Reply(status=Status.REPEAT, sequence=self._sequence))

    def _carry_out(self, frame: bytes) -> Reply:
        _, operation, sequence, last, address = struct.unpack_from("<BBBBI", frame)
        if operation == Operation.HELLO:
            self._done = None
            return Reply(status=Status.OK, sequence=sequence, last=self._max_words - 1)
        is_access = operation & ~FIXED in (Operation.READ, Operation.WRITE)
        if not is_access or last >= self._max_words or address % WORD_BYTES:
            return Reply(status=Status.UNSUPPORTED, sequence=sequence)
        if self._done is None or self._done.sequence != sequence:
            self._done = self._access(operation, sequence, last, address // WORD_BYTES, frame[8:-4])
        return self._done

    def _access(self, operation: int, sequence: int, last: int, address: int, data: bytes) -> Reply:
        is_write = operation & ~FIXED == Operation.WRITE
        words = struct.unpack(f"<{last + 1}I", data) if is_write else (0,) * (last + 1)
        read = b""
        for index, word in enumerate(words):
            place = address if operation & FIXED else (address + index) % (1 << 30)
            result = self._bus(place, is_write, word)
            if result is None or result[1]:
                status = Status.TIMEOUT if result is None else Status.ERROR
                return Reply(status=status, sequence=sequence, last=index)
            if not is_write:
                read += struct.pack("<I", result[0])
        return Reply(status=Status.OK, sequence=sequence, last=last, data=read)
