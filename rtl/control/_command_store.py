"""Part of the command processor: commands between memory and the cores."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.control.commands import COMMAND_BYTES, HEADER_WORDS
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.control._fetcher import place_layout, queue_count, word_layout
from rtl.control._layout import command_layout

__all__ = ["CommandStore"]

_HEADER_BITS = 32 * HEADER_WORDS


def _set_word(command: data.View, index: int, word: Value) -> list[Any]:
    """Assignments of what word ``index`` holds of a command."""
    first, bits = index * len(word), len(word)
    parts = []
    if first == 0:
        parts.append(command.opcode.eq(word))
    if first + bits > _HEADER_BITS:
        skipped = max(_HEADER_BITS - first, 0)
        low = first + skipped - _HEADER_BITS
        parts.append(command.operands[low : low + bits - skipped].eq(word[skipped:]))
    return parts


class CommandStore(wiring.Component):
    """Keeps the commands of all queues in one memory, and copies each queue's next one to its core's stream.

    Queues take turns. A copy takes as many cycles as a command has words, and one more.

    Members
    -------
    word, word_en : words of commands
    queue, good : a command of this queue has come that may be given
    stopped : per queue: no further ones are given
    o_command : per queue: the commands
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self.queues = queue_count(config)
        super().__init__(
            {
                "word": In(word_layout(config)),
                "word_en": In(1),
                "queue": In(place_layout(config)["queue"].shape),
                "good": In(1),
                "stopped": In(self.queues),
                "o_command": Out(stream.Signature(command_layout())).array(self.queues),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self.config.dsq.bus_bits
        count = 8 * COMMAND_BYTES // bits
        slot = place_layout(self.config)["slot"]
        depth = self.queues << slot.width + len(self.word.index)
        # What is copied has come completely, and its place is not free before it is done.
        m.submodules.words = words = Memory(shape=unsigned(bits), depth=depth, init=[], attrs=NO_COLLISIONS)
        write, read = words.write_port(), words.read_port()
        m.d.comb += [
            write.en.eq(self.word_en),
            write.addr.eq(Cat(self.word.index, self.word.place)),
            write.data.eq(self.word.data),
        ]

        came = [Signal(slot.width + 1, name=f"came_{q}") for q in range(self.queues)]
        given = [Signal(slot.width + 1, name=f"given_{q}") for q in range(self.queues)]
        ready = Signal(self.queues)
        for q, command in enumerate(self.o_command):
            m.d.comb += ready[q].eq((came[q] != given[q]) & ~command.valid & ~self.stopped[q])
            with m.If(self.good & (self.queue == q)):
                m.d.sync += came[q].eq(came[q] + 1)
            with m.If(command.ready):
                m.d.sync += command.valid.eq(0)

        queue, index = Signal.like(self.queue), Signal(range(count + 1))
        slots = Signal(slot.shape)
        with m.Switch(queue):
            for q in range(self.queues):
                with m.Case(q):
                    m.d.comb += slots.eq(given[q])
        m.d.comb += read.addr.eq(Cat(index[: len(self.word.index)], slots, queue))
        next_queue = Mux(queue == self.queues - 1, 0, queue + 1)
        with m.FSM():
            with m.State("CHOOSE"):
                with m.If(ready.bit_select(queue, 1)):
                    m.d.sync += index.eq(1)
                    m.next = "COPY"
                with m.Else():
                    m.d.sync += queue.eq(next_queue)
            with m.State("COPY"):  # the word before ``index`` is there
                m.d.sync += index.eq(index + 1)
                for q, command in enumerate(self.o_command):
                    with m.If(queue == q):
                        for n in range(count):
                            with m.If(index == n + 1):
                                m.d.sync += _set_word(command.payload, n, read.data)
                        with m.If(index == count):
                            m.d.sync += [command.valid.eq(1), given[q].eq(given[q] + 1)]
                with m.If(index == count):
                    m.d.sync += [index.eq(0), queue.eq(next_queue)]
                    m.next = "CHOOSE"
        return m
