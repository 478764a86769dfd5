"""Attention history of one head's groups, and which of them are scanned (golden `update_history`, `select_groups`)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.hcap.history import HISTORY_BITS
from rtl.common.fixed import saturate_unsigned
from rtl.config import AcceleratorConfig
from rtl.hcap._accumulators import Accumulators
from rtl.hcap._histogram import Histogram
from rtl.hcap._history_code import CODES, HistoryCode

__all__ = ["History", "HistoryOp"]

_INDEX_BITS = 20
_MASS_BITS = 20
#: from the address of a group to its code
_STAGES = 4


class HistoryOp(enum.Enum, shape=2):
    """What a command has done."""

    #: a group is full: the histories of the first ``groups`` move on
    CLOSE = 0
    #: which of the first ``groups`` are scanned if ``drop_count`` may be dropped
    LIST = 1
    #: a new sequence: no group has a history
    CLEAR = 2


class History(wiring.Component):
    """Sums up the attention mass of groups, ages it when a group closes, lists the groups that are worth a scan.

    Each group has a history and the mass since the last close, in two block RAMs. A list takes two walks over the
    histories: the first one counts their codes in a histogram, whose scan gives the threshold; the second one gives out
    the groups whose code reaches it, and the first group.

    Latency: without stalls the last group of a list is valid ``latency(groups)`` cycles after its command. A close of
    ``groups``, or a clear of all, takes ``close_cycles(groups)`` until the next command is taken.
    Throughput: one mass a cycle. One command at a time: a list ends with the transfer of its last group.
    Stalls: while ``o`` waits the walk stops. Masses are taken during lists; not while histories change. CLOSE and CLEAR
    wait for the end of a row of masses that has begun. After a reset no command is taken until the histogram is clear.
    Combinational paths: none between streams; ``ready`` depends on registers alone.

    The memories keep their content in a reset, which may leave a close half done: CLEAR comes first. Groups that a
    CLOSE does not name keep their mass for a later one. ``groups`` above ``config.mha.max_groups`` count as that many;
    masses of groups beyond are dropped. CLOSE and LIST of no groups do nothing: such a list gives no transfer.

    Parameters
    ----------
    config: of which only ``mha.max_groups`` matters.

    Members
    -------
    i_command : stream: ``op`` (3 does as CLOSE), ``groups`` (not for CLEAR), ``drop_count`` (for LIST alone).
    i_mass : stream: ``mass`` is added to group ``index``; ``last`` ends a row of masses, those of one query.
    o : stream: ``group``, ascending, ``last`` of its list. The first group is always there.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.max_groups = config.mha.max_groups
        self.command_shape = data.StructLayout({"op": HistoryOp, "groups": _INDEX_BITS + 1, "drop_count": _INDEX_BITS})
        self.mass_shape = data.StructLayout({"index": _INDEX_BITS, "mass": _MASS_BITS, "last": 1})
        self.o_shape = data.StructLayout({"group": _INDEX_BITS, "last": 1})
        super().__init__(
            {
                "i_command": In(stream.Signature(self.command_shape)),
                "i_mass": In(stream.Signature(self.mass_shape)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig, groups: int) -> int:
        """Cycles from a LIST of at least one group to its last group."""
        return 2 * (groups + _STAGES + 1) + Histogram.latency(CODES) + 1

    @staticmethod
    def close_cycles(config: AcceleratorConfig, groups: int) -> int:
        """Cycles from a CLOSE of at least one group, or a CLEAR (of ``max_groups``), to the next command."""
        return groups + _STAGES + 3

    def _masses(self, m: Module, recent: Accumulators, closing: Signal, walk: Signal, group: Signal) -> Value:
        """Adds masses, or clears them while histories change; whether a row of masses goes on after this cycle."""
        payload = self.i_mass.payload
        transfer = self.i_mass.valid & ~closing
        in_row = Signal()
        row_goes_on = Mux(transfer, ~payload.last, in_row)
        m.d.sync += in_row.eq(row_goes_on)
        m.d.comb += [
            self.i_mass.ready.eq(~closing),
            recent.en.eq(Mux(closing, walk, transfer & (payload.index < self.max_groups))),
            recent.addr.eq(Mux(closing, group, payload.index)),
            recent.amount.eq(payload.mass),
            recent.clear.eq(closing),
        ]
        return row_goes_on

    def _output(self, m: Module, advance: Value, scanned: Value, place: Signal, flush: Signal) -> None:
        """Gives out each scanned group when the next one is found, or as the last one."""
        found, waiting = Signal.like(place), Signal()
        with m.If(advance):
            m.d.sync += self.o.valid.eq(flush | (scanned & waiting))
            with m.If(flush | scanned):
                m.d.sync += [self.o.payload.group.eq(found), self.o.payload.last.eq(flush)]
                m.d.sync += [found.eq(place), waiting.eq(~flush)]

    def elaborate(self, platform):
        m = Module()
        addr_bits = max(1, ceil_log2(self.max_groups))
        m.submodules.histories = histories = Memory(shape=unsigned(HISTORY_BITS), depth=1 << addr_bits, init=[])
        m.submodules.recent = recent = Accumulators(depth=self.max_groups, bits=HISTORY_BITS, amount_bits=_MASS_BITS)
        m.submodules.histogram = histogram = Histogram(bins=CODES, amount_bits=1, limit_bits=_INDEX_BITS)
        m.submodules.coder = coder = HistoryCode()
        write, read = histories.write_port(), histories.read_port()

        # A walk: cycle 1 a group's address, 2 its word, 3 its history (CLOSE, CLEAR: written), 5 its code (LIST).
        op, groups = Signal(HistoryOp), Signal(range(self.max_groups + 1))
        drop_count = Signal(_INDEX_BITS)
        threshold = Signal(bits_for(CODES))
        giving = Signal()  # the second walk of a list
        advance = ~self.o.valid | self.o.ready
        walk, valid = Signal(), Signal(_STAGES)
        group = Signal(addr_bits)
        left = Signal.like(groups)
        places = [Signal(addr_bits, name=f"place_{n}") for n in range(_STAGES)]
        old = Signal(HISTORY_BITS)
        m.d.comb += [read.addr.eq(group), read.en.eq(advance), coder.en.eq(advance), coder.history.eq(old)]
        with m.If(advance):
            m.d.sync += [
                valid.eq(Cat(walk, valid)),
                Cat(places).eq(Cat(group, places)),
                old.eq(read.data),
            ]
            with m.If(walk):
                m.d.sync += [group.eq(group + 1), left.eq(left - 1)]

        closing = Signal()
        row_goes_on = self._masses(m, recent, closing, walk, group)
        moved = saturate_unsigned((old >> 1) + recent.value, HISTORY_BITS)
        m.d.comb += [
            write.en.eq(closing & valid[1]),
            write.addr.eq(places[1]),
            write.data.eq(Mux(op == HistoryOp.CLEAR, 0, moved)),
            histogram.add.eq(valid[-1] & ~closing & ~giving),
            histogram.bin.eq(coder.code),
            histogram.amount.eq(1),
            histogram.limit.eq(drop_count),
        ]
        scanned = valid[-1] & giving & ((coder.code >= threshold) | (places[-1] == 0))
        flush = Signal()
        self._output(m, advance, scanned, places[-1], flush)

        command = self.i_command.payload
        everything = (command.groups > self.max_groups) | (command.op == HistoryOp.CLEAR)
        wanted = Mux(everything, self.max_groups, command.groups)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(histogram.ready)
                m.d.sync += [op.eq(command.op), drop_count.eq(command.drop_count), groups.eq(wanted)]
                m.d.sync += [giving.eq(0), group.eq(0), left.eq(wanted)]
                with m.If(self.i_command.valid & histogram.ready & (wanted != 0)):
                    m.next = "HALT"
                    with m.If(command.op == HistoryOp.LIST):
                        m.next = "WALK"
            with m.State("HALT"):
                with m.If(~row_goes_on):
                    m.d.sync += closing.eq(1)
                    m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += walk.eq(1)
                with m.If(advance & (left == 1)):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(~valid.any() & advance):
                    m.d.sync += closing.eq(0)
                    m.d.comb += flush.eq(giving)
                    m.next = "COMMAND"
                    with m.If(giving):
                        m.next = "LAST"
                    with m.Elif(~closing):
                        m.d.comb += histogram.scan.eq(1)
                        m.next = "SCAN"
            with m.State("SCAN"):
                m.d.comb += histogram.o.ready.eq(1)
                m.d.sync += [threshold.eq(histogram.o.payload), group.eq(0), left.eq(groups), giving.eq(1)]
                with m.If(histogram.o.valid):
                    m.next = "WALK"
            with m.State("LAST"):
                with m.If(self.o.ready):
                    m.next = "COMMAND"
        return m
