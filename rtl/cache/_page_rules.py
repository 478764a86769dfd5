"""Part of PageTable: how a command ends and what becomes of its sequence."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.cache.page_table import MAX_USERS, PageOp, PageStatus

__all__ = ["PageRules", "sequence_layout"]


def sequence_layout(max_groups: int, streams: int) -> data.StructLayout:
    """State of an open sequence.

    Groups below ``blocks_begin`` have a record, and so has that group while it is ``compressing``, from RECORD to
    RELEASE; ``commits_left`` streams have not committed it. There are blocks from ``blocks_begin`` to ``blocks_end``.
    """
    groups = unsigned(bits_for(max_groups))
    return data.StructLayout(
        {
            "blocks_begin": groups,
            "blocks_end": groups,
            "compressing": 1,
            "commits_left": bits_for(streams),
            "users": bits_for(MAX_USERS),
        }
    )


class PageRules(wiring.Component):
    """Status and new state; combinational.

    Members
    -------
    op : the command.
    exists : all numbers of the command do.
    opened, source_opened : the sequence (FORK: the source, too) is open.
    committed : the stream of the command has committed the newest record, if there is one.
    no_block, no_record : pools without a free page.
    before, after : state of the sequence, of the source for FORK; ``after`` counts if ``status`` is OK.
    """

    def __init__(self, *, max_groups: int, streams: int) -> None:
        self.max_groups = max_groups
        self.streams = streams
        layout = sequence_layout(max_groups, streams)
        flags = ("exists", "opened", "source_opened", "committed", "no_block", "no_record")
        super().__init__(
            {
                "op": In(PageOp),
                **{flag: In(1) for flag in flags},
                "before": In(layout),
                "after": Out(layout),
                "status": Out(PageStatus),
            }
        )

    def elaborate(self, platform):
        m = Module()
        before, after = self.before, self.after
        no_blocks = before.blocks_begin == before.blocks_end
        refused = Signal(PageStatus)  # of a command that may be given
        m.d.comb += after.eq(before)
        with m.Switch(self.op):
            with m.Case(PageOp.OPEN):
                m.d.comb += after.eq(0)
            with m.Case(PageOp.BLOCK):
                m.d.comb += after.blocks_end.eq(before.blocks_end + 1)
                with m.If(before.blocks_end == self.max_groups):
                    m.d.comb += refused.eq(PageStatus.RANGE)
                with m.Elif(self.no_block):
                    m.d.comb += refused.eq(PageStatus.FULL)
            with m.Case(PageOp.RECORD):
                m.d.comb += [after.compressing.eq(1), after.commits_left.eq(self.streams)]
                with m.If(before.compressing | no_blocks):
                    m.d.comb += refused.eq(PageStatus.ORDER)
                with m.Elif(self.no_record):
                    m.d.comb += refused.eq(PageStatus.FULL)
            with m.Case(PageOp.COMMIT):
                m.d.comb += after.commits_left.eq(before.commits_left - 1)
                with m.If(~before.compressing | self.committed):
                    m.d.comb += refused.eq(PageStatus.REPEATED)
            with m.Case(PageOp.RELEASE):
                m.d.comb += [after.compressing.eq(0), after.blocks_begin.eq(before.blocks_begin + 1)]
                with m.If(~before.compressing):
                    m.d.comb += refused.eq(PageStatus.ORDER)
                with m.Elif((before.commits_left != 0) | (before.users != 0)):
                    m.d.comb += refused.eq(PageStatus.BUSY)
            with m.Case(PageOp.FORK):
                m.d.comb += after.users.eq(0)
                with m.If(before.compressing):
                    m.d.comb += refused.eq(PageStatus.BUSY)
                with m.Elif(~no_blocks & self.no_block):
                    m.d.comb += refused.eq(PageStatus.FULL)
            with m.Case(PageOp.END):
                with m.If(before.users != 0):
                    m.d.comb += refused.eq(PageStatus.BUSY)
            with m.Case(PageOp.HOLD):
                m.d.comb += after.users.eq(before.users + 1)
                with m.If(before.users == MAX_USERS):
                    m.d.comb += refused.eq(PageStatus.FULL)
            with m.Case(PageOp.DROP):
                m.d.comb += after.users.eq(before.users - 1)
                with m.If(before.users == 0):
                    m.d.comb += refused.eq(PageStatus.ORDER)

        begins = (self.op == PageOp.OPEN) | (self.op == PageOp.FORK)
        must_be_open = Mux(self.op == PageOp.FORK, self.source_opened, self.opened | begins)
        m.d.comb += self.status.eq(refused)
        with m.If(~self.exists):
            m.d.comb += self.status.eq(PageStatus.RANGE)
        with m.Elif(begins & self.opened):
            m.d.comb += self.status.eq(PageStatus.OPENED)
        with m.Elif(~must_be_open):
            m.d.comb += self.status.eq(PageStatus.CLOSED)
        return m
