"""An AXI4 memory that answers in any order that the rules allow, with stalls and errors."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from cocotb_tests.lib.axi import CHANNELS, Channel
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.signals import child
from golden.cache.axi import OKAY, is_error
from golden.cache.axi_writer import merge

__all__ = ["AxiMemory"]


class AxiMemory:
    """Drives the memory's side of a port.

    Parameters
    ----------
    dut, prefix : the design and what its signals' names begin with, such as ``axi__``
    word_bytes : bytes of a word
    channels : names of those that there are
    latency : cycles from an address, or the last word, to the first word, or the answer; at least 1
    shuffle : answers of different ids come mixed, beat by beat, at random; None: in the order of the addresses
    stalls : per channel pauses of the memory's side, see `cocotb_tests.lib.stalls`
    response : AXI response of a word that is read, or of the burst written that begins there

    Attributes
    ----------
    words : word address to data; missing ones have a value of their own, see `read`
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        *,
        word_bytes: int,
        channels: tuple[str, ...] = tuple(CHANNELS),
        latency: int = 1,
        shuffle: random.Random | None = None,
        stalls: dict[str, Iterator[bool] | None] | None = None,
        response: Callable[[int], int] = lambda word: OKAY,
    ) -> None:
        self.engine = Engine.of(dut.clk)
        self.word_bytes, self.latency, self.shuffle, self.response = word_bytes, latency, shuffle, response
        self.words: dict[int, int] = {}
        self._stalls = stalls or {}
        self._channels = {name: Channel(dut, prefix, name) for name in channels}
        self._ready = {name: child(dut, f"{prefix}{name}ready") for name in channels if name in ("ar", "aw", "w")}
        self._valid = {name: child(dut, f"{prefix}{name}valid") for name in channels if name in ("r", "b")}
        self._drive = {name: [child(dut, f"{prefix}{name}{f}") for f in CHANNELS[name]] for name in self._valid}
        self.clear()
        self.engine.attach(self)

    def read(self, word: int) -> int:
        """The data of a word."""
        width = 8 * self.word_bytes
        return self.words.get(word, random.Random(word).getrandbits(width))

    def clear(self) -> None:
        """Forget what is under way; the words stay."""
        for channel in self._channels.values():
            channel.clear()
        # Per id: the cycle from which on an answer may come, and its payload.
        self._answers: dict[str, dict[int, deque[tuple[int, tuple[int, ...]]]]] = {name: {} for name in self._valid}
        self._order: dict[str, deque[int]] = {name: deque() for name in self._valid}  # ids of the answers
        self._offering = dict.fromkeys(self._valid, False)
        self._addresses: deque[dict[str, int]] = deque()
        self._sent: deque[list[tuple[int, int]]] = deque([[]])
        for signal in (*self._ready.values(), *self._valid.values()):
            signal.value = 0

    def edge(self, cycle: int) -> None:
        """Take and give one transfer on each channel."""
        for name, channel in self._channels.items():
            payload = channel.sample()
            if payload is not None:
                if name in self._valid:
                    self._offering[name] = False
                else:
                    getattr(self, f"_{name}")(cycle, payload)
        for name, ready in self._ready.items():
            stall = self._stalls.get(name)
            ready.value = int(stall is None or not next(stall))
        for name in self._valid:
            if not self._offering[name]:
                self._offer(cycle, name)

    def _offer(self, cycle: int, name: str) -> None:
        stall = self._stalls.get(name)
        answers = self._answers[name]
        if self.shuffle is None:
            ids = list(self._order[name])[:1]
        else:
            ids = [port for port, queue in answers.items() if queue]
        ids = [port for port in ids if answers[port][0][0] <= cycle]
        if ids and not (stall is not None and next(stall)):
            port = ids[0] if self.shuffle is None else self.shuffle.choice(ids)
            for signal, value in zip(self._drive[name], answers[port].popleft()[1], strict=True):
                signal.value = value
            self._order[name].remove(port)
            self._offering[name] = True
        self._valid[name].value = int(self._offering[name])

    def _answer(self, name: str, cycle: int, port: int, payload: tuple[int, ...]) -> None:
        self._answers[name].setdefault(port, deque()).append((cycle + self.latency - 1, payload))
        self._order[name].append(port)

    def _ar(self, cycle: int, payload: dict[str, int]) -> None:
        first, port = payload["addr"] // self.word_bytes, payload["id"]
        for beat in range(payload["len"] + 1):
            word = first + beat
            last = int(beat == payload["len"])
            self._answer("r", cycle, port, (port, self.read(word), self.response(word), last))

    def _aw(self, cycle: int, payload: dict[str, int]) -> None:
        self._addresses.append(payload)
        self._write(cycle)

    def _w(self, cycle: int, payload: dict[str, int]) -> None:
        self._sent[-1].append((payload["data"], payload["strb"]))
        if payload["last"]:
            self._sent.append([])
            self._write(cycle)

    def _write(self, cycle: int) -> None:
        while self._addresses and len(self._sent) > 1:
            payload, words = self._addresses.popleft(), self._sent.popleft()
            first = payload["addr"] // self.word_bytes
            response = self.response(first)
            if not is_error(response):
                for word, (data, strobe) in enumerate(words, first):
                    self.words[word] = merge(self.read(word), data, strobe, word_bytes=self.word_bytes)
            self._answer("b", cycle, payload["id"], (payload["id"], response))
