"""Commands from rings in memory to the cores, in the order of each ring and of the semaphores (golden `Command`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.cache._read_port import word_shape
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._command_store import CommandStore
from rtl.control._event_log import EventKind, EventLog, event_layout
from rtl.control._fetcher import CommandFetcher, entry_layout, place_layout, queue_count
from rtl.control._layout import Error, command_layout, done_layout
from rtl.control._semaphores import Semaphores
from rtl.control.registers import settings_layout, status_layout

__all__ = ["CommandProcessor"]

_COUNT_BITS = 16  # of a semaphore
_TIME_BITS = 32


class CommandProcessor(wiring.Component):
    """Gives each core the commands of its ring, and says when each may begin.

    Commands are fetched, checked and given to their cores as long as fewer than ``control.queue_depth`` of a queue are
    on chip. A command may begin when the command before it in its queue has begun and its waits are satisfied: a
    semaphore has counted as many signals since reset as awaited, or up to 2**15 - 1 more, modulo 2**16. A command that
    is done signals. All queues share the semaphores and take turns.

    A command that cannot be done, or that ends with an error, or whose wait takes too long, stops its queue when the
    commands before it are done; it gives no signal and counts not as done. The other queues go on.

    Latency: ``latency(config)`` cycles at most from the end of a command to the beginning of one, of whatever queue,
    that waits for its signal. Throughput: in each queue a command begins, and one ends, every ``turn_cycles(config)``
    cycles. Stalls: a core that does not take its commands or beginnings holds up its own queue alone.
    Combinational paths: none.

    After a reset the semaphores are cleared, which takes ``control.semaphores`` cycles, in which nothing begins.

    Members
    -------
    settings : of `Registers`: ``control.enable``, ``control.clear_counters``, ``watchdog``, ``queue``
    status : ``queue`` as in Registers, ``busy``: a queue that has not stopped has commands that are not done,
        ``error``: a queue has stopped, ``cycles`` since reset or clear, ``events_lost``
    o_read, i_read : requests in words of memory, and their words
    outside : a request lay outside the window
    o_command : per queue: commands, see `command_layout`
    o_go : per queue: the next command may begin; the payload means nothing
    i_done : per queue: the oldest command has ended, see `done_layout`
    o_event : see `event_layout`
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.queues = queue_count(config)
        port = KvCache.axi_configs(config)[0]
        queue_status = status_layout(config)["queue"].shape
        super().__init__(
            {
                "settings": In(settings_layout(config)),
                "status": Out(
                    data.StructLayout({"queue": queue_status, "busy": 1, "error": 1, "cycles": 64, "events_lost": 32})
                ),
                "o_read": Out(stream.Signature(port.request_shape)),
                "i_read": In(stream.Signature(word_shape(port))),
                "outside": In(1),
                "o_command": Out(stream.Signature(command_layout())).array(self.queues),
                "o_go": Out(stream.Signature(1)).array(self.queues),
                "i_done": In(stream.Signature(done_layout())).array(self.queues),
                "o_event": Out(stream.Signature(event_layout())),
            }
        )

    @staticmethod
    def turn_cycles(config: AcceleratorConfig) -> int:
        """Cycles from one turn of a queue to its next one."""
        return 2 * queue_count(config)

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles at most from ``i_done`` valid to ``o_go`` valid of a command that waits for it."""
        return 2 * CommandProcessor.turn_cycles(config) + 4

    def _fetching(self, m: Module, stopped: Signal) -> CommandFetcher:
        """Commands from memory to the cores."""
        m.submodules.fetcher = fetcher = CommandFetcher(self.config)
        m.submodules.store = store = CommandStore(self.config)
        connect(m, fetcher.o_read, flipped(self.o_read))
        connect(m, flipped(self.i_read), fetcher.i_read)
        for q in range(self.queues):
            ring, settings = fetcher.rings[q], self.settings.queue[q]
            m.d.comb += [
                ring.base.eq(settings.ring_base.line),
                ring.size.eq(settings.ring_size.log2),
                ring.head.eq(settings.head.count),
                fetcher.done[q].eq(self.status.queue[q].done.count),
            ]
            connect(m, store.o_command[q], flipped(self.o_command[q]))
        m.d.comb += [
            fetcher.enable.eq(self.settings.control.enable),
            fetcher.outside.eq(self.outside),
            fetcher.stopped.eq(stopped),
            store.stopped.eq(stopped),
            store.word.eq(fetcher.word),
            store.word_en.eq(fetcher.word_en),
            store.queue.eq(fetcher.entry.place.queue),
            store.good.eq(fetcher.entry_en & fetcher.good),
        ]
        return fetcher

    def _counts(self, m: Module, stopped: Signal, alone: Signal, waiting: Signal) -> None:
        """Cycles of each queue and of all; what the host sees of them."""
        m.d.sync += self.status.cycles.eq(Mux(self.settings.control.clear_counters, 0, self.status.cycles + 1))
        busy = Signal(self.queues)
        for q, status in enumerate(self.status.queue):
            running = ~alone[q] & ~stopped[q]
            spent = {"busy": running, "waiting": waiting[q], "idle": ~running & ~waiting[q]}
            m.d.comb += [
                *(status[name].cycles.eq(now) for name, now in spent.items()),
                status.status.running.eq(running),
                status.status.waiting.eq(waiting[q]),
                status.status.stopped.eq(stopped[q]),
                status.error_command.count.eq(Mux(stopped[q], status.done.count, 0)),
                busy[q].eq(~stopped[q] & (self.settings.queue[q].head.count != status.done.count)),
            ]
        m.d.sync += [self.status.busy.eq(busy.any()), self.status.error.eq(stopped.any())]

    def _decide(
        self, m: Module, turn: data.View, next_queue: Value, entry: data.View, counts: data.View, state: dict[str, Any]
    ) -> Value:
        """Ends and begins commands, stops queues; whether the command signals. The next turn is that of a queue."""
        stopped, alone, waiting = state["stopped"], state["alone"], state["waiting"]
        clock, before, watchdog = Signal(_TIME_BITS), Signal(_TIME_BITS), self.settings.watchdog.cycles
        since = Signal(data.ArrayLayout(unsigned(_TIME_BITS), self.queues))  # it waits, counted from the cycle before
        waited = Signal(_TIME_BITS)  # found a cycle before it is needed
        m.d.sync += [clock.eq(clock + 1), before.eq(clock), waited.eq(clock - since[next_queue])]
        late = (watchdog != 0) & (waited >= watchdog)
        unmet = Signal(2)
        for n, wait in enumerate(entry.waits):
            m.d.comb += unmet[n].eq(wait.enable & (counts[n] - wait.count)[_COUNT_BITS - 1])
        awaited = Signal(entry.waits[0].shape())
        m.d.comb += awaited.eq(Mux(unmet[0], entry.waits[0], entry.waits[1]))

        ends, goes, waits, stops = Signal(), Signal(), Signal(), Signal()
        reason = Signal(done_layout())
        is_alone = alone.bit_select(turn.queue, 1)
        with m.If(turn.valid & ~stopped.bit_select(turn.queue, 1)):
            with m.If(~turn.begins):
                m.d.comb += [reason.eq(turn.done), stops.eq(reason.error != Error.NONE), ends.eq(~stops)]
            with m.Elif(entry.error != Error.NONE):
                m.d.comb += [reason.error.eq(entry.error), reason.detail.eq(entry.detail), stops.eq(is_alone)]
            with m.Elif(unmet.any()):
                m.d.comb += [
                    reason.error.eq(Error.TIMEOUT),
                    reason.detail.eq(Cat(awaited.semaphore, awaited.count)),
                    waits.eq(is_alone),
                    stops.eq(waiting.bit_select(turn.queue, 1) & late),
                ]
            with m.Else():
                m.d.comb += goes.eq(1)

        event_en = Signal()
        for q, status in enumerate(self.status.queue):
            pending = Signal(range(self.config.control.queue_depth + 1), name=f"pending_{q}")
            here, go = turn.queue == q, self.o_go[q]
            m.d.comb += go.valid.eq(pending != 0)
            m.d.sync += pending.eq(pending + (goes & here) - (go.valid & go.ready))
            with m.If(here):
                m.d.comb += event_en.eq(ends | goes | stops | (waits & ~waiting[q]))
                m.d.sync += [
                    status.done.count.eq(status.done.count + ends),
                    state["begun"][q].eq(state["begun"][q] + goes),
                ]
                with m.If(waits):
                    m.d.sync += [waiting[q].eq(1), status.status.semaphore.eq(awaited.semaphore)]
                    with m.If(~waiting[q]):
                        m.d.sync += since[q].eq(before)
                with m.If(goes | stops):
                    m.d.sync += waiting[q].eq(0)
                with m.If(stops):
                    m.d.sync += [
                        stopped[q].eq(1),
                        status.error.code.eq(reason.error),
                        status.error.detail.eq(reason.detail),
                    ]

        m.submodules.events = events = EventLog(self.config)
        connect(m, events.o_event, flipped(self.o_event))
        kind = Mux(stops, EventKind.ERROR, Mux(ends, EventKind.END, Mux(goes, EventKind.BEGIN, EventKind.WAIT)))
        m.d.comb += [
            events.clear.eq(self.settings.control.clear_counters),
            events.event_en.eq(event_en),
            events.event.time.eq(self.status.cycles),
            events.event.queue.eq(turn.queue),
            events.event.kind.eq(kind),
            events.event.tag.eq(entry.tag),
            self.status.events_lost.eq(events.lost),
        ]
        return ends & entry.signal.enable

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        queues = self.queues
        slot_bits = place_layout(self.config)["slot"].width
        stopped, waiting, alone = Signal(queues), Signal(queues), Signal(queues)
        fetcher = self._fetching(m, stopped)
        self._counts(m, stopped, alone, waiting)
        m.submodules.semaphores = semaphores = Semaphores(self.config.control.semaphores)
        came = [Signal(slot_bits + 1, name=f"came_{q}") for q in range(queues)]
        begun = [Signal(slot_bits + 1, name=f"begun_{q}") for q in range(queues)]
        done = [status.done.count[: slot_bits + 1] for status in self.status.queue]

        # Turns of two cycles: in the first one the queue's oldest command may end, in the second its next one begin.
        turn_layout = data.StructLayout({"valid": 1, "begins": 1, "queue": range(queues), "done": done_layout()})
        turn, turn_1, turn_2 = Signal(turn_layout), Signal(turn_layout), Signal(turn_layout)
        queue, begins = Signal(range(queues)), Signal()
        slot = Signal(slot_bits)
        m.d.sync += begins.eq(~begins)
        with m.If(begins):
            m.d.sync += queue.eq(Mux(queue == queues - 1, 0, queue + 1))
        m.d.comb += [turn.begins.eq(begins), turn.queue.eq(queue)]
        for q, ended in enumerate(self.i_done):
            m.d.comb += [
                alone[q].eq(begun[q] == done[q]),
                ended.ready.eq(~semaphores.clearing & ~begins & (queue == q)),
            ]
            with m.If(queue == q):
                m.d.comb += [
                    turn.valid.eq(~semaphores.clearing & Mux(begins, came[q] != begun[q], ended.valid)),
                    turn.done.eq(ended.payload),
                    slot.eq(Mux(begins, begun[q], done[q])),
                ]
            with m.If(fetcher.entry_en & (fetcher.entry.place.queue == q)):
                m.d.sync += came[q].eq(came[q] + 1)
        m.d.sync += [turn_1.eq(turn), turn_2.eq(turn_1)]

        # What is known of the command: a cycle later; its semaphores: another one later.
        m.submodules.entries = entries = Memory(shape=entry_layout(), depth=queues << slot_bits, init=[])
        write, read = entries.write_port(), entries.read_port()
        entry = Signal(entry_layout())
        m.d.comb += [
            write.en.eq(fetcher.entry_en),
            write.addr.eq(fetcher.entry.place),
            write.data.eq(fetcher.entry.entry),
            read.addr.eq(Cat(slot, queue)),
        ]
        m.d.sync += entry.eq(read.data)
        signal, waits = read.data.signal, read.data.waits
        state = {"stopped": stopped, "alone": alone, "waiting": waiting, "begun": begun}
        m.d.comb += [
            semaphores.numbers[0].eq(Mux(turn_1.begins, waits[0].semaphore, signal.semaphore)),
            semaphores.numbers[1].eq(waits[1].semaphore),
            semaphores.signal.eq(self._decide(m, turn_2, turn_1.queue, entry, semaphores.counts, state)),
        ]
        return m
