"""Page table of the paged cache: which page holds which group of which sequence."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

__all__ = ["MAX_USERS", "PageOp", "PageStatus", "PageTable", "Reply"]

#: jobs that may read a sequence at once
MAX_USERS = 255


class PageOp(IntEnum):
    """What a command does."""

    #: a closed sequence becomes an empty one
    OPEN = 0
    #: a block page for the next group
    BLOCK = 1
    #: a record page for the oldest group that has none
    RECORD = 2
    #: a stream has completely written its record of the newest record group
    COMMIT = 3
    #: the block page of the group that has been compressed is given up
    RELEASE = 4
    #: a closed sequence begins as a copy of ``source``
    FORK = 5
    #: a sequence gives up all of its pages and is closed
    END = 6
    #: one more job reads the sequence
    HOLD = 7
    #: one less
    DROP = 8
    #: what is readable of a stream
    COUNT = 9


class PageStatus(IntEnum):
    """How a command ended; nothing has changed unless it is OK."""

    OK = 0
    #: the sequence (FORK: ``source``) is not open
    CLOSED = 1
    #: the sequence is open already
    OPENED = 2
    #: a number of a sequence, stream or command that does not exist; BLOCK: the sequence has ``max_groups``
    RANGE = 3
    #: no page is left; HOLD: as many jobs as can be counted
    FULL = 4
    #: jobs read the sequence, or its newest record is not complete: later
    BUSY = 5
    #: not now: another command comes first
    ORDER = 6
    #: the stream has committed already, or there is nothing to commit
    REPEATED = 7


class Reply(NamedTuple):
    """Answer to a command; what it does not speak of is 0."""

    status: PageStatus
    group: int = 0
    blocks_end: int = 0
    page: int = 0
    other: int = 0


class _PagePool:
    """Pages with reference counts: first those that were never used, ascending, then the one that came back last."""

    def __init__(self, pages: int) -> None:
        self.references = [0] * pages
        self.fresh = 0
        self.freed: list[int] = []

    @property
    def free(self) -> int:
        return len(self.references) - self.fresh + len(self.freed)

    def take(self) -> int:
        """Hand out a page with one reference."""
        if self.fresh < len(self.references):
            page = self.fresh
            self.fresh += 1
        else:
            page = self.freed.pop()
        self.references[page] = 1
        return page

    def share(self, page: int) -> None:
        self.references[page] += 1

    def drop(self, page: int) -> None:
        """Give up a reference; the last one frees the page."""
        self.references[page] -= 1
        if self.references[page] == 0:
            self.freed.append(page)


@dataclass
class _Sequence:
    blocks_begin: int = 0
    #: pages of groups 0, 1, ...; more than ``blocks_begin`` of them from RECORD to RELEASE
    records: list[int] = field(default_factory=list)
    #: pages of groups ``blocks_begin``, ...
    blocks: list[int] = field(default_factory=list)
    #: streams that have not committed their newest record
    uncommitted: set[int] = field(default_factory=set)
    users: int = 0

    @property
    def blocks_end(self) -> int:
        return self.blocks_begin + len(self.blocks)

    @property
    def compressing(self) -> bool:
        return len(self.records) > self.blocks_begin


class PageTable:
    """The exact state of a page table; one method per command, each returns its `Reply`."""

    def __init__(
        self, *, max_sequences: int, streams: int, max_groups: int, record_pages: int, block_pages: int
    ) -> None:
        self.streams = streams
        self.max_groups = max_groups
        self.records = _PagePool(record_pages)
        self.blocks = _PagePool(block_pages)
        self.sequences: list[_Sequence | None] = [None] * max_sequences

    def _find(self, number: int) -> _Sequence | PageStatus:
        """An open sequence, or why there is none."""
        if number >= len(self.sequences):
            return PageStatus.RANGE
        return self.sequences[number] or PageStatus.CLOSED

    def _find_closed(self, number: int) -> PageStatus:
        found = self._find(number)
        if isinstance(found, _Sequence):
            return PageStatus.OPENED
        return PageStatus.OK if found == PageStatus.CLOSED else found

    def open(self, sequence: int) -> Reply:
        """Begin an empty sequence."""
        status = self._find_closed(sequence)
        if status == PageStatus.OK:
            self.sequences[sequence] = _Sequence()
        return Reply(status)

    def block(self, sequence: int) -> Reply:
        """A block ``page`` for ``group``, the next one."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if found.blocks_end == self.max_groups:
            return Reply(PageStatus.RANGE)
        if not self.blocks.free:
            return Reply(PageStatus.FULL)
        group = found.blocks_end
        found.blocks.append(self.blocks.take())
        return Reply(PageStatus.OK, group=group, page=found.blocks[-1])

    def record(self, sequence: int) -> Reply:
        """A record ``page`` for ``group``, the oldest one without; no stream has committed it."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if found.compressing or not found.blocks:
            return Reply(PageStatus.ORDER)
        if not self.records.free:
            return Reply(PageStatus.FULL)
        found.records.append(self.records.take())
        found.uncommitted = set(range(self.streams))
        return Reply(PageStatus.OK, group=found.blocks_begin, page=found.records[-1])

    def commit(self, sequence: int, stream: int) -> Reply:
        """The newest record of ``stream`` is complete: `count` includes it from now on."""
        found = self._find(sequence)
        if stream >= self.streams:
            return Reply(PageStatus.RANGE)
        if isinstance(found, PageStatus):
            return Reply(found)
        if stream not in found.uncommitted:
            return Reply(PageStatus.REPEATED)
        found.uncommitted.remove(stream)
        return Reply(PageStatus.OK)

    def release(self, sequence: int) -> Reply:
        """The block page ``other`` of ``group``, whose record all streams have committed, is given up."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if not found.compressing:
            return Reply(PageStatus.ORDER)
        if found.uncommitted or found.users:
            return Reply(PageStatus.BUSY)
        group = found.blocks_begin
        page = found.blocks.pop(0)
        found.blocks_begin += 1
        self.blocks.drop(page)
        return Reply(PageStatus.OK, group=group, other=page)

    def fork(self, source: int, sequence: int) -> Reply:
        """Copy ``source``: all pages are shared but the newest block, ``group``, of which ``other`` goes to ``page``.

        Without any block there is nothing to copy: ``page`` and ``other`` are equal then, and only then.
        """
        status = self._find_closed(sequence)
        found = self._find(source)
        if PageStatus.RANGE in (status, found):
            return Reply(PageStatus.RANGE)
        if status != PageStatus.OK:
            return Reply(status)
        if isinstance(found, PageStatus):
            return Reply(found)
        if found.compressing:
            return Reply(PageStatus.BUSY)
        if found.blocks and not self.blocks.free:
            return Reply(PageStatus.FULL)
        for page in found.records:
            self.records.share(page)
        for page in found.blocks[:-1]:
            self.blocks.share(page)
        copy = _Sequence(found.blocks_begin, found.records.copy(), found.blocks[:-1])
        self.sequences[sequence] = copy
        if not found.blocks:
            return Reply(PageStatus.OK)
        copy.blocks.append(self.blocks.take())
        return Reply(PageStatus.OK, group=copy.blocks_end - 1, page=copy.blocks[-1], other=found.blocks[-1])

    def end(self, sequence: int) -> Reply:
        """Close a sequence; its pages are given up from the newest on, so that they are handed out in their order."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if found.users:
            return Reply(PageStatus.BUSY)
        for page in reversed(found.blocks):
            self.blocks.drop(page)
        for page in reversed(found.records):
            self.records.drop(page)
        self.sequences[sequence] = None
        return Reply(PageStatus.OK)

    def hold(self, sequence: int) -> Reply:
        """One more job reads the sequence."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if found.users == MAX_USERS:
            return Reply(PageStatus.FULL)
        found.users += 1
        return Reply(PageStatus.OK)

    def drop(self, sequence: int) -> Reply:
        """One job less reads the sequence."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return Reply(found)
        if not found.users:
            return Reply(PageStatus.ORDER)
        found.users -= 1
        return Reply(PageStatus.OK)

    def count(self, sequence: int, stream: int) -> Reply:
        """``stream`` reads groups below ``group`` as records, the others, below ``blocks_end``, as blocks."""
        found = self._find(sequence)
        if stream >= self.streams:
            return Reply(PageStatus.RANGE)
        if isinstance(found, PageStatus):
            return Reply(found)
        records = len(found.records) - (stream in found.uncommitted)
        return Reply(PageStatus.OK, group=records, blocks_end=found.blocks_end)

    def lookup(self, sequence: int, dense: int, group: int) -> int | None:
        """The page of a group's block (``dense``) or record; None when there is none."""
        found = self._find(sequence)
        if isinstance(found, PageStatus):
            return None
        pages, place = (found.blocks, group - found.blocks_begin) if dense else (found.records, group)
        return pages[place] if 0 <= place < len(pages) else None

    def held(self, sequence: int) -> bool:
        """Whether a job reads the sequence, so that no page of it is given up."""
        found = self._find(sequence)
        return isinstance(found, _Sequence) and found.users > 0
