"""One coroutine per clock that serves all stream agents: a cycle costs one wake-up, however many streams there are."""

from typing import Any, ClassVar, Protocol

import cocotb
from cocotb.handle import LogicObject
from cocotb.triggers import Event, RisingEdge

__all__ = ["Agent", "Engine"]


class Agent(Protocol):
    """What the engine calls at each rising clock edge."""

    def edge(self, cycle: int) -> None:
        """Sample what the design showed before the edge, then drive what it shall see after it."""

    def clear(self) -> None:
        """Forget all pending work and go idle: a reset begins."""


class Engine:
    """Serves the agents of one clock.

    In both simulators code that wakes at a rising edge reads the values from before the edge, and what it writes takes
    effect after it, like a register does.
    """

    _engines: ClassVar[dict[str, "Engine"]] = {}

    def __init__(self, clock: LogicObject) -> None:
        self.clock = clock
        self.cycle = 0
        self.in_reset = False
        self._agents: list[Agent] = []
        self._alarms: list[tuple[int, Event]] = []
        self._task = cocotb.start_soon(self._run())

    @classmethod
    def of(cls, clock: LogicObject) -> "Engine":
        """Return the engine of `clock`; each cocotb test gets a new one."""
        engine = cls._engines.get(clock._path)
        if engine is None or engine._task.done():
            engine = cls._engines[clock._path] = cls(clock)
        return engine

    def attach(self, agent: Agent) -> None:
        """Serve `agent` from the next edge on."""
        self._agents.append(agent)

    def clear(self) -> None:
        """Clear every agent."""
        for agent in self._agents:
            agent.clear()

    async def cycles(self, count: int) -> None:
        """Wait for `count` rising edges; agents have been served at the last one."""
        if count <= 0:
            return
        event = Event()
        self._alarms.append((self.cycle + count, event))
        await event.wait()

    async def _run(self) -> None:
        trigger: Any = RisingEdge(self.clock)
        while True:
            await trigger
            self.cycle = cycle = self.cycle + 1
            if not self.in_reset:
                for agent in self._agents:
                    agent.edge(cycle)
            if self._alarms:
                self._ring(cycle)

    def _ring(self, cycle: int) -> None:
        due = [alarm for alarm in self._alarms if alarm[0] <= cycle]
        if due:
            self._alarms = [alarm for alarm in self._alarms if alarm[0] > cycle]
            for _, event in due:
                event.set()
