"""Attention masses of a query, added to those of the groups and tokens of its cache (golden `add_masses`)."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for, ceil_log2

from golden.hcap.mass_bank import SUM_BITS
from rtl.config import AcceleratorConfig
from rtl.hcap._accumulators import Accumulators

__all__ = ["SUMS_OF_A_LINE", "MassBank"]

_INDEX_BITS = 20
_MASS_BITS = 20
#: sums that a line of memory holds; a bank has room for whole lines
SUMS_OF_A_LINE = 16
#: sums on their way out
_DEPTH = 8


class MassBank(wiring.Component):
    """Takes the sums of a cache, adds the masses of a query, gives the sums back.

    Sums are those of groups, then the votes of the tokens in the first two INT8 blocks. The mass of such a token counts
    for its group as well, that of a ``group`` for the group alone. Sums saturate.

    Latency: ``latency`` cycles from the last mass to the first sum.
    Throughput: a sum a cycle on the way in and out, a mass a cycle. One command at a time, which ends when its last sum
    has been read.
    Stalls: any stream may stall. Masses are taken when all sums are in.
    Combinational paths: none between streams; ``ready`` depends on registers alone.

    Parameters
    ----------
    config : AcceleratorConfig
        Of which ``mha.max_groups`` and ``dsq.group_tokens`` matter.

    Members
    -------
    i_command : stream of struct{groups, tokens, first}: how many sums of groups and of tokens, at least one in all, at
        most ``max_groups`` in whole lines and ``2 * group_tokens``; the group of token 0
    i, o : streams of sums
    i_mass : stream of struct{group, index, mass, last}, of MassNormalizer. Masses of what has no sum are dropped.
    """

    latency = 5

    def __init__(self, config: AcceleratorConfig) -> None:
        self.group_tokens = config.dsq.group_tokens
        self.groups = -(-config.mha.max_groups // SUMS_OF_A_LINE) * SUMS_OF_A_LINE
        self.tokens = 2 * self.group_tokens
        self.command_shape = data.StructLayout(
            {"groups": bits_for(self.groups), "tokens": bits_for(self.tokens), "first": _INDEX_BITS}
        )
        self.mass_shape = data.StructLayout({"group": 1, "index": _INDEX_BITS, "mass": _MASS_BITS, "last": 1})
        super().__init__(
            {
                "i_command": In(stream.Signature(self.command_shape)),
                "i": In(stream.Signature(SUM_BITS)),
                "i_mass": In(stream.Signature(self.mass_shape)),
                "o": Out(stream.Signature(SUM_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sizes = {"bits": SUM_BITS, "amount_bits": SUM_BITS}
        m.submodules.of_groups = of_groups = Accumulators(depth=self.groups, **sizes)
        m.submodules.of_tokens = of_tokens = Accumulators(depth=self.tokens, **sizes)
        banks = (of_groups, of_tokens)
        command = Signal(self.command_shape)
        load, read = Signal(), Signal()
        tokens, index, last = self._walk(m, command, load | read)
        room = self._give(m, banks, read, tokens)

        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(1)
                m.d.sync += [command.eq(self.i_command.payload), index.eq(0)]
                m.d.sync += tokens.eq(self.i_command.payload.groups == 0)
                with m.If(self.i_command.valid):
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += [self.i.ready.eq(1), load.eq(self.i.valid)]
                for bank, chosen in zip(banks, (~tokens, tokens), strict=True):
                    m.d.comb += [
                        bank.en.eq(load & chosen),
                        bank.addr.eq(index),
                        bank.clear.eq(1),
                        bank.amount.eq(self.i.payload),
                    ]
                with m.If(load & last):
                    m.next = "ADD"
            with m.State("ADD"):
                self._add(m, command, of_groups, of_tokens)
                with m.If(self.i_mass.valid & self.i_mass.payload.last):
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += [read.eq(room), of_groups.en.eq(read & ~tokens), of_tokens.en.eq(read & tokens)]
                m.d.comb += [bank.addr.eq(index) for bank in banks]
                with m.If(read & last):
                    m.next = "COMMAND"
        return m

    def _walk(self, m: Module, command: data.View, step: Value) -> tuple[Signal, Signal, Value]:
        """Which sum is at hand, of tokens or of groups; whether it is the last one, after which it begins anew."""
        tokens, index = Signal(), Signal(bits_for(max(self.groups, self.tokens)))
        ends = index == Mux(tokens, command.tokens, command.groups) - 1
        last = ends & (tokens | (command.tokens == 0))
        with m.If(step):
            m.d.sync += index.eq(index + 1)
            with m.If(ends):
                m.d.sync += [index.eq(0), tokens.eq(Mux(last, command.groups == 0, 1))]
        return tokens, index, last

    def _add(self, m: Module, command: data.View, of_groups: Accumulators, of_tokens: Accumulators) -> None:
        """A mass to its group, and to its token if it has one."""
        mass = self.i_mass.payload
        owner = Mux(mass.group, mass.index, command.first + (mass.index >> ceil_log2(self.group_tokens)))
        m.d.comb += [
            self.i_mass.ready.eq(1),
            of_groups.en.eq(self.i_mass.valid & (owner < self.groups)),
            of_groups.addr.eq(owner),
            of_groups.amount.eq(mass.mass),
            of_tokens.en.eq(self.i_mass.valid & ~mass.group & (mass.index < self.tokens)),
            of_tokens.addr.eq(mass.index),
            of_tokens.amount.eq(mass.mass),
        ]

    def _give(self, m: Module, banks: tuple[Accumulators, Accumulators], read: Signal, tokens: Signal) -> Value:
        """Give out the sums that are read; whether there is room for another one."""
        m.submodules.queue = queue = SyncFIFOBuffered(width=SUM_BITS, depth=_DEPTH)
        arriving, of_tokens = Signal(2), Signal(2)
        room = Signal(range(_DEPTH + 1), init=_DEPTH)
        m.d.sync += [
            arriving.eq(arriving << 1 | read),
            of_tokens.eq(of_tokens << 1 | tokens),
            room.eq(room - read + (self.o.valid & self.o.ready)),
        ]
        m.d.comb += [
            queue.w_en.eq(arriving[1]),
            queue.w_data.eq(Mux(of_tokens[1], banks[1].value, banks[0].value)),
        ]
        connect(m, queue.r_stream, flipped(self.o))
        return room != 0
