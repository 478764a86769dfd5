"""An attention core's streams, as the MHA engine sees them: takes queries in order, gives random results."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cocotb_tests.control.memory_player import Ports
from cocotb_tests.lib import stalls
from cocotb_tests.lib.engine import Engine
from cocotb_tests.lib.stream import StreamSink
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOTS
from rtl.mha._requests import Fault

__all__ = ["CorePlayer", "Result"]


@dataclass(kw_only=True)
class Result:
    """What the core has given for a query: outputs of all heads in a row; masses ``group``, ``index``, ``mass``."""

    outputs: np.ndarray
    masses: list[tuple[int, int, int]]
    fault: Fault
    group: int


class CorePlayer:
    """Takes a query's job when one of the slots is free, then its calibration and rows, then its scan list.

    Attributes: ``queries``, ``calibrations``, ``rows``, ``lists`` of all queries; their ``results``.

    Parameters
    ----------
    faults : by number of the query, with a group; a query with a fault has masses or none
    pace : cycles from a query's result to the next one's, at least
    """

    def __init__(self, ports: Ports, config: AcceleratorConfig, draw: random.Random, *, pace: int = 0) -> None:
        self.config, self.draw, self.pace = config, draw, pace
        self.faults: dict[int, tuple[Fault, int]] = {}
        self.beats = config.mha.q_heads * config.dsq.row_beats
        self._ports = ports
        self._query = self._sink("o_query", lambda: self._load_is_done() and self._slots_are_free())
        self._row = self._sink("o_row", lambda: len(self._row.transfers) < self.beats * len(self.queries))
        self._calibration = self._sink("o_calibration", lambda: len(self._calibration.transfers) < self._channels())
        self._scan = self._sink("o_scan", lambda: len(self.lists) < len(self.queries) - (not self._load_is_done()))
        self.out, self.mass, self.status = (ports.source(name) for name in ("i_out", "i_mass", "i_status"))
        self.given: list[int] = []  # cycles of the results
        self.handed: list[int] = []  # cycles in which the queries' last scans were taken
        self.clear()
        Engine.of(ports.dut.clk).attach(self)

    def _sink(self, name: str, wants: Callable[[], bool]) -> StreamSink:
        pattern = stalls.named(self._ports.stall, name)

        def stall() -> Iterator[bool]:
            while True:
                yield not wants() or (pattern is not None and next(pattern))

        return StreamSink(self._ports.dut, name, shape=self._ports.shape(name), stall=stall())

    def _channels(self) -> int:
        """Of all calibrations that are to come."""
        return self.config.dsq.head_dim * sum(int(query["job"]["load_calibration"]) for query in self.queries)

    def _load_is_done(self) -> bool:
        rows = len(self._row.transfers) == self.beats * len(self.queries)
        return rows and len(self._calibration.transfers) == self._channels()

    def _slots_are_free(self) -> bool:
        return len(self.queries) - len(self.status.transfers) < SLOTS

    def edge(self, cycle: int) -> None:
        """Keep what has come; give the next query's results."""
        self.queries += self._query.take_all()
        self.rows += self._row.take_all()
        self.calibrations += self._calibration.take_all()
        for scan in self._scan.take_all():
            self._list.append((bool(scan["dense"]), int(scan["group"]), int(scan["count"])))
            if scan["last"]:
                self.lists.append(self._list)
                self.handed.append(cycle)
                self._list = []
        number = len(self.results)
        if number < len(self.lists) and cycle >= self._free:
            self._give(self._result(number))
            self.given.append(cycle)
            self._free = cycle + self.pace

    def _result(self, number: int) -> Result:
        """Random outputs; masses of some tokens and groups, in the order of the scan, at least one."""
        draw, n = self.draw, self.config.dsq.group_tokens
        fault, group = self.faults.get(number, (Fault.NONE, 0))
        bits = draw.randint(0, 16)
        outputs = [draw.getrandbits(bits) - (1 << bits >> 1) for _ in range(self.beats * self.config.dsq.lanes)]
        entries = []
        for place, (dense, index, count) in enumerate(self.lists[number]):
            if dense and place < 2:
                entries += [(0, place * n + token) for token in range(count)]
            else:
                entries.append((1, index))
        chosen = [entry for entry in entries if draw.random() < 0.7] or entries[:1]
        masses = [(*entry, draw.getrandbits(draw.randint(0, 20))) for entry in chosen]
        if fault is Fault.EMPTY or (fault is not Fault.NONE and draw.random() < 0.5):
            masses = []
        return Result(outputs=np.array(outputs), masses=masses, fault=fault, group=group)

    def _give(self, result: Result) -> None:
        self.results.append(result)
        lanes = self.config.dsq.lanes
        beats = result.outputs.reshape(-1, lanes).tolist()
        per_head = self.config.dsq.row_beats
        self.out.send_nowait(
            [
                {"head": place // per_head, "data": beat, "last": int(place == len(beats) - 1)}
                for place, beat in enumerate(beats)
            ]
        )
        last = len(result.masses) - 1
        self.mass.send_nowait(
            [
                {"group": group, "index": index, "mass": mass, "last": int(place == last)}
                for place, (group, index, mass) in enumerate(result.masses)
            ]
        )
        self.status.send_nowait([{"fault": result.fault, "group": result.group}])

    def clear(self) -> None:
        """Forget all queries."""
        self.queries: list[Any] = []
        self.rows: list[Any] = []
        self.calibrations: list[Any] = []
        self.lists: list[list[tuple[bool, int, int]]] = []
        self._list: list[tuple[bool, int, int]] = []
        self.results: list[Result] = []
        self.given.clear()
        self.handed.clear()
        self._free = 0

    @property
    def first_query(self) -> int:
        """Cycle in which the first query was taken."""
        return self._query.transfers[0]

    @property
    def idle(self) -> bool:
        """All results have been taken."""
        return self.out.idle and self.mass.idle and self.status.idle
