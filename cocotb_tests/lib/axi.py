"""Checks the rules of AXI4 on the signals of a port, on both sides of it, and records its bursts."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.signals import bits_reader, child

__all__ = ["CHANNELS", "AxiChecker", "Channel"]

_ADDRESS = ("id", "addr", "len", "size", "burst")
#: the payload of each channel
CHANNELS = {
    "aw": _ADDRESS,
    "w": ("data", "strb", "last"),
    "b": ("id", "resp"),
    "ar": _ADDRESS,
    "r": ("id", "data", "resp", "last"),
}
_BOUNDARY = 4096
_INCR = 1


class Channel:
    """Samples one channel: what is transferred in this cycle. Valid and payload must hold until then."""

    def __init__(self, dut: Any, prefix: str, name: str) -> None:
        self.name, self.fields = name, CHANNELS[name]
        self._payload = [bits_reader(child(dut, f"{prefix}{name}{field}")) for field in self.fields]
        self._valid = bits_reader(child(dut, f"{prefix}{name}valid"))
        self._ready = bits_reader(child(dut, f"{prefix}{name}ready"))
        self._held: tuple[str, ...] | None = None
        self.fresh = True  # no cycle since reset

    def clear(self) -> None:
        self._held, self.fresh = None, True

    def sample(self) -> dict[str, int] | None:
        """The payload of a transfer, None if there is none."""
        valid, ready = self._valid(), self._ready()
        for what, value in (("valid", valid), ("ready", ready)):
            assert value in ("0", "1"), f"{self.name}{what} is {value}"
        assert valid == "0" or not self.fresh, f"{self.name}valid is 1 right after reset"
        self.fresh = False
        if valid == "0":
            assert self._held is None, f"{self.name}valid fell before the transfer"
            return None
        payload = tuple(read() for read in self._payload)
        for field, text in zip(self.fields, payload, strict=True):
            assert text.isdigit(), f"{self.name}{field} is {text}"
        assert self._held in (None, payload), f"{self.name}: payload changed from {self._held} to {payload}"
        self._held = payload if ready == "0" else None
        if ready == "0":
            return None
        return {field: int(text, 2) for field, text in zip(self.fields, payload, strict=True)}


class AxiChecker:
    """Watches a port and fails the test when a rule is broken.

    Rules: valid and payload hold until the transfer; nothing is X; INCR bursts of whole words, aligned, at most
    ``max_burst`` beats, never across 4 KiB; at most ``outstanding`` bursts of each direction under way; WLAST and
    RLAST at the last beat and only there; no answer that was not asked for, no B before the last W; no valid right
    after reset.

    Parameters
    ----------
    dut, prefix : the design and what its signals' names begin with, such as ``axi__``
    word_bytes : bytes of a word
    max_burst, outstanding : what the port promises
    channels : pairs of names that there are

    Attributes
    ----------
    reads, writes : bursts in the order of their addresses, as ``(id, word address, beats)``
    cycles : per channel the cycle numbers of its transfers
    most_under_way : the most bursts of reads and of writes that were under way at once
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        *,
        word_bytes: int,
        max_burst: int,
        outstanding: int,
        channels: tuple[str, ...] = tuple(CHANNELS),
    ) -> None:
        self.word_bytes, self.max_burst, self.outstanding = word_bytes, max_burst, outstanding
        self.engine = Engine.of(dut.clk)
        self._channels = [Channel(dut, prefix, name) for name in channels]
        self.clear()
        self.engine.attach(self)

    def clear(self) -> None:
        """Forget everything: a reset begins."""
        for channel in self._channels:
            channel.clear()
        self.reads: list[tuple[int, int, int]] = []
        self.writes: list[tuple[int, int, int]] = []
        self.cycles: dict[str, list[int]] = {name: [] for name in CHANNELS}
        self.most_under_way = {"ar": 0, "aw": 0}
        self._asked: dict[int, deque[list[int]]] = {}  # per id: beats left of each read
        self._addressed: deque[tuple[int, int]] = deque()  # id and beats of writes whose words have not all come
        self._sent: deque[int] = deque()  # beats of bursts of words that came before their address
        self._beats = 0  # of the burst of words that goes on
        self._written: dict[int, int] = {}  # per id: writes that are to be answered
        self._under_way = {"ar": 0, "aw": 0}

    def edge(self, cycle: int) -> None:
        """Check what is transferred at this edge."""
        try:
            for channel in self._channels:
                payload = channel.sample()
                if payload is not None:
                    self.cycles[channel.name].append(cycle)
                    getattr(self, f"_{channel.name}")(**payload)
        except AssertionError as error:
            raise AssertionError(f"AXI, cycle {cycle}: {error}") from None

    @property
    def idle(self) -> bool:
        """All that was asked for has been answered."""
        return not any(self._under_way.values()) and not self._beats and not self._sent

    def _address(self, channel: str, **fields: int) -> tuple[int, int, int]:
        address, beats = fields["addr"], fields["len"] + 1
        size = self.word_bytes.bit_length() - 1
        last = address + beats * self.word_bytes - 1
        assert fields["burst"] == _INCR, f"{channel}burst is {fields['burst']}"
        assert fields["size"] == size, f"{channel}size is {fields['size']}, not {size}"
        assert beats <= self.max_burst, f"{channel}: {beats} beats, at most {self.max_burst} are allowed"
        assert address % self.word_bytes == 0, f"{channel}addr {address:#x} is inside of a word"
        assert address // _BOUNDARY == last // _BOUNDARY, f"{channel}: {address:#x} to {last:#x} crosses 4 KiB"
        self._under_way[channel] += 1
        under_way = self._under_way[channel]
        assert under_way <= self.outstanding, f"{channel}: {under_way} bursts, at most {self.outstanding} are allowed"
        self.most_under_way[channel] = max(self.most_under_way[channel], under_way)
        return fields["id"], address // self.word_bytes, beats

    def _ar(self, **fields: int) -> None:
        burst = self._address("ar", **fields)
        self.reads.append(burst)
        self._asked.setdefault(burst[0], deque()).append([burst[2]])

    def _r(self, *, id: int, last: int, **fields: int) -> None:  # noqa: A002
        asked = self._asked.get(id)
        assert asked, f"r: nothing was asked for with id {id}"
        asked[0][0] -= 1
        assert last == (asked[0][0] == 0), f"rlast is {last}, {asked[0][0]} beats are left"
        if last:
            asked.popleft()
            self._under_way["ar"] -= 1

    def _aw(self, **fields: int) -> None:
        burst = self._address("aw", **fields)
        self.writes.append(burst)
        self._addressed.append((burst[0], burst[2]))
        assert not self._early or self._beats < burst[2], f"w: {self._beats} beats, {burst[2]} are to come"
        self._match()

    @property
    def _early(self) -> bool:
        """The burst of words that goes on is that of the address that came last."""
        return len(self._addressed) == 1 + len(self._sent)

    def _w(self, *, last: int, **fields: int) -> None:
        self._beats += 1
        if len(self._addressed) > len(self._sent):
            beats = self._addressed[len(self._sent)][1]
            assert last == (self._beats == beats), f"wlast is {last} at beat {self._beats} of {beats}"
        if last:
            self._sent.append(self._beats)
            self._beats = 0
            self._match()

    def _match(self) -> None:
        while self._sent and self._addressed:
            (port, beats), sent = self._addressed.popleft(), self._sent.popleft()
            assert beats == sent, f"w: {sent} beats for an address of {beats}"
            self._written[port] = self._written.get(port, 0) + 1

    def _b(self, *, id: int, **fields: int) -> None:  # noqa: A002
        assert self._written.get(id), f"b: nothing of id {id} is written"
        self._written[id] -= 1
        self._under_way["aw"] -= 1

    def bursts_of(self, port: int, channel: str = "ar") -> Iterator[tuple[int, int]]:
        """Bursts of an id, in order."""
        return ((address, beats) for k, address, beats in (self.reads if channel == "ar" else self.writes) if k == port)
