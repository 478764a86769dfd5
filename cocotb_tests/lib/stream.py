"""Sources, sinks and monitors of Amaranth streams (`<name>__payload`, `<name>__valid`, `<name>__ready`).

Every agent also watches its stream and fails the test when the rules are broken: once valid, valid and payload hold
until the transfer; valid and ready are never X or Z outside reset; a payload that is valid has no X or Z.
"""

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from cocotb.handle import LogicObject
from cocotb.triggers import Event

from cocotb_tests.lib import stalls
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.shapes import codec
from cocotb_tests.lib.signals import bits_reader, child

__all__ = ["StreamMonitor", "StreamSink", "StreamSource", "stalls"]

DEFAULT_TIMEOUT = 100_000


class _StreamAgent:
    """The part common to all agents: signals, waiting with a timeout, the record of transfers."""

    def __init__(self, dut: Any, name: str, clock: LogicObject | None, shape: Any) -> None:
        self.name = name
        self.engine = Engine.of(clock if clock is not None else dut.clk)
        self.transfers: list[int] = []  # cycle number of each transfer since the last reset
        self._payload = child(dut, f"{name}__payload")
        self._valid = child(dut, f"{name}__valid")
        self._ready = child(dut, f"{name}__ready")
        self._width = len(self._payload)
        self._encode, self._decode = codec(shape, self._width)
        self._read_payload = bits_reader(self._payload)
        self._read_valid = bits_reader(self._valid)
        self._read_ready = bits_reader(self._ready)
        self._event: Event | None = None
        self._goal = 0
        self._deadline = 0
        self._timeout = DEFAULT_TIMEOUT

    def _fail(self, what: str) -> None:
        raise AssertionError(f"stream {self.name}, cycle {self.engine.cycle}: {what}")

    async def _wait(self, goal: int, timeout: int) -> None:
        """Wait until `goal` transfers have happened; fail after `timeout` cycles without any transfer."""
        if len(self.transfers) >= goal:
            return
        if self._event is not None:
            raise RuntimeError(f"stream {self.name} is awaited by two coroutines at once")
        self._goal, self._timeout = goal, timeout
        self._deadline = self.engine.cycle + timeout
        self._event = Event()
        try:
            await self._event.wait()
        finally:
            self._event = None

    def _progress(self, cycle: int, transferred: bool) -> None:
        """Wake whoever waits, or notice that nothing moves; called in each cycle while someone waits."""
        if transferred:
            self._deadline = cycle + self._timeout
            if len(self.transfers) >= self._goal:
                self._event.set()
        elif cycle >= self._deadline:
            self._fail(
                f"no transfer for {self._timeout} cycles, {len(self.transfers)} of {self._goal} done "
                f"(valid={self._read_valid()} ready={self._read_ready()})"
            )

    def _cancel_wait(self) -> None:
        if self._event is not None:
            self._goal = 0
            self._event.set()


