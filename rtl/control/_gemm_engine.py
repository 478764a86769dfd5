"""Part of the control: projections of rows of the scratchpad, by a GEMM core."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.cache._read_port import word_shape
from rtl.common.stage import ForwardStage
from rtl.config import AcceleratorConfig
from rtl.control._gemm_fetch import GemmFetch, memory_port
from rtl.control._gemm_front import COMMANDS, NUMBER_BITS, GemmFront, order_layout
from rtl.control._gemm_places import GemmResiduals
from rtl.control._gemm_results import GemmMagnitudes, GemmResults
from rtl.control._gemm_rows import GemmRows
from rtl.control._gemm_words import WordSplitter
from rtl.control._layout import Error, command_layout, done_layout
from rtl.control.scratchpad import MAGNITUDE_BITS, ask_layout, magnitude_layout, read_layout, word_layout, write_layout
from rtl.gemm.core import Fault, GemmCore

__all__ = ["GemmEngine"]


class GemmEngine(wiring.Component):
    """Carries out PROJECT with a GEMM core, memory and the scratchpad.

    Up to `COMMANDS` commands are under way. A command's angles, parameters and weights are asked for as soon as it is
    there, its rows after its go. A command that the core would refuse is answered without having been begun.

    Latency: ``LATENCY`` cycles from a command of one row tile, without turned heads, to its first request of memory, if
    no earlier one is asked for; ``NOP_LATENCY`` from the go of a NOP to its end.
    Throughput: that of the core, if memory gives the words of a tile in the cycles of its k steps.
    Stalls: any stream may stall.
    Combinational paths: those of `GemmRows` and `GemmResiduals` between scratchpad and core.

    Parameters
    ----------
    config : for which ``config.check_accelerator()`` holds
    core : from which the shapes of its streams are taken

    Members
    -------
    core : number of the core
    i_command, i_go, o_done : a command, that it may go, how it ended. After an error no command is taken until reset
    o_read, i_read : requests in words of memory, and their words
    outside : a request of memory lay outside the window
    gemm : all streams of the core
    o_row_read, i_row, o_ask, i_magnitude : words of rows in the scratchpad, and their magnitudes
    o_residual_read, i_residual : words of residuals
    o_write, o_magnitude : results, and the magnitudes of their rows
    """

    LATENCY: ClassVar[int] = 6
    NOP_LATENCY: ClassVar[int] = 2

    def __init__(self, config: AcceleratorConfig, core: GemmCore) -> None:
        self.config = config
        self._rows, self._residuals = GemmRows(config, core), GemmResiduals(config, core)
        memory, word = memory_port(config), word_layout(config)
        super().__init__(
            {
                "core": In(3),
                "i_command": In(stream.Signature(command_layout())),
                "i_go": In(stream.Signature(1)),
                "o_done": Out(stream.Signature(done_layout())),
                "o_read": Out(stream.Signature(memory.request_shape)),
                "i_read": In(stream.Signature(word_shape(memory))),
                "outside": In(1),
                "gemm": In(core.signature),
                "o_row_read": Out(stream.Signature(read_layout())),
                "i_row": In(stream.Signature(word)),
                "o_ask": Out(stream.Signature(ask_layout())),
                "i_magnitude": In(stream.Signature(MAGNITUDE_BITS)),
                "o_residual_read": Out(stream.Signature(read_layout())),
                "i_residual": In(stream.Signature(word)),
                "o_write": Out(stream.Signature(write_layout(config))),
                "o_magnitude": Out(stream.Signature(magnitude_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.front = front = GemmFront(c)
        m.submodules.fetch = fetch = GemmFetch(c)
        m.submodules.words = words = WordSplitter(c)
        m.submodules.rows = rows = self._rows
        m.submodules.residuals = residuals = self._residuals
        m.submodules.results = results = GemmResults(c)
        m.submodules.magnitudes = magnitudes = GemmMagnitudes(c)
        gemm = flipped(self.gemm)
        for source, target in (
            (flipped(self.i_command), front.i_command),
            (front.o_core, gemm.i_command),
            (fetch.o, flipped(self.o_read)),
            (flipped(self.i_read), words.i),
            (flipped(self.i_go), rows.i_go),
            (rows.o_read, flipped(self.o_row_read)),
            (flipped(self.i_row), rows.i_word),
            (rows.o_ask, flipped(self.o_ask)),
            (flipped(self.i_magnitude), rows.i_magnitude),
            (rows.o, gemm.i_row),
            (words.o_rotary, gemm.i_rotary),
            (words.o_column, gemm.i_column),
            (words.o_weight, gemm.i_weight),
            (gemm.o_residual, residuals.i),
            (residuals.o_read, flipped(self.o_residual_read)),
            (flipped(self.i_residual), residuals.i_word),
            (residuals.o, gemm.i_residual),
            (gemm.o_result, results.i),
            (results.o, flipped(self.o_write)),
            (gemm.o_row, magnitudes.i),
            (magnitudes.o, flipped(self.o_magnitude)),
        ):
            connect(m, source, target)
        plan = front.plan
        target = {"base": plan.target, "stride": plan.target_stride}
        source = {"base": plan.residual, "stride": plan.residual_stride}
        self._queue(m, "fetch", fetch.i_command, plan.project)
        self._queue(m, "words", words.i_command, plan.project)
        self._queue(m, "rows", rows.i_command, 1)
        self._queue(m, "residuals", residuals.i_command, plan.project & front.adds, **source)
        self._queue(m, "results", results.i_command, plan.project, **target)
        self._queue(m, "magnitudes", magnitudes.i_command, plan.project, first=plan.target_magnitude)
        stopped = self._answer(m, fetch.beyond)
        m.d.comb += [front.stop.eq(stopped), words.drop.eq(stopped), magnitudes.core.eq(self.core)]
        return m

    def _queue(self, m: Module, name: str, target: Any, wanted: Value, **fields: Value) -> None:
        """Commands that wait for a part, the first in a register; fields not given are called so in the plan."""
        front = m.submodules.front
        shape = target.payload.shape()
        m.submodules[f"{name}_commands"] = queue = SyncFIFO(width=shape.size, depth=COMMANDS)
        m.submodules[f"{name}_stage"] = stage = ForwardStage(shape)
        command = Signal(shape, name=f"{name}_command")
        m.d.comb += [
            *(command[field].eq(fields[field] if field in fields else front.plan[field]) for field in shape.members),
            queue.w_en.eq(front.give & wanted),
            queue.w_data.eq(command),
            stage.i.valid.eq(queue.r_rdy),
            stage.i.payload.eq(queue.r_data),
            queue.r_en.eq(stage.i.ready),
        ]
        connect(m, stage.o, target)

    def _answer(self, m: Module, beyond: Value) -> Signal:
        """Ends of commands in their order; returns whether one has ended with an error."""
        front, rows, gemm = m.submodules.front, m.submodules.rows, flipped(self.gemm)
        results, magnitudes = m.submodules.results, m.submodules.magnitudes
        # No more commands are in any queue than in this one.
        m.submodules.orders = orders = SyncFIFO(width=order_layout().size, depth=COMMANDS)
        order = data.View(order_layout(), orders.r_data)
        ends, answer, stopped = Signal(), Signal(), Signal()
        m.d.comb += [
            front.room.eq(orders.w_rdy),
            orders.w_en.eq(front.give),
            orders.w_data.eq(front.order),
            orders.r_en.eq(answer),
            gemm.o_done.ready.eq(answer & order.project),
        ]
        happened = []
        for name, strobe, undone in (
            ("gone", rows.gone, answer),
            ("written", results.ended, answer & order.project),
            ("sized", magnitudes.ended, answer & order.project),
        ):
            count = Signal(range(COMMANDS + 1), name=name)
            m.d.sync += count.eq(count + strobe - undone)
            happened.append(count != 0)
        gone, written, sized = happened
        m.d.comb += [
            ends.eq(orders.r_rdy & gone & (~order.project | (gemm.o_done.valid & written & sized))),
            answer.eq(ends & (~self.o_done.valid | self.o_done.ready)),
        ]

        # What has happened to each command that is under way.
        failed, outside = Signal(1 << NUMBER_BITS), Signal(1 << NUMBER_BITS)
        for flags, part, strobe in (
            (failed, m.submodules.words, m.submodules.words.failed),
            *((outside, part, part.outside) for part in (rows, m.submodules.residuals, results, magnitudes)),
        ):
            with m.If(strobe):
                m.d.sync += flags.bit_select(part.number, 1).eq(1)
        error, detail = Signal(Error), Signal(Fault)
        with m.If(order.fault != Fault.NONE):
            m.d.comb += [error.eq(Error.GEMM), detail.eq(order.fault)]
        with m.Elif(failed.bit_select(order.number, 1)):
            m.d.comb += error.eq(Mux(self.outside | beyond, Error.ADDRESS, Error.MEMORY))
        with m.Elif(outside.bit_select(order.number, 1)):
            m.d.comb += error.eq(Error.SCRATCHPAD)
        with m.If(~self.o_done.valid | self.o_done.ready):
            m.d.sync += [self.o_done.valid.eq(ends), self.o_done.payload.error.eq(error)]
            m.d.sync += self.o_done.payload.detail.eq(detail)
            with m.If(ends & (error != Error.NONE)):
                m.d.sync += stopped.eq(1)
        return stopped
