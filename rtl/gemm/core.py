"""Rows through a projection: norm, integer GEMM, rotary embedding, SwiGLU, residual (golden `project`)."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from golden.gemm.epilogue import Function
from rtl.common.stage import ForwardStage
from rtl.config import AcceleratorConfig
from rtl.gemm._collector import SumCollector, place_layout, residual_layout
from rtl.gemm._column_buffer import column_layout
from rtl.gemm._command import CommandDecoder, Fault, command_layout
from rtl.gemm._feeder import TileFeeder
from rtl.gemm._results import ResultStage, result_layout, row_layout
from rtl.gemm._rotary_table import angle_layout
from rtl.gemm.array import PeArray
from rtl.gemm.epilogue import Epilogue
from rtl.gemm.prologue import Prologue

__all__ = ["Fault", "GemmCore"]

#: commands that a part may be behind the decoder
COMMANDS = 16
#: residuals that are asked for and not taken, and answers that wait
RESIDUALS = 4


class GemmCore(wiring.Component):
    """Projections, one command after the other: rows in, normalized, multiplied, finished, rows out.

    For each tile of ``columns`` outputs, for each tile of ``rows`` activation rows, the array goes through all k. Rows
    come once and stay as codes; weights come once, in the order of column tiles, and stay for all row tiles. Commands
    are decoded ahead: their rows, weights, columns and angles are taken as soon as there is room.

    Latency: ``latency(config)`` cycles from a row to the first result, where nothing else is missing; with a norm up to
    ``Prologue.root_cycles`` more.
    Throughput: a k step a cycle, also from one command to the next, as long as streams keep up and no tile has more
    output beats than k steps.
    Stalls: any stream may stall at any time. Inputs are taken ahead and never wait for each other but as data need it.
    Combinational paths: none between the streams.

    A command that cannot be carried out takes no data; its fault comes in its turn. A reset drops all commands.

    Parameters
    ----------
    config : of which ``gemm`` and ``dsq.head_dim`` matter.

    Members
    -------
    i_command : stream of `command_layout`
    i_row : stream of struct{elements, magnitude}: rows of INT32, ``row_lanes`` elements a beat, each row from a new
        beat on; the row's magnitude in each of its beats
    i_weight : stream of INT8: ``columns`` weights of a k step; for each column tile, for each k
    i_column : stream of struct{scale, shift, bias}: one a column
    i_rotary : stream of struct{cos, sin}: ``head_dim / 2`` for each row of a command with ROTARY
    o_residual : stream of struct{row, column}: asks for what is added to a beat of results
    i_residual : stream of struct{elements}: the answers, in order
    o_result : stream of struct{row, column, second, count, elements}: element 0 belongs to ``column``, element
        ``pairs`` to ``second``, others follow theirs; ``count`` of them count
    o_row : stream of struct{row, magnitude}: a row is complete
    o_done : stream of struct{fault}: a command has ended, after all its results and rows
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        self._array = PeArray(config.gemm)
        self._prologue = Prologue(config.gemm)
        self._epilogue = Epilogue(config.gemm, place_layout(config.gemm))
        self._feeder = TileFeeder(config, self._array)
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout())),
                "i_row": In(self._prologue.i_row.signature.flip()),
                "i_weight": In(self._feeder.i_weight.signature.flip()),
                "i_column": In(stream.Signature(column_layout())),
                "i_rotary": In(stream.Signature(angle_layout())),
                "o_residual": Out(stream.Signature(residual_layout())),
                "i_residual": In(self._epilogue.i_residual.signature.flip()),
                "o_result": Out(stream.Signature(result_layout(config.gemm.pairs))),
                "o_row": Out(stream.Signature(row_layout())),
                "o_done": Out(stream.Signature(data.StructLayout({"fault": Fault}))),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from the last beat of a row to the first result, of a tile whose last row it is, with one k step."""
        codes = Prologue.latency + TileFeeder.latency + PeArray.latency
        factors = Prologue.factor_latency(config.gemm) + 1
        return max(codes, factors) + SumCollector.latency + Epilogue.latency(config.gemm) + ResultStage.latency

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.decoder = decoder = CommandDecoder(c)
        m.submodules.prologue = prologue = self._prologue
        m.submodules.feeder = feeder = self._feeder
        m.submodules.array = array = self._array
        m.submodules.collector = collector = SumCollector(c, array, self._epilogue.i_shape)
        m.submodules.epilogue = epilogue = self._epilogue
        m.submodules.results = results = ResultStage(c)
        connect(m, flipped(self.i_command), decoder.i)
        connect(m, flipped(self.i_row), prologue.i_row)
        connect(m, prologue.o_code, feeder.i_code)
        connect(m, flipped(self.i_weight), feeder.i_weight)
        connect(m, feeder.o, array.i)
        connect(m, array.o, collector.i)
        connect(m, prologue.o_factor, collector.i_factor)
        connect(m, flipped(self.i_column), collector.i_column)
        connect(m, flipped(self.i_rotary), collector.i_rotary)
        connect(m, collector.o, epilogue.i)
        connect(m, epilogue.o, results.i)
        connect(m, results.o_result, flipped(self.o_result))
        connect(m, results.o_row, flipped(self.o_row))
        self._queue(m, "asked", collector.o_residual, flipped(self.o_residual))
        self._queue(m, "answered", flipped(self.i_residual), epilogue.i_residual)
        self._commands(m, decoder, collector, results)
        return m

    def _queue(self, m: Module, name: str, source: Any, target: Any) -> None:
        """A queue without combinational paths between two streams."""
        m.submodules[name] = queue = SyncFIFO(width=source.payload.shape().size, depth=RESIDUALS)
        m.d.comb += [
            queue.w_en.eq(source.valid),
            queue.w_data.eq(source.payload),
            source.ready.eq(queue.w_rdy),
            target.valid.eq(queue.r_rdy),
            target.payload.eq(queue.r_data),
            queue.r_en.eq(target.ready),
        ]

    def _commands(self, m: Module, decoder: CommandDecoder, collector: SumCollector, results: ResultStage) -> None:
        """Commands to the parts that carry them out, each in its own time, the first of a queue in a register; ends in
        the order of commands."""
        given = decoder.o.payload
        good = given.fault == Fault.NONE
        fields = {**{name: given.command[name] for name in command_layout().members}, "words": given.words}
        m.submodules.faults = faults = SyncFIFO(width=len(given.fault.as_value()), depth=COMMANDS)
        ready = faults.w_rdy
        queues = []
        for name, target, wanted in (
            ("prologue", self._prologue.i_command, good),
            ("load", self._feeder.i_load, good),
            ("feeder", self._feeder.i_command, good),
            ("column", collector.i_column_command, good),
            ("rotary", collector.i_rotary_command, good & (given.command.function == Function.ROTARY)),
            ("collector", collector.i_command, good),
        ):
            shape = target.payload.shape()
            m.submodules[f"{name}_commands"] = queue = SyncFIFO(width=shape.size, depth=COMMANDS)
            m.submodules[f"{name}_stage"] = stage = ForwardStage(shape)
            connect(m, stage.o, target)
            command = Signal(shape, name=f"{name}_command")
            m.d.comb += [
                *(command[field].eq(fields[field]) for field in shape.members),
                queue.w_data.eq(command),
                stage.i.valid.eq(queue.r_rdy),
                stage.i.payload.eq(queue.r_data),
                queue.r_en.eq(stage.i.ready),
            ]
            ready = ready & queue.w_rdy
            queues.append((queue, wanted))
        m.d.comb += [
            decoder.o.ready.eq(ready),
            faults.w_en.eq(decoder.o.valid & ready),
            faults.w_data.eq(given.fault),
            *(queue.w_en.eq(decoder.o.valid & ready & wanted) for queue, wanted in queues),
        ]
        refused = faults.r_data != Fault.NONE.value
        m.d.comb += [
            self.o_done.valid.eq(faults.r_rdy & (refused | results.o_end.valid)),
            self.o_done.payload.fault.eq(faults.r_data),
            faults.r_en.eq(self.o_done.valid & self.o_done.ready),
            results.o_end.ready.eq(faults.r_en & ~refused),
        ]