class StreamSource(_StreamAgent):
    """Drives words into a stream of the design; valid stays high as long as words are queued and no stall is asked for.

    While valid is low the payload carries random bits, so that a design that looks at it anyway is found out.

    Parameters
    ----------
    dut, name : the design and the stream's name, such as `i` or `i_row`
    clock : clock signal, `dut.clk` by default
    shape : payload shape for `send`, integers without it
    stall : iterator of booleans, see `cocotb_tests.lib.stalls`; None never pauses
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        clock: LogicObject | None = None,
        shape: Any = None,
        stall: Iterator[bool] | None = None,
    ) -> None:
        super().__init__(dut, name, clock, shape)
        self.stall = stall
        self._queue: deque[int] = deque()
        self._offering = False
        self._queued = 0
        self._junk = random.Random(name)
        self._valid.value = 0
        self._payload.value = self._junk.getrandbits(self._width)
        self.engine.attach(self)

    def send_nowait(self, values: Iterable[Any]) -> None:
        """Queue words and return at once."""
        encode, limit, count = self._encode, 1 << self._width, len(self._queue)
        for value in values:
            bits = encode(value)
            if not 0 <= bits < limit:
                raise ValueError(f"stream {self.name} carries {self._width} bits, {value!r} does not fit")
            self._queue.append(bits)
        self._queued += len(self._queue) - count

    async def send(self, values: Iterable[Any], timeout: int = DEFAULT_TIMEOUT) -> None:
        """Queue words and wait until the design has taken all; fail after `timeout` cycles without a transfer."""
        self.send_nowait(values)
        await self._wait(self._queued, timeout)

    @property
    def idle(self) -> bool:
        """True when every queued word has been taken."""
        return not self._queue

    def edge(self, cycle: int) -> None:
        ready = self._read_ready()
        if ready != "1" and ready != "0":
            self._fail(f"ready is {ready}")
        transferred = self._offering and ready == "1"
        if transferred:
            self._queue.popleft()
            self.transfers.append(cycle)
        if transferred or not self._offering:
            if self._queue and not (self.stall is not None and next(self.stall)):
                self._payload.value = self._queue[0]
                if not self._offering:
                    self._valid.value = 1
                    self._offering = True
            elif self._offering:
                self._valid.value = 0
                self._payload.value = self._junk.getrandbits(self._width)
                self._offering = False
        if self._event is not None:
            self._progress(cycle, transferred)

    def clear(self) -> None:
        self._queue.clear()
        self.transfers.clear()
        self._queued = 0
        self._offering = False
        self._valid.value = 0
        self._cancel_wait()


class _Receiver(_StreamAgent, ABC):
    """An agent that samples valid and payload."""

    def __init__(self, dut: Any, name: str, clock: LogicObject | None, shape: Any) -> None:
        super().__init__(dut, name, clock, shape)
        self._words: deque[int] = deque()
        self._held: str | None = None  # payload of a word that was offered and not taken in the cycle before
        self.engine.attach(self)

    def edge(self, cycle: int) -> None:
        valid = self._read_valid()
        transferred = False
        if valid == "1":
            text = self._read_payload()
            if self._held is not None and text != self._held:
                self._fail(f"payload changed from {self._held} to {text} before its transfer")
            ready = self._is_ready()
            if ready:
                try:
                    word = int(text, 2)
                except ValueError:
                    word = -1
                if word < 0:
                    self._fail(f"payload is {text}")
                self._words.append(word)
                self.transfers.append(cycle)
                self._held = None
                transferred = True
            elif self._held is None:
                if not text.isdigit():
                    self._fail(f"payload is {text}")
                self._held = text
        elif valid != "0":
            self._fail(f"valid is {valid}")
        elif self._held is not None:
            self._fail("valid fell before the transfer")
        self._drive()
        if self._event is not None:
            self._progress(cycle, transferred)

    @abstractmethod
    def _is_ready(self) -> bool:
        """Tell whether a word that is valid in this cycle is taken."""

    def _drive(self) -> None:
        """Choose ready for the next cycle; a monitor drives nothing."""

    def clear(self) -> None:
        self._words.clear()
        self.transfers.clear()
        self._held = None
        self._cancel_wait()

    async def recv(self, count: int, timeout: int = DEFAULT_TIMEOUT) -> list[Any]:
        """Wait for `count` words and return them; fail after `timeout` cycles without a transfer."""
        missing = count - len(self._words)
        if missing > 0:
            await self._wait(len(self.transfers) + missing, timeout)
        decode, words = self._decode, self._words
        return [decode(words.popleft()) for _ in range(min(count, len(words)))]

    def take_all(self) -> list[Any]:
        """Return what has arrived and was not returned yet."""
        words = [self._decode(word) for word in self._words]
        self._words.clear()
        return words

    def empty(self) -> bool:
        """True when every word that arrived has been returned."""
        return not self._words

    async def expect_nothing(self, cycles: int = 50) -> None:
        """Fail unless the stream is empty and stays so for `cycles` cycles."""
        await self.engine.cycles(cycles)
        if self._words:
            self._fail(f"{len(self._words)} words more than expected, the first is {self._words[0]:#x}")


class StreamSink(_Receiver):
    """Takes words from a stream of the design; ready stays high unless a stall is asked for.

    Parameters are those of `StreamSource`; `recv` returns values of `shape`, or integers.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        clock: LogicObject | None = None,
        shape: Any = None,
        stall: Iterator[bool] | None = None,
    ) -> None:
        super().__init__(dut, name, clock, shape)
        self.stall = stall
        self._accepting = False
        self._ready.value = 0

    def _is_ready(self) -> bool:
        return self._accepting

    def _drive(self) -> None:
        accepting = self.stall is None or not next(self.stall)
        if accepting is not self._accepting:
            self._ready.value = int(accepting)
            self._accepting = accepting

    def clear(self) -> None:
        super().clear()
        self._accepting = False
        self._ready.value = 0


class StreamMonitor(_Receiver):
    """Watches a stream that other parts drive; records its words like a sink."""

    def __init__(self, dut: Any, name: str, clock: LogicObject | None = None, shape: Any = None) -> None:
        super().__init__(dut, name, clock, shape)

    def _is_ready(self) -> bool:
        ready = self._read_ready()
        if ready != "1" and ready != "0":
            self._fail(f"ready is {ready}")
        return ready == "1"
