"""What the test benches of the Compressor and the Quantizer have in common: groups in, records out, against golden."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import cocotb

from cocotb_tests.dsq.groups import Group, random_groups
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.stream import StreamSink, StreamSource
from rtl.config import DsqConfig

__all__ = ["GroupBench"]


class GroupBench(ABC):
    """The design's streams. ``inputs`` names the input streams and the payload shapes to encode with, if any."""

    def __init__(self, dut: Any, inputs: Mapping[str, Any], i_stall: str = "none", o_stall: str = "none") -> None:
        self.dut = dut
        self.config = DsqConfig(**params()["config"])
        self.draw = rng("bench", i_stall, o_stall)
        self.sources = {
            name: StreamSource(dut, name, shape=shape, stall=stalls.named(i_stall, name))
            for name, shape in inputs.items()
        }
        c = self.config
        self.timeout = 50_000 + 10 * c.group_tokens * c.row_beats * c.max_salient
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    @abstractmethod
    def send(self, group: Group) -> list[int]:
        """Queue a group on all inputs; returns the words of its record."""

    async def check(self, groups: Sequence[Group]) -> None:
        """Send groups and compare all that comes out."""
        records = [self.send(group) for group in groups]
        for group, words in zip(groups, records, strict=True):
            got = await self.sink.recv(len(words), timeout=self.timeout)
            wrong = [at for at, (a, b) in enumerate(zip(got, words, strict=True)) if a != b]
            assert not wrong, (
                f"group {group.name!r}, {group.salient_tokens} salient: {len(wrong)} of {len(words)} words differ, "
                f"word {wrong[0]} is {got[wrong[0]]:#x}, expected {words[wrong[0]]:#x}"
            )

    async def end(self) -> None:
        """Nothing is left over on either side."""
        await self.sink.expect_nothing(200)
        assert [name for name, source in self.sources.items() if not source.idle] == []

    async def measure(self, salient_tokens: int, inputs: Mapping[str, int]) -> tuple[int, int]:
        """Send three equal groups; ``inputs`` maps names of input streams to their transfers a group.

        Returns the cycles from the first group's last transfer on these to its first word, and the most cycles from one
        group's last word to the next one's. All groups before must have left.
        """
        group = replace(random_groups(self.config, self.draw, 1)[0], salient_tokens=salient_tokens)
        sent = {name: len(self.sources[name].transfers) for name in inputs}
        received = len(self.sink.transfers)
        words = [len(self.send(group)) for _ in range(3)]
        await self.sink.recv(sum(words), timeout=self.timeout)
        given = max(self.sources[name].transfers[sent[name] + count - 1] for name, count in inputs.items())
        ends = [self.sink.transfers[received + (n + 1) * words[0] - 1] for n in range(3)]
        latency, period = self.sink.transfers[received] - given, max(b - a for a, b in pairwise(ends))
        cocotb.log.info("%d salient: latency %d cycles, %d cycles a group", salient_tokens, latency, period)
        return latency, period
