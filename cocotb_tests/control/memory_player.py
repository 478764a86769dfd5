"""Memory and scratchpad behind an engine's ports: random latency, stalls, words that fail, a window."""

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from cocotb_tests.lib import stalls
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.signals import child
from cocotb_tests.lib.stream import StreamSink, StreamSource
from rtl.config import AcceleratorConfig

__all__ = ["Delay", "MemoryPlayer", "Ports", "ScratchPlayer", "config_of"]


def config_of(tables: Mapping[str, Mapping[str, Any]]) -> AcceleratorConfig:
    """What `AcceleratorConfig.to_dict` gave."""
    defaults = AcceleratorConfig()
    return AcceleratorConfig(**{name: type(getattr(defaults, name))(**table) for name, table in tables.items()})


class Ports:
    """Makes sinks and sources of a design's streams, with its shapes, all with one stall pattern."""

    def __init__(self, dut: Any, members: Any, stall: str) -> None:
        self.dut, self.members, self.stall = dut, members, stall

    def shape(self, name: str) -> Any:
        """Payload of a stream."""
        return self.members[name].signature.members["payload"].shape

    def sink(self, name: str) -> StreamSink:
        return StreamSink(self.dut, name, shape=self.shape(name), stall=stalls.named(self.stall, name))

    def source(self, name: str) -> StreamSource:
        return StreamSource(self.dut, name, shape=self.shape(name), stall=stalls.named(self.stall, name))


class Delay:
    """Things that come back in order, each at least a random number of cycles after it was put in."""

    def __init__(self, draw: random.Random, most: int) -> None:
        self.draw, self.most = draw, most
        self.items: deque[tuple[int, Any]] = deque()

    def put(self, cycle: int, item: Any) -> None:
        self.items.append((cycle + self.draw.randint(0, self.most), item))

    def due(self, cycle: int) -> list[Any]:
        """What has waited long enough, and nothing before it has not."""
        out = []
        while self.items and self.items[0][0] <= cycle:
            out.append(self.items.popleft()[1])
        return out


class MemoryPlayer:
    """Content by bytes behind ``o_read``, ``i_read``, ``o_write``, ``o_word``, ``i_written``; drives ``outside``.

    Parameters
    ----------
    ports : of the design
    size : bytes; the window ends there
    latency : the most cycles of an answer
    """

    def __init__(self, ports: Ports, size: int, draw: random.Random, *, latency: int = 0) -> None:
        self.content = bytearray(size)
        self.bad: set[int] = set()  # words that fail
        self.requests: list[tuple[str, int, int]] = []
        self._outside = child(ports.dut, "outside")
        self._outside.value = 0
        self.word_bytes = ports.shape("o_word")["strb"].shape
        self.read, self.words = ports.sink("o_read"), ports.source("i_read")
        self.write, self.word, self.written = ports.sink("o_write"), ports.sink("o_word"), ports.source("i_written")
        self.reads, self.answers = Delay(draw, latency), Delay(draw, latency)
        self._asked: deque[list[Any]] = deque()  # address, words left, outside, failed
        self._came: deque[Any] = deque()
        Engine.of(ports.dut.clk).attach(self)

    def _note(self, kind: str, request: Any) -> bool:
        """Whether a request lies outside the window."""
        assert request["count"] > 0 and not request["bad"]
        self.requests.append((kind, request["address"], request["count"]))
        outside = (request["address"] + request["count"]) * self.word_bytes > len(self.content)
        if outside:
            self._outside.value = 1
        return outside

    def edge(self, cycle: int) -> None:
        """Take requests and words, give words and answers."""
        for request in self.read.take_all():
            outside = self._note("read", request)
            self.reads.put(cycle, (request["address"], request["count"], outside))
        for address, count, outside in self.reads.due(cycle):
            for at in range(address, address + count):
                word = self.content[at * self.word_bytes : (at + 1) * self.word_bytes]
                error = outside or at in self.bad
                self.words.send_nowait([{"data": int.from_bytes(word, "little"), "error": int(error)}])
        for request in self.write.take_all():
            self._asked.append([request["address"], request["count"], self._note("write", request), False])
        self._came.extend(self.word.take_all())
        while self._asked and self._came:
            entry, word = self._asked[0], self._came.popleft()
            entry[3] |= entry[2] or entry[0] in self.bad
            if not entry[2] and entry[0] not in self.bad:
                self._put(entry[0], int(word["data"]), int(word["strb"]))
            entry[0], entry[1] = entry[0] + 1, entry[1] - 1
            if entry[1] == 0:
                self.answers.put(cycle, int(self._asked.popleft()[3]))
        self.written.send_nowait(self.answers.due(cycle))

    def _put(self, at: int, value: int, strobes: int) -> None:
        content = value.to_bytes(self.word_bytes, "little")
        for n in range(self.word_bytes):
            if strobes >> n & 1:
                self.content[at * self.word_bytes + n] = content[n]

    def clear(self) -> None:
        """Forget all that is under way."""
        for queue in (self.reads.items, self.answers.items, self._asked, self._came):
            queue.clear()
        self.requests.clear()
        self._outside.value = 0

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        queues = (self.reads.items, self.answers.items, self._asked, self._came)
        return not any(queues) and self.words.idle and self.written.idle


class ScratchPlayer:
    """Words of 32-bit elements behind ``o_scratch_read``, ``i_scratch_read``, and ``o_scratch_write`` if there is one.

    Magnitudes are kept by row. An access behind the end is a failure of the test.
    """

    def __init__(self, ports: Ports, words: int, lanes: int, draw: random.Random, *, latency: int = 0) -> None:
        self.words = np.zeros((words, lanes), np.int64)
        self.magnitudes: dict[int, int] = {}
        child(ports.dut, "scratch_outside").value = 0
        self.read, self.data = ports.sink("o_scratch_read"), ports.source("i_scratch_read")
        self.write = self.magnitude = None
        if "o_scratch_write" in ports.members:
            self.write, self.magnitude = ports.sink("o_scratch_write"), ports.sink("o_magnitude")
        self.reads = Delay(draw, latency)
        Engine.of(ports.dut.clk).attach(self)

    def edge(self, cycle: int) -> None:
        """Take requests and words, give words."""
        if self.write is not None:
            for write in self.write.take_all():
                for lane in range(self.words.shape[1]):
                    if write["mask"] >> lane & 1:
                        self.words[write["address"], lane] = write["data"][lane]
            for put in self.magnitude.take_all():
                assert put["slot"] == 0
                before = 0 if put["first"] else self.magnitudes[put["row"]]
                self.magnitudes[put["row"]] = max(before, put["magnitude"])
        for request in self.read.take_all():
            self.reads.put(cycle, [int(value) for value in self.words[request["address"]]])
        self.data.send_nowait([{"data": values} for values in self.reads.due(cycle)])

    def clear(self) -> None:
        """Forget all that is under way."""
        self.reads.items.clear()

    def row(self, address: int, k: int) -> np.ndarray:
        """A row's elements."""
        return self.words[address:].reshape(-1)[:k].copy()
