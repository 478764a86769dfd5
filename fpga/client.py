"""The host's end of the serial line: reads and writes words of a board, or of a simulation of one."""

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import serial
from numpy.typing import NDArray

from golden.errors import UserError
from golden.link.host_link import (
    FIXED,
    WORD_BYTES,
    Operation,
    Reply,
    Request,
    Status,
    decode_reply,
    encode_request,
)

__all__ = ["Client", "Errors", "LinkError"]

#: bytes that are awaited at once: the time limit holds for each of these pieces
_PIECE = 64
_ADDRESSES = 1 << 32


class LinkError(UserError):
    """The board, or the line to it, does not do what it was asked for."""


@dataclass
class Errors:
    """What went wrong on the line so far, and was put right if no error was raised."""

    #: replies with a wrong CRC
    crc: int = 0
    #: replies that did not come, or not all of them
    timeouts: int = 0
    #: requests that the link could not read
    repeats: int = 0
    #: requests sent again
    retries: int = 0


class Client:
    """A connection to a HostLink.

    Every call is carried out once, whatever is lost on the line, or raises `LinkError`.

    Parameters
    ----------
    port : str
        A serial port such as ``/dev/ttyUSB0``, or ``socket://localhost:PORT`` for a simulation.
    baud : int
        Bits in a second; a socket does without.
    timeout : float
        Seconds to wait for the next bytes of a reply.
    retries : int
        How often a request is sent again.
    """

    def __init__(self, port: str, *, baud: int = 3_000_000, timeout: float = 1.0, retries: int = 5) -> None:
        self.errors = Errors()
        self._name, self._retries = port, retries
        self._port = _open(port, baud, timeout)
        self._sequence = 0  # that of HELLO alone, so that no other reply is taken for its
        try:
            hello = self._send(Operation.HELLO, 0, 1)
        except LinkError:
            self.close()
            raise LinkError(
                f"no answer from {port!r} at {baud} baud; is the board on and loaded, and is this its baud rate?"
            ) from None
        #: words of the longest frame
        self.max_words = hello.last + 1

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the port."""
        self._port.close()

    def read(self, address: int, words: int, *, fixed: bool = False) -> NDArray[np.uint32]:
        """Read words from a byte address on, or all of them from this address when it is ``fixed``."""
        found = [
            np.frombuffer(self._ask(Operation.READ, place, count, fixed=fixed).data, "<u4")
            for place, _, count in self._frames(address, words, fixed)
        ]
        return np.concatenate(found or [np.zeros(0)]).astype(np.uint32)

    def write(self, address: int, words: NDArray[Any] | Sequence[int], *, fixed: bool = False) -> None:
        """Write words from a byte address on, or all of them to this address when it is ``fixed``."""
        values = np.asarray(words, np.uint32)
        data = values.astype("<u4").tobytes()
        for place, first, count in self._frames(address, len(values), fixed):
            part = data[WORD_BYTES * first : WORD_BYTES * (first + count)]
            self._ask(Operation.WRITE, place, count, part, fixed=fixed)

    def read_bytes(self, address: int, count: int) -> bytes:
        """Read bytes, a multiple of 4."""
        if count % WORD_BYTES:
            raise ValueError(f"count must be a multiple of {WORD_BYTES}, not {count!r}")
        return self.read(address, count // WORD_BYTES).astype("<u4").tobytes()

    def write_bytes(self, address: int, data: bytes) -> None:
        """Write bytes, a multiple of 4."""
        if len(data) % WORD_BYTES:
            raise ValueError(f"data must have a multiple of {WORD_BYTES} bytes, not {len(data)!r}")
        self.write(address, np.frombuffer(data, "<u4"))

    def _frames(self, address: int, words: int, fixed: bool) -> list[tuple[int, int, int]]:
        """Address, first word and number of words of each frame."""
        span = WORD_BYTES * (min(words, 1) if fixed else words)
        if address % WORD_BYTES or not 0 <= address <= _ADDRESSES - span:
            raise ValueError(f"address must be a multiple of {WORD_BYTES} below 2**32, not {address!r}")
        starts = range(0, words, self.max_words)
        return [(address + (0 if fixed else WORD_BYTES * n), n, min(self.max_words, words - n)) for n in starts]

    def _ask(self, operation: Operation, address: int, words: int, data: bytes = b"", *, fixed: bool = False) -> Reply:
        """Send a request with a new sequence number."""
        self._sequence = self._sequence % 255 + 1
        return self._send(operation, address, words, data, fixed=fixed)

    def _send(self, operation: Operation, address: int, words: int, data: bytes = b"", *, fixed: bool = False) -> Reply:
        """Send a request until its reply comes."""
        code = operation | (FIXED if fixed else 0)
        request = Request(operation=code, sequence=self._sequence, words=words, address=address, data=data)
        what = f"{operation.name.lower()} of {WORD_BYTES * words} bytes at 0x{address:08x}"
        try:
            for attempt in range(self._retries + 1):
                self.errors.retries += attempt > 0
                self._port.write(encode_request(request))
                reply = self._receive(request)
                if reply is not None:
                    break
            else:
                raise LinkError(f"no answer from {self._name!r} to a {what}, asked {self._retries + 1} times")
        except (OSError, serial.SerialException) as error:
            raise LinkError(f"lost {self._name!r} during a {what}: {error}") from None
        place = f"{operation.name.lower()} of address 0x{address + (0 if fixed else WORD_BYTES * reply.last):08x}"
        match reply.status:
            case Status.OK:
                return reply
            case Status.ERROR:
                raise LinkError(f"{place} failed: the board has nothing there")
            case Status.TIMEOUT:
                raise LinkError(f"{place} did not end: that part of the board hangs")
        raise LinkError(f"the link at {self._name!r} does not know a {what}: does it belong to another version?")

    def _receive(self, request: Request) -> Reply | None:
        """The reply to a request, or None if it has to be sent again."""
        received = b""
        while True:
            reply, count = decode_reply(received)
            if reply is None and count == 0:
                self.errors.crc += 1
                return None
            if reply is None:
                piece = self._port.read(min(count, _PIECE))
                received += piece
                if not piece:
                    self.errors.timeouts += 1
                    return None
            elif reply.status == Status.REPEAT:
                self.errors.repeats += 1
                return None
            elif reply.sequence == request.sequence:
                return reply
            else:  # a late one to an earlier request
                received = received[count:]


def _open(port: str, baud: int, timeout: float) -> Any:
    try:
        opened = serial.serial_for_url(port, baudrate=baud, timeout=timeout, write_timeout=timeout, exclusive=True)
    except (OSError, ValueError, serial.SerialException) as error:
        match getattr(error, "errno", None):
            case errno.ENOENT:
                reason = "there is no such port; is the board plugged in?"
            case errno.EACCES:
                reason = "permission denied; on Debian, 'sudo adduser $USER dialout' and a new login grant it"
            case errno.EBUSY | errno.EAGAIN:
                reason = "another program uses it"
            case _:
                reason = str(error)
        raise LinkError(f"cannot open {port!r}: {reason}") from None
    # Without this, adapters by FTDI hold replies back for 16 ms.
    with suppress(AttributeError, NotImplementedError, OSError, ValueError, serial.SerialException):
        opened.set_low_latency_mode(True)
    return opened
