"""Part of the control: tokens into INT8 blocks, full groups into records, pages."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for, ceil_log2

from golden.cache.page_table import PageOp, PageStatus
from golden.control.commands import LINE_BYTES, Opcode
from rtl.cache._read_port import word_shape as read_word_shape
from rtl.cache._translator import words_layout
from rtl.cache._write_port import word_shape
from rtl.cache._writer import done_layout, write_layout
from rtl.cache.cache import KvCache
from rtl.config import AcceleratorConfig
from rtl.control._dsq_append import Appender, append_layout
from rtl.control._dsq_close import CALIBRATION_BITS, GroupClose
from rtl.control._dsq_state import part_lines
from rtl.control._layout import Error, command_layout, operand_layout
from rtl.control._layout import done_layout as command_done_layout
from rtl.control.scratchpad import read_layout, word_layout
from rtl.dsq.row_quantizer import RowQuantizer

__all__ = ["DsqEngine"]


_GROUP_BITS = 20


def page_layout() -> data.StructLayout:
    """A command of PageTable."""
    return data.StructLayout({"op": PageOp, "sequence": 8, "source": 8, "stream": 16})


def reply_layout(config: AcceleratorConfig) -> data.StructLayout:
    """How KvCache answers it."""
    page = bits_for(max(config.cache.record_pages, config.cache.block_pages) - 1)
    numbers = {"group": _GROUP_BITS + 1, "blocks_end": _GROUP_BITS + 1, "page": page, "other": page}
    return data.StructLayout({"reply": data.StructLayout({"status": PageStatus, **numbers}), "failed": 1})


class DsqEngine(wiring.Component):
    """Carries out APPEND, CLOSE and PAGE.

    APPENDs that follow each other overlap; other commands begin when all before them have been answered. A command
    whose operands are impossible is answered before anything has been read or written.

    Throughput: at most `append_cycles` an APPEND.
    Stalls: any stream may stall.
    Combinational paths: none.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    i_command, i_go, o_done : a command, that it may go, how it ended. After an error no command is taken until reset
    o_read, i_read : requests in words of memory, and their words
    o_write, o_word, i_written : requests, words with byte strobes, whether each request failed
    outside : a request of memory lay outside the window
    o_fetch, i_fetch : requests for words of pages, and the words
    o_store, o_store_word, i_stored : writes to pages, their words with byte strobes, how each ended
    o_page, i_page : commands of PageTable, and struct{reply, failed}
    o_scratch_read, i_scratch_read : words of the scratchpad
    scratch_outside : an access lay behind the end of the scratchpad
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        reads, writes = KvCache.axi_configs(config)
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout())),
                "i_go": In(stream.Signature(1)),
                "o_done": Out(stream.Signature(command_done_layout())),
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
                "o_page": Out(stream.Signature(page_layout())),
                "i_page": In(stream.Signature(reply_layout(config))),
                "o_scratch_read": Out(stream.Signature(read_layout())),
                "i_scratch_read": In(stream.Signature(word_layout(config))),
                "scratch_outside": In(1),
            }
        )

    @staticmethod
    def append_cycles(config: AcceleratorConfig) -> int:
        """The most cycles from one APPEND to the next one, on the average of many, if nothing stalls.

        Those of the quantizer, and those in which it waits for narrower words of the scratchpad.
        """
        late = max(-(-config.dsq.head_dim // config.gemm.row_lanes) - config.dsq.row_beats, 0)
        return sum(late + RowQuantizer.row_cycles(config.dsq, rotate=rotate) for rotate in (True, False))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.appender = appender = Appender(self.config)
        m.submodules.close = close = GroupClose(self.config)
        command, ending = Signal(command_layout()), Signal()
        result = Signal(command_done_layout())  # of the command that is being carried out
        stopped = Signal()
        self._connect(m, appender, close)
        append, page = (data.View(operand_layout(o), command.operands) for o in (Opcode.APPEND, Opcode.PAGE))
        m.d.comb += [
            *(appender.i.payload[name].eq(append[name]) for name in append_layout().members),
            close.operands.eq(command.operands),
            *(self.o_page.payload[name].eq(page[name]) for name in ("op", "sequence", "source", "stream")),
            self.o_done.valid.eq(appender.o.valid | ending),
            self.o_done.payload.eq(result),
            appender.o.ready.eq(self.o_done.ready),
        ]
        with m.If(appender.o.valid):
            m.d.comb += self.o_done.payload.error.eq(Mux(appender.o.payload, Error.WRITE, Error.NONE))
            m.d.comb += self.o_done.payload.detail.eq(0)
        with m.If(self.o_done.valid & (self.o_done.payload.error != Error.NONE)):
            m.d.sync += stopped.eq(1)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(~stopped)
                with m.If(self.i_command.valid & ~stopped):
                    m.d.sync += command.eq(self.i_command.payload)
                    m.next = "CHECK"
            with m.State("CHECK"):
                self._check(m, command, result)
                m.next = "GO"
            with m.State("GO"):
                m.d.comb += self.i_go.ready.eq(~stopped)
                with m.If(self.i_go.valid & ~stopped):
                    m.next = "DRAIN"
                    with m.If((command.opcode == Opcode.APPEND) & (result.error == Error.NONE)):
                        m.next = "APPEND"
            with m.State("APPEND"):
                m.d.comb += appender.i.valid.eq(1)
                with m.If(appender.i.ready):
                    m.next = "COMMAND"
            with m.State("DRAIN"):
                with m.If(~appender.busy):
                    m.next = "END"
                    with m.If((command.opcode == Opcode.CLOSE) & (result.error == Error.NONE)):
                        m.d.comb += close.start.eq(1)
                        m.next = "CLOSE"
                    with m.If((command.opcode == Opcode.PAGE) & (result.error == Error.NONE)):
                        m.next = "PAGE"
            with m.State("CLOSE"):
                m.d.sync += result.eq(close.result)
                with m.If(close.done):
                    m.next = "END"
            with m.State("PAGE"):
                m.d.comb += self.o_page.valid.eq(1)
                with m.If(self.o_page.ready):
                    m.next = "REPLY"
            with m.State("REPLY"):
                m.d.comb += self.i_page.ready.eq(1)
                status = self.i_page.payload.reply.status
                refused = (status != PageStatus.OK) | self.i_page.payload.failed
                m.d.sync += [result.error.eq(Mux(refused, Error.PAGE, Error.NONE)), result.detail.eq(status)]
                with m.If(self.i_page.valid):
                    m.next = "END"
            with m.State("END"):
                m.d.comb += ending.eq(1)
                with m.If(self.o_done.ready):
                    m.next = "COMMAND"
        return m

    def _connect(self, m: Module, appender: Appender, close: GroupClose) -> None:
        """Memory belongs to CLOSE, the scratchpad to APPEND; of the writes to pages each has its time."""
        closes = ("o_read", "i_read", "o_write", "o_word", "i_written", "o_fetch", "i_fetch")
        for part, names in ((close, closes), (appender, ("o_scratch_read", "i_scratch_read"))):
            for name in names:
                connect(m, getattr(part, name), flipped(getattr(self, name)))
        m.d.comb += close.outside.eq(self.outside)
        for part, mine in ((appender, appender.busy), (close, ~appender.busy)):
            for name in ("o_store", "o_store_word"):
                inside, outside = getattr(part, name), getattr(self, name)
                m.d.comb += inside.ready.eq(outside.ready & mine)
                with m.If(mine):
                    m.d.comb += [outside.valid.eq(inside.valid), outside.payload.eq(inside.payload)]
            m.d.comb += part.i_stored.valid.eq(self.i_stored.valid & mine)
            m.d.comb += part.i_stored.payload.eq(self.i_stored.payload)
        m.d.comb += self.i_stored.ready.eq(Mux(appender.busy, appender.i_stored.ready, close.i_stored.ready))

    def _check(self, m: Module, command: data.View, result: Signal) -> None:
        """What is wrong with the operands goes into ``result``."""
        config, limits = self.config, self.config.control
        append, close = (data.View(operand_layout(o), command.operands) for o in (Opcode.APPEND, Opcode.CLOSE))
        row_words = -(-config.dsq.head_dim // config.gemm.row_lanes)
        memory_lines = 1 << config.cache.addr_bits - ceil_log2(LINE_BYTES)
        history_lines, vote_lines = part_lines(config)
        state_lines = 2 * history_lines + vote_lines
        calibration_lines = -(-config.dsq.head_dim * CALIBRATION_BITS // (8 * LINE_BYTES))

        def refuse(condition: Value, error: Error, detail: object = 0) -> None:
            with m.If(condition):
                m.d.sync += [result.error.eq(error), result.detail.eq(detail)]

        m.d.sync += result.eq(0)
        with m.Switch(command.opcode):
            with m.Case(Opcode.NOP, Opcode.PAGE):
                pass
            with m.Case(Opcode.APPEND):
                for source in (append.source_k, append.source_v):
                    refuse(source > limits.scratch_words - row_words, Error.SCRATCHPAD)
                refuse(append.stream >= config.cache.streams, Error.WRITE, PageStatus.RANGE)
                refuse(append.token >= config.dsq.group_tokens, Error.LENGTH)
            with m.Case(Opcode.CLOSE):
                beyond = close.calibration + calibration_lines > memory_lines
                refuse((close.state + state_lines > memory_lines) | (close.compress & beyond), Error.ADDRESS)
                refuse(close.compress & (close.stream >= config.cache.streams), Error.WRITE, PageStatus.RANGE)
                refuse(~close.compress & (close.groups == 0), Error.LENGTH)
                refuse(close.groups > config.mha.max_groups, Error.LENGTH)
                counts = (close.salient == 0) | (close.salient > config.dsq.max_salient)
                refuse(close.compress & (counts | (close.k_norm == 0) | (close.v_norm == 0)), Error.LENGTH)
            with m.Default():
                refuse(Value.cast(1), Error.OPCODE, command.opcode)
