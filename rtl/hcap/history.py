"""Which of one head's groups are scanned, by their attention history (golden `select_groups`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.hcap.history import HISTORY_BITS
from rtl.config import AcceleratorConfig
from rtl.hcap._histogram import Histogram
from rtl.hcap._history_code import CODES, HistoryCode

__all__ = ["History"]

_INDEX_BITS = 20
#: from the address of a group to its code
_STAGES = 4


class History(wiring.Component):
    """Takes the histories of a head's groups and lists the groups that are worth a scan.

    The histories go to block RAM, their codes to a histogram, whose scan gives the threshold. Then a walk over the
    histories gives out the groups whose code reaches it, and the first group.

    Latency: without stalls the last group of a list is valid ``latency(groups)`` cycles after its command.
    Throughput: a history a cycle, a group a cycle. One list at a time, which ends with the transfer of its last group.
    Stalls: while ``o`` waits the walk stops. After a reset no command is taken until the histogram is clear.
    Combinational paths: none between streams; ``ready`` depends on registers alone.

    Parameters
    ----------
    config : AcceleratorConfig
        Of which only ``mha.max_groups`` matters.

    Members
    -------
    i_command : stream of struct{groups, drop_count}: a list of the first ``groups`` groups, of which at most
        ``drop_count`` may be dropped. More groups than ``max_groups`` count as that many; of none there is no list.
    i_history : stream of the histories of these groups, the first one first
    o : stream of struct{group, last}: groups to scan, ascending
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.max_groups = config.mha.max_groups
        self.command_shape = data.StructLayout({"groups": _INDEX_BITS + 1, "drop_count": _INDEX_BITS})
        self.o_shape = data.StructLayout({"group": _INDEX_BITS, "last": 1})
        super().__init__(
            {
                "i_command": In(stream.Signature(self.command_shape)),
                "i_history": In(stream.Signature(HISTORY_BITS)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig, groups: int) -> int:
        """Cycles from the command of a list of at least one group to its last group, if all histories wait."""
        return 2 * (groups + _STAGES + 1) + Histogram.latency(CODES)

    def _output(self, m: Module, advance: Value, scanned: Value, place: Signal, flush: Signal) -> None:
        """Gives out each scanned group when the next one is found, or as the last one."""
        found, waiting = Signal.like(place), Signal()
        with m.If(advance):
            m.d.sync += self.o.valid.eq(flush | (scanned & waiting))
            with m.If(flush | scanned):
                m.d.sync += [self.o.payload.group.eq(found), self.o.payload.last.eq(flush)]
                m.d.sync += [found.eq(place), waiting.eq(~flush)]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        addr_bits = max(1, ceil_log2(self.max_groups))
        m.submodules.histories = histories = Memory(shape=unsigned(HISTORY_BITS), depth=1 << addr_bits, init=[])
        m.submodules.histogram = histogram = Histogram(bins=CODES, amount_bits=1, limit_bits=_INDEX_BITS)
        m.submodules.coder = coder = HistoryCode()
        write, read = histories.write_port(), histories.read_port()

        # A walk: cycle 1 a group's address, 2 its word, 3 its history, 5 its code. One that arrives is there at once.
        groups, drop_count = Signal(range(self.max_groups + 1)), Signal(_INDEX_BITS)
        threshold = Signal(bits_for(CODES))
        giving = Signal()
        advance = ~self.o.valid | self.o.ready
        load, walk, valid = Signal(), Signal(), Signal(_STAGES)
        group, left = Signal(addr_bits), Signal.like(groups)
        places = [Signal(addr_bits, name=f"place_{n}") for n in range(_STAGES)]
        old = Signal(HISTORY_BITS)
        m.d.comb += [read.addr.eq(group), read.en.eq(advance), coder.en.eq(advance), coder.history.eq(old)]
        with m.If(advance):
            m.d.sync += [
                valid.eq(Cat(walk, valid[0] | load, valid[1:])),
                Cat(places).eq(Cat(group, places)),
                old.eq(Mux(load, self.i_history.payload, read.data)),
            ]
            with m.If(walk | load):
                m.d.sync += [group.eq(group + 1), left.eq(left - 1)]
        m.d.comb += [
            write.en.eq(load),
            write.addr.eq(group),
            write.data.eq(self.i_history.payload),
            histogram.add.eq(valid[-1] & ~giving),
            histogram.bin.eq(coder.code),
            histogram.amount.eq(1),
            histogram.limit.eq(drop_count),
        ]
        scanned = valid[-1] & giving & ((coder.code >= threshold) | (places[-1] == 0))
        flush = Signal()
        self._output(m, advance, scanned, places[-1], flush)

        command = self.i_command.payload
        wanted = Mux(command.groups > self.max_groups, self.max_groups, command.groups)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(histogram.ready)
                m.d.sync += [drop_count.eq(command.drop_count), groups.eq(wanted)]
                m.d.sync += [giving.eq(0), group.eq(0), left.eq(wanted)]
                with m.If(self.i_command.valid & histogram.ready & (wanted != 0)):
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += [self.i_history.ready.eq(1), load.eq(self.i_history.valid)]
                with m.If(load & (left == 1)):
                    m.next = "DRAIN"
            with m.State("WALK"):
                m.d.comb += walk.eq(1)
                with m.If(advance & (left == 1)):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(~valid.any() & advance):
                    m.d.comb += [flush.eq(giving), histogram.scan.eq(~giving)]
                    m.next = "SCAN"
                    with m.If(giving):
                        m.next = "LAST"
            with m.State("SCAN"):
                m.d.comb += histogram.o.ready.eq(1)
                m.d.sync += [threshold.eq(histogram.o.payload), group.eq(0), left.eq(groups), giving.eq(1)]
                with m.If(histogram.o.valid):
                    m.next = "WALK"
            with m.State("LAST"):
                with m.If(self.o.ready):
                    m.next = "COMMAND"
        return m
