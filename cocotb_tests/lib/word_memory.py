"""A memory behind the attention core's request and word streams: latency, a word a cycle, in order; counts cycles."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.shapes import codec
from cocotb_tests.lib.signals import bits_reader, child

__all__ = ["WordMemory"]


class WordMemory:
    """Takes every request at once and gives its words ``latency`` cycles later, when those before have been taken.

    ``cycles`` counts what each cycle was: ``busy`` (a word was taken), ``stalled`` (one was offered and not taken),
    ``waiting`` (all that was asked for is still under way), ``idle`` (nothing was asked for).

    Parameters
    ----------
    dut : the design, with streams ``o_request`` and ``i``
    shape : payload of ``o_request``
    read : the words of a request
    latency : cycles from a request to its first word, at least 1
    stall : pauses of the word stream, see `cocotb_tests.lib.stalls`
    """

    def __init__(
        self,
        dut: Any,
        shape: Any,
        read: Callable[[Any], Sequence[int]],
        *,
        latency: int = 1,
        stall: Iterator[bool] | None = None,
    ) -> None:
        self.engine = Engine.of(dut.clk)
        self.latency, self.stall, self._read = latency, stall, read
        _, self._decode = codec(shape, len(child(dut, "o_request__payload")))
        self._request = bits_reader(child(dut, "o_request__payload"))
        self._request_valid = bits_reader(child(dut, "o_request__valid"))
        self._request_ready = child(dut, "o_request__ready")
        self._word = child(dut, "i__payload")
        self._word_valid = child(dut, "i__valid")
        self._word_ready = bits_reader(child(dut, "i__ready"))
        self.cycles: Counter[str] = Counter()
        self.words = 0
        self._due: deque[tuple[int, Sequence[int]]] = deque()
        self._now: deque[int] = deque()
        self._offering = self._accepting = False
        self.clear()
        self.engine.attach(self)

    def edge(self, cycle: int) -> None:
        """Take a request, give a word."""
        if self._accepting and self._request_valid() == "1":
            self._due.append((cycle + self.latency - 1, self._read(self._decode(int(self._request(), 2)))))
        if not self._accepting:
            self._request_ready.value, self._accepting = 1, True
        if self._offering:
            taken = self._word_ready() == "1"
            self.cycles["busy" if taken else "stalled"] += 1
            if taken:
                self.words += 1
                self._now.popleft()
        else:
            taken = True
            self.cycles["waiting" if self._due or self._now else "idle"] += 1
        while self._due and self._due[0][0] <= cycle and len(self._now) < 2:
            self._now.extend(self._due.popleft()[1])
        if taken:
            if self._now and not (self.stall is not None and next(self.stall)):
                self._word.value = self._now[0]
                if not self._offering:
                    self._word_valid.value, self._offering = 1, True
            elif self._offering:
                self._word_valid.value, self._offering = 0, False

    def clear(self) -> None:
        """Forget all requests."""
        self._due.clear()
        self._now.clear()
        self._offering = self._accepting = False
        self._word_valid.value = 0
        self._request_ready.value = 0

    @property
    def idle(self) -> bool:
        """All words that were asked for have been taken."""
        return not self._due and not self._now
