"""Part of the DSQ engine: a group is full (golden `HeadState.close_group`)."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from golden.cache.page_table import PageStatus
from golden.control.commands import LINE_BYTES, Opcode
from golden.dsq.record import RecordLayout
from rtl.cache._read_port import word_shape as read_word_shape
from rtl.cache._translator import words_layout
from rtl.cache._write_port import word_shape
from rtl.cache._writer import done_layout, write_layout
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._dsq_rows import BlockRows
from rtl.control._dsq_state import StateUpdate
from rtl.control._gearbox import Gearbox
from rtl.control._layout import Error, operand_layout
from rtl.control._layout import done_layout as command_done_layout
from rtl.dsq.compressor import Compressor
from rtl.dsq.salient import SalientPicker

__all__ = ["CALIBRATION_BITS", "GroupClose"]

#: of a channel in memory
CALIBRATION_BITS = 64


class GroupClose(wiring.Component):
    """Carries out CLOSE: votes, history and rows are read at once; the record is written if none of it was in error.

    Members
    -------
    start, operands : strobe; the operands of a CLOSE that has been checked, which hold until ``done``
    done, result : strobe; how it ended
    others : of DsqEngine
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        reads, writes = KvCache.axi_configs(config)
        super().__init__(
            {
                "start": In(1),
                "operands": In(operand_layout(Opcode.CLOSE)),
                "done": Out(1),
                "result": Out(command_done_layout()),
                "o_read": Out(stream.Signature(reads.request_shape)),
                "i_read": In(stream.Signature(read_word_shape(reads))),
                "o_write": Out(stream.Signature(writes.request_shape)),
                "o_word": Out(stream.Signature(word_shape(writes))),
                "i_written": In(stream.Signature(1)),
                "outside": In(1),
                "o_fetch": Out(stream.Signature(words_layout(config))),
                "i_fetch": In(stream.Signature(read_word_shape(reads))),
                "o_store": Out(stream.Signature(write_layout(config))),
                "o_store_word": Out(stream.Signature(word_shape(writes))),
                "i_stored": In(stream.Signature(done_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, given = self.config, self.operands
        m.submodules.state = state = StateUpdate(config)
        m.submodules.compressor = compressor = Compressor(config.dsq)
        m.submodules.rows = rows = BlockRows(config, compressor.i_row_shape)
        m.submodules.calibration = channels = Gearbox(
            config.dsq.bus_bits, CALIBRATION_BITS, max_parts=config.dsq.head_dim * CALIBRATION_BITS // 32
        )
        connect(m, rows.o, compressor.i_row)
        for name in ("o_fetch", "i_fetch"):
            connect(m, getattr(rows, name), flipped(getattr(self, name)))
        for name in ("o_write", "o_word", "i_written"):
            connect(m, getattr(state, name), flipped(getattr(self, name)))
        m.d.comb += [
            state.start.eq(self.start),
            state.state.eq(given.state),
            state.groups.eq(given.groups),
            state.votes.eq(given.compress),
            rows.start.eq(self.start & given.compress),
            rows.sequence.eq(given.sequence),
            rows.stream.eq(given.stream),
            rows.group.eq(given.group),
        ]
        self._pick(m, state, compressor)
        asking, calibrating = Signal(), Signal()
        calibrated, failed = self._calibrate(m, state, compressor, channels, asking, calibrating)
        storing, stored = Signal(), Signal(done_layout())
        self._store(m, compressor, storing)
        m.d.comb += [
            compressor.i_group.payload.salient_tokens.eq(given.salient),
            compressor.i_group.payload.load_calibration.eq(1),
            compressor.i_group.payload.k_norm.eq(given.k_norm),
            compressor.i_group.payload.v_norm.eq(given.v_norm),
        ]
        unreadable = state.failed | failed | rows.failed
        with m.If((state.failed | failed) & self.outside):
            m.d.comb += self.result.error.eq(Error.ADDRESS)
        with m.Elif(unreadable):
            m.d.comb += self.result.error.eq(Error.MEMORY)
        with m.Elif(stored.error | (stored.status != PageStatus.OK)):
            m.d.comb += [self.result.error.eq(Error.WRITE), self.result.detail.eq(stored.status)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += stored.eq(0)
                with m.If(self.start):
                    m.next = "GATHER"
            with m.State("GATHER"):
                with m.If(~state.reading & rows.loaded):
                    m.next = "SETTLE"
                    with m.If(given.compress & ~unreadable):
                        m.next = "GROUP"
            with m.State("GROUP"):
                m.d.comb += compressor.i_group.valid.eq(1)
                with m.If(compressor.i_group.ready):
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += asking.eq(1)
                with m.If(self.o_read.ready):
                    m.next = "CALIBRATE"
            with m.State("CALIBRATE"):
                m.d.comb += calibrating.eq(1)
                with m.If(calibrated):
                    m.next = "SETTLE"
                    with m.If(~failed):
                        m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += self.o_store.valid.eq(1)
                with m.If(self.o_store.ready):
                    m.next = "RECORD"
            with m.State("RECORD"):
                m.d.comb += [storing.eq(1), self.i_stored.ready.eq(1)]
                with m.If(self.i_stored.valid):
                    m.d.sync += stored.eq(self.i_stored.payload)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                with m.If(state.written):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"
        return m

    def _pick(self, m: Module, state: StateUpdate, compressor: Compressor) -> None:
        """Salient tokens of the group that is compressed, from its votes."""
        c, given = self.config.dsq, self.operands
        m.submodules.picker = picker = SalientPicker(c)
        m.submodules.votes = votes = Gearbox(c.bus_bits, 32, max_parts=c.group_tokens)
        connect(m, state.o_vote, votes.i)
        connect(m, picker.o, compressor.i_salient)
        m.d.comb += [
            votes.parts.eq(c.group_tokens),
            picker.i_mass.valid.eq(votes.o.valid),
            picker.i_mass.payload.eq(votes.o.payload.data),
            votes.o.ready.eq(picker.i_mass.ready),
            picker.i_group.payload.salient_tokens.eq(given.salient),
            picker.i_group.payload.sink_tokens.eq(Mux(given.sinks > c.group_tokens, c.group_tokens, given.sinks)),
            picker.i_group.payload.first_group.eq(given.group == 0),
        ]
        with m.If(self.start & given.compress):
            m.d.sync += picker.i_group.valid.eq(1)
        with m.Elif(picker.i_group.ready):
            m.d.sync += picker.i_group.valid.eq(0)

    def _calibrate(
        self,
        m: Module,
        state: StateUpdate,
        compressor: Compressor,
        channels: Gearbox,
        asking: Signal,
        calibrating: Signal,
    ) -> tuple[Signal, Signal]:
        """The read port is that of the state, then that of the calibration.

        Returns whether the calibration's last channel is given, and whether any of its words was in error.
        """
        c, read, i = self.config.dsq, self.o_read, self.i_read
        words = -(-c.head_dim * CALIBRATION_BITS // c.bus_bits)
        failed = Signal()
        m.d.comb += [
            read.valid.eq(state.o_read.valid | asking),
            read.payload.eq(state.o_read.payload),
            state.o_read.ready.eq(read.ready),
            state.i_read.valid.eq(i.valid & ~calibrating),
            state.i_read.payload.eq(i.payload),
            channels.parts.eq(c.head_dim * CALIBRATION_BITS // min(c.bus_bits, CALIBRATION_BITS)),
            channels.i.valid.eq(i.valid & calibrating),
            channels.i.payload.eq(i.payload.data),
            i.ready.eq(Mux(calibrating, channels.i.ready, state.i_read.ready)),
            compressor.i_calibration.valid.eq(channels.o.valid),
            compressor.i_calibration.payload.eq(channels.o.payload.data),
            channels.o.ready.eq(compressor.i_calibration.ready),
        ]
        with m.If(asking):
            m.d.comb += [
                read.payload.address.eq(self.operands.calibration << ceil_log2(8 * LINE_BYTES // c.bus_bits)),
                read.payload.count.eq(words),
                read.payload.bad.eq(0),
            ]
        with m.If(i.valid & i.ready & calibrating & i.payload.error):
            m.d.sync += failed.eq(1)
        given = channels.o.valid & channels.o.ready & channels.o.payload.last
        return given, failed

    def _store(self, m: Module, compressor: Compressor, storing: Signal) -> None:
        """The record's words; how many they are follows from the salient count."""
        c, given, store = self.config.dsq, self.operands, self.o_store
        geometry = {name: getattr(c, name) for name in ("head_dim", "group_tokens", "delta_bits", "bus_bits")}
        counts = [
            RecordLayout(**geometry, salient_tokens=max(s, 1)).record_bytes * 8 // c.bus_bits
            for s in range(c.max_salient + 1)
        ]
        m.d.comb += [
            *(store.payload[name].eq(given[name]) for name in ("sequence", "stream", "group")),
            store.payload.count.eq(Array(counts)[given.salient]),
            store.payload.commit.eq(1),
            self.o_store_word.valid.eq(compressor.o.valid & storing),
            self.o_store_word.payload.data.eq(compressor.o.payload.data),
            self.o_store_word.payload.strb.eq(~0),
            compressor.o.ready.eq(self.o_store_word.ready & storing),
        ]
