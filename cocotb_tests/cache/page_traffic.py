"""Random commands to a page table, and what must hold of its state after each."""

import random
from collections import Counter
from typing import NamedTuple

from golden.cache.page_table import PageOp, PageStatus, PageTable, Reply

__all__ = ["OUTCOMES", "Command", "apply", "check", "lookups", "random_step"]

_COMMON = {PageStatus.OK, PageStatus.RANGE, PageStatus.CLOSED}
#: how each command may end
OUTCOMES: dict[PageOp, set[PageStatus]] = {
    PageOp.OPEN: {PageStatus.OK, PageStatus.RANGE, PageStatus.OPENED},
    PageOp.BLOCK: _COMMON | {PageStatus.FULL},
    PageOp.RECORD: _COMMON | {PageStatus.FULL, PageStatus.ORDER},
    PageOp.COMMIT: _COMMON | {PageStatus.REPEATED},
    PageOp.RELEASE: _COMMON | {PageStatus.ORDER, PageStatus.BUSY},
    PageOp.FORK: _COMMON | {PageStatus.OPENED, PageStatus.BUSY, PageStatus.FULL},
    PageOp.END: _COMMON | {PageStatus.BUSY},
    PageOp.HOLD: _COMMON | {PageStatus.FULL},
    PageOp.DROP: _COMMON | {PageStatus.ORDER},
    PageOp.COUNT: _COMMON,
}


class Command(NamedTuple):
    """Fields of a command; those that ``op`` does not look at are any."""

    op: int
    sequence: int
    source: int = 0
    stream: int = 0


def apply(table: PageTable, command: Command) -> Reply:
    """Give a command to golden."""
    op, sequence, source, stream = command
    match op:
        case PageOp.OPEN:
            return table.open(sequence)
        case PageOp.BLOCK:
            return table.block(sequence)
        case PageOp.RECORD:
            return table.record(sequence)
        case PageOp.COMMIT:
            return table.commit(sequence, stream)
        case PageOp.RELEASE:
            return table.release(sequence)
        case PageOp.FORK:
            return table.fork(source, sequence)
        case PageOp.END:
            return table.end(sequence)
        case PageOp.HOLD:
            return table.hold(sequence)
        case PageOp.DROP:
            return table.drop(sequence)
        case PageOp.COUNT:
            return table.count(sequence, stream)
    return Reply(PageStatus.RANGE)


def check(table: PageTable) -> None:
    """Every reference is one of a sequence, every page is free or referenced, groups have the pages they need."""
    opened = [sequence for sequence in table.sequences if sequence is not None]
    for pool, used in (
        (table.records, Counter(page for sequence in opened for page in sequence.records)),
        (table.blocks, Counter(page for sequence in opened for page in sequence.blocks)),
    ):
        pages = range(len(pool.references))
        assert [pool.references[page] for page in pages] == [used[page] for page in pages]
        free = [*range(pool.fresh, len(pool.references)), *pool.freed]
        assert sorted([*free, *used]) == list(pages)
        assert pool.free == len(free)
    for sequence in opened:
        assert sequence.blocks_begin <= len(sequence.records) <= sequence.blocks_begin + 1
        assert len(sequence.records) <= sequence.blocks_end <= table.max_groups
        assert sequence.compressing or not sequence.uncommitted


def random_step(draw: random.Random, table: PageTable) -> list[Command]:
    """Commands that belong together: a sequence begins, grows, is compressed, forks, ends; or any command at all."""
    count = len(table.sequences)
    sequence, source, stream = draw.randrange(count), draw.randrange(count), draw.randrange(table.streams)

    def command(op: int, stream: int = stream) -> Command:
        return Command(op, sequence, source, stream)

    state = table.sequences[sequence]
    match draw.choice(["any", "grow", "grow", "compress", "compress", "fork", "end", "hold"]):
        case "any":
            sequence = draw.choice([sequence, sequence, count % 256, draw.getrandbits(8)])
            source = draw.choice([source, source, count % 256, draw.getrandbits(8)])
            stream = draw.choice([stream, stream, table.streams % (1 << 16), draw.getrandbits(16)])
            ops = [*PageOp, draw.randrange(16)]
            return [Command(op, sequence, source, stream) for op in draw.sample(ops, draw.choice([1, 5]))]
        case "grow":
            blocks = draw.choice([1, draw.randint(1, table.max_groups + 1)])
            return [command(PageOp.OPEN)] * (state is None) + [command(PageOp.BLOCK)] * blocks
        case "compress":
            streams = list(range(table.streams))
            draw.shuffle(streams)
            del streams[: draw.choice([0, 0, 0, 1, table.streams // 2])]
            commits = [command(op, s) for s in streams for op in (PageOp.COMMIT, *[PageOp.COUNT] * draw.randrange(2))]
            times = draw.choice([1, 1, table.max_groups if len(commits) < 20 else 3])
            return [command(PageOp.RECORD), *commits, command(PageOp.RELEASE)] * times
        case "fork":
            return [command(PageOp.FORK), command(PageOp.COUNT)]
        case "end":
            return [command(PageOp.DROP)] * (state.users if state else 0) + [command(PageOp.END)]
    return [command(draw.choice([PageOp.HOLD, PageOp.DROP]))] * draw.choice([1, 1, 2])


def lookups(table: PageTable) -> list[tuple[int, int, int]]:
    """Sequence, kind and group of everything that can be looked up, and of what lies just beyond."""
    sequences = [*range(len(table.sequences)), len(table.sequences) % 256, 255]
    groups = [*range(table.max_groups), table.max_groups % (1 << 20), (1 << 20) - 1]
    return [(sequence, dense, group) for sequence in sequences for dense in (0, 1) for group in groups]
