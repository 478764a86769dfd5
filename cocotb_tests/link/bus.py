"""A bus for the tests of the link: words, places that count reads, fail, or never answer."""

from dataclasses import dataclass, field

__all__ = ["COUNTER", "FAULTY", "SILENT", "WordBus"]

#: word addresses: reads count up here; accesses fail here; accesses have no result here
COUNTER, FAULTY, SILENT = 0x24000005, 0x2400000A, 0x2400000F


@dataclass
class WordBus:
    """Carries out accesses and notes them; as a function it is a `golden.link.host_link.Bus`."""

    words: dict[int, int] = field(default_factory=dict)
    accesses: list[tuple[int, bool, int]] = field(default_factory=list)
    count: int = 0

    def __call__(self, address: int, write: bool, data: int) -> tuple[int, bool] | None:
        self.accesses.append((address, write, data if write else 0))
        if address == SILENT:
            return None
        if address == COUNTER and not write:
            self.count += 1
            return self.count, False
        if write:
            self.words[address] = data
        return self.words.get(address, ~address & 0xFFFFFFFF), address == FAULTY
