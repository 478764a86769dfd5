"""Pages of the cache behind the DSQ engine's ports: random latency, stalls, words that fail, any reply."""

import random
from collections import deque
from typing import Any

from cocotb_tests.control.memory_player import Delay, Ports
from cocotb_tests.lib.engine import Engine
from golden.cache.page_table import PageStatus

__all__ = ["Page", "PagesPlayer"]

#: sequence, stream, whether it is a block, group
Page = tuple[int, int, int, int]


class PagesPlayer:
    """Words of pages behind ``o_fetch``, ``i_fetch``, ``o_store``, ``o_store_word``, ``i_stored``, and page commands.

    A write to a page that is not in ``pages`` fails, a read of it gives words in error. ``statuses`` are the replies to
    the next commits, ``replies`` those to the next commands, with their ``failed``; OK when there are none.
    """

    def __init__(self, ports: Ports, draw: random.Random, *, latency: int = 0) -> None:
        self.pages: dict[Page, bytearray] = {}
        self.bad: set[tuple[Page, int]] = set()  # words of pages that fail
        self.commits: list[Page] = []
        self.commands: list[tuple[int, int, int, int]] = []
        self.statuses: deque[PageStatus] = deque()
        self.replies: deque[tuple[PageStatus, int]] = deque()
        self.word_bytes = ports.shape("o_store_word")["strb"].shape
        self.fetch, self.words = ports.sink("o_fetch"), ports.source("i_fetch")
        self.store, self.word, self.stored = ports.sink("o_store"), ports.sink("o_store_word"), ports.source("i_stored")
        self.page, self.reply = ports.sink("o_page"), ports.source("i_page")
        self.fetches, self.answers, self.given = (Delay(draw, latency) for _ in range(3))
        self._asked: deque[list[Any]] = deque()  # page, word, words left, commit, failed
        self._came: deque[Any] = deque()
        Engine.of(ports.dut.clk).attach(self)

    def _span(self, request: Any) -> tuple[Page, int, int]:
        page = (request["sequence"], request["stream"], request["dense"], request["group"])
        assert request["count"] > 0
        return page, request["word"], request["count"]

    def _exists(self, page: Page, word: int) -> bool:
        there = page in self.pages and (word + 1) * self.word_bytes <= len(self.pages[page])
        return there and (page, word) not in self.bad

    def edge(self, cycle: int) -> None:
        """Take requests, words and commands, give words, answers and replies."""
        for request in self.fetch.take_all():
            self.fetches.put(cycle, self._span(request))
        for page, first, count in self.fetches.due(cycle):
            for word in range(first, first + count):
                there = self._exists(page, word)
                content = self.pages[page][word * self.word_bytes : (word + 1) * self.word_bytes] if there else b""
                self.words.send_nowait([{"data": int.from_bytes(content, "little"), "error": int(not there)}])
        for request in self.store.take_all():
            self._asked.append([*self._span(request), request["commit"], False])
        self._came.extend(self.word.take_all())
        while self._asked and self._came:
            self._write(cycle, self._asked[0], self._came.popleft())
        self.stored.send_nowait(self.answers.due(cycle))
        for command in self.page.take_all():
            fields = tuple(int(getattr(command[name], "value", command[name])) for name in ("op", "sequence", "source"))
            self.commands.append((*fields, command["stream"]))
            status, failed = self.replies.popleft() if self.replies else (PageStatus.OK, 0)
            self.given.put(cycle, {"reply": {"status": status, "group": 1, "page": 1}, "failed": failed})
        self.reply.send_nowait(self.given.due(cycle))

    def _write(self, cycle: int, asked: list[Any], word: Any) -> None:
        page, at, _, commit, _ = asked
        if self._exists(page, at):
            content = int(word["data"]).to_bytes(self.word_bytes, "little")
            for n in range(self.word_bytes):
                if word["strb"] >> n & 1:
                    self.pages[page][at * self.word_bytes + n] = content[n]
        else:
            asked[4] = True
        asked[1], asked[2] = at + 1, asked[2] - 1
        if asked[2] == 0:
            self._asked.popleft()
            status = PageStatus.OK
            if commit and not asked[4]:
                status = self.statuses.popleft() if self.statuses else status
                self.commits.append(page)
            self.answers.put(cycle, {"error": int(asked[4]), "status": status})

    def clear(self) -> None:
        """Forget all that is under way."""
        for queue in (self.fetches.items, self.answers.items, self.given.items, self._asked, self._came):
            queue.clear()
        for queue in (self.commits, self.commands, self.statuses, self.replies):
            queue.clear()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        queues = (self.fetches.items, self.answers.items, self.given.items, self._asked, self._came)
        return not any(queues) and self.words.idle and self.stored.idle and self.reply.idle
