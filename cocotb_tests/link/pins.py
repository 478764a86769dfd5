"""Bytes of a TCP socket on the UART pins of a simulated design: programs connect to it as to a board's serial port."""

import select
import socket
from collections.abc import Callable, Iterable
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, Timer

__all__ = ["SocketLine", "drive_byte", "sample_byte"]

_BITS = 10

#: What becomes of a byte on the line: ``(to_design, byte)`` gives the bytes that arrive instead of it.
Alter = Callable[[bool, int], Iterable[int]]


async def drive_byte(pin: Any, byte: int, bit_ps: int, *, stop: int = 1) -> None:
    """Send a byte to a pin, with this stop bit."""
    bits = byte << 1 | stop << _BITS - 1
    n = 0
    while n < _BITS:
        level, start = bits >> n & 1, n
        while n < _BITS and bits >> n & 1 == level:
            n += 1
        pin.value = level
        await Timer((n - start) * bit_ps, "step")


async def sample_byte(pin: Any, bit_ps: int) -> int:
    """Wait for a byte from a pin, up to the middle of its stop bit."""
    await FallingEdge(pin)
    await Timer(bit_ps // 2, "step")
    assert int(pin.value) == 0, "the start bit is too short"
    byte = 0
    for n in range(_BITS - 2):
        await Timer(bit_ps, "step")
        byte |= int(pin.value) << n
    await Timer(bit_ps, "step")
    assert int(pin.value) == 1, "the stop bit is 0"
    return byte


class SocketLine:
    """A listening socket, one connection after the other, and the two pins of a UART.

    Start `run` in a test, and give ``url`` to `fpga.client.Client` in a thread or another process. A simulation takes
    much longer for a frame than a board does: give the client time.

    Work is per byte. While nobody sends, the socket is looked at once in ``poll_bits`` bits; after ``idle_polls`` times
    in vain the simulation sleeps a millisecond each time, for the other program to get the processor.

    Parameters
    ----------
    rx, tx : pins of the design
    bit_ps : time of a bit, in steps of the simulator (picoseconds)
    port : of the socket; any free one by default
    alter : spoils bytes, see `Alter`
    """

    def __init__(
        self,
        rx: Any,
        tx: Any,
        *,
        bit_ps: int,
        port: int = 0,
        alter: Alter | None = None,
        poll_bits: int = 100,
        idle_polls: int = 200,
    ) -> None:
        self._rx, self._tx, self._bit = rx, tx, bit_ps
        self._alter: Alter = alter if alter is not None else lambda to_design, byte: (byte,)
        self._poll, self._idle_polls = poll_bits, idle_polls
        self._idle = 0
        self._peer: socket.socket | None = None
        self._listener = socket.create_server(("localhost", port))
        self._listener.setblocking(False)
        rx.value = 1

    @property
    def url(self) -> str:
        """What `fpga.client.Client` takes as port."""
        return f"socket://localhost:{self._listener.getsockname()[1]}"

    async def run(self) -> None:
        """Carry bytes, until the test ends."""
        sending = cocotb.start_soon(self._from_design())
        try:
            await self._to_design()
        finally:
            sending.cancel()
            self.close()

    def close(self) -> None:
        """End the connection and listen no more."""
        for end in (self._peer, self._listener):
            if end is not None:
                end.close()
        self._peer = None

    async def _to_design(self) -> None:
        while True:
            for byte in self._received():
                for arriving in self._alter(True, byte):
                    await drive_byte(self._rx, arriving, self._bit)
            await Timer(self._bit * (1 if self._idle == 0 else self._poll), "step")

    async def _from_design(self) -> None:
        while True:
            byte = await sample_byte(self._tx, self._bit)
            self._idle = 0
            if self._peer is not None:
                try:
                    self._peer.sendall(bytes(self._alter(False, byte)))
                except OSError:
                    self._hang_up()

    def _received(self) -> bytes:
        """What has come over the socket."""
        source = self._peer or self._listener
        waiting, _, _ = select.select([source], [], [], 0.001 if self._idle > self._idle_polls else 0)
        self._idle = 0 if waiting else self._idle + 1
        if not waiting:
            return b""
        if self._peer is None:
            self._peer, _ = self._listener.accept()
            return b""
        try:
            found = self._peer.recv(4096)
        except OSError:
            found = b""
        if not found:
            self._hang_up()
        return found

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = None
