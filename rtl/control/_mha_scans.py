"""Part of the MHA engine: what a query scans."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for

from golden.hcap.history import HISTORY_BITS
from rtl.cache._queue import Queue
from rtl.cache._read_port import word_shape
from rtl.cache.axi import AxiConfig
from rtl.common.stage import ForwardStage
from rtl.config import AcceleratorConfig
from rtl.control._dma_check import ceil_divide
from rtl.control._gearbox import Gearbox
from rtl.control._read_order import lines_layout
from rtl.hcap.history import History
from rtl.mha._requests import GROUP_BITS
from rtl.mha._scan import scan_layout

__all__ = ["ScanLists", "scans_layout"]

#: items that wait for the core, at most
_MOST_ITEMS = 512


def scans_layout(config: AcceleratorConfig) -> data.StructLayout:
    """``tokens`` in ``blocks`` INT8 blocks behind so many ``records`` of ``salient`` tokens; which records, tells the
    history at line ``state`` if ``by_history``."""
    groups = bits_for(config.mha.max_groups)
    return data.StructLayout(
        {
            "tokens": 21,
            "blocks": groups,
            "records": groups,
            "salient": 8,
            "by_history": 1,
            "drop_count": GROUP_BITS,
            "state": lines_layout()["line"].shape,
        }
    )


class ScanLists(wiring.Component):
    """Lists INT8 blocks, then records: all of them, or those that `History` finds worth a scan.

    Histories are asked for at once; the blocks are listed meanwhile. Up to ``_MOST_ITEMS`` items wait for the core.

    Latency: of the blocks 5 cycles to the first one; with histories that of History more, from the last word on.
    Throughput: an item a cycle.
    Stalls: any stream may stall. Words are always taken in the end.
    Combinational paths: none but ``i_word`` to its ``ready``.

    Members
    -------
    i : stream of `scans_layout`, of at least one block or record; the next one is taken when all is listed
    o_request, i_word : words of the history
    o : stream of `scan_layout`
    busy : not all is listed
    failed : memory refused a word of the last history
    """

    def __init__(self, config: AcceleratorConfig, memory: AxiConfig) -> None:
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(scans_layout(config))),
                "o_request": Out(stream.Signature(lines_layout())),
                "i_word": In(stream.Signature(word_shape(memory))),
                "o": Out(stream.Signature(scan_layout())),
                "busy": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        n = c.dsq.group_tokens
        m.submodules.lister = history = History(c)
        m.submodules.queue = queue = Queue(scan_layout(), depth=min(_MOST_ITEMS, max(16, c.mha.max_groups)))
        m.submodules.front = front = ForwardStage(scan_layout())  # behind block RAM
        connect(m, queue.o, front.i)
        connect(m, front.o, flipped(self.o))
        item, scans = queue.i.payload, Signal(scans_layout(c))
        left, group, tokens = Signal.like(scans.blocks), Signal.like(scans.records), Signal.like(scans.tokens)
        self._histories(m, scans, history)
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                asked = self.i.payload
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [scans.eq(asked), left.eq(asked.blocks), group.eq(asked.records), tokens.eq(asked.tokens)]
                with m.If(self.i.valid):
                    m.d.sync += self.failed.eq(0)
                    m.next = "LIST"
                    with m.If(asked.by_history & (asked.records != 0)):
                        m.next = "HISTORY"
            with m.State("HISTORY"):
                m.d.comb += history.i_command.valid.eq(1)
                with m.If(history.i_command.ready):
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.o_request.valid.eq(1)
                with m.If(self.o_request.ready):
                    m.next = "LIST"
            with m.State("LIST"):
                m.d.comb += [
                    queue.i.valid.eq(left != 0),
                    item.dense.eq(1),
                    item.group.eq(group),
                    item.count.eq(Mux(tokens < n, tokens, n)),
                    item.last.eq((left == 1) & (scans.records == 0)),
                ]
                with m.If(queue.i.valid & queue.i.ready):
                    m.d.sync += [left.eq(left - 1), group.eq(group + 1), tokens.eq(tokens - n)]
                with m.If(left == 0):
                    m.d.sync += [left.eq(scans.records), group.eq(0)]
                    m.next = "RECORDS"
                    with m.If(scans.records == 0):
                        m.next = "IDLE"
            with m.State("RECORDS"):
                found = history.o
                m.d.comb += [
                    queue.i.valid.eq(~scans.by_history | found.valid),
                    item.group.eq(Mux(scans.by_history, found.payload.group, group)),
                    item.count.eq(scans.salient),
                    item.last.eq(Mux(scans.by_history, found.payload.last, left == 1)),
                    found.ready.eq(scans.by_history & queue.i.ready),
                ]
                with m.If(queue.i.valid & queue.i.ready):
                    m.d.sync += [left.eq(left - 1), group.eq(group + 1)]
                    with m.If(item.last):
                        m.next = "IDLE"
        return m

    def _histories(self, m: Module, scans: data.View, history: History) -> None:
        """Words of memory to History, and what it is told."""
        c = self.config
        bits = c.dsq.bus_bits
        m.submodules.gearbox = gearbox = Gearbox(bits, HISTORY_BITS, max_parts=c.mha.max_groups)
        m.d.comb += [
            history.i_command.payload.groups.eq(scans.records),
            history.i_command.payload.drop_count.eq(scans.drop_count),
            self.o_request.payload.line.eq(scans.state),
            self.o_request.payload.count.eq(ceil_divide(scans.records, bits // HISTORY_BITS)),
            gearbox.parts.eq(scans.records),
            gearbox.i.valid.eq(self.i_word.valid),
            gearbox.i.payload.eq(self.i_word.payload.data),
            self.i_word.ready.eq(gearbox.i.ready),
            history.i_history.valid.eq(gearbox.o.valid),
            history.i_history.payload.eq(gearbox.o.payload.data),
            gearbox.o.ready.eq(history.i_history.ready),
        ]
        with m.If(self.i_word.valid & self.i_word.ready & self.i_word.payload.error):
            m.d.sync += self.failed.eq(1)
