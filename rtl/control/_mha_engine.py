"""Part of the control: queries of attention, from commands to the attention core and back."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from golden.control.commands import Opcode
from rtl.cache._prefetch import owner_layout
from rtl.cache.axi import AxiConfig
from rtl.common.memory import BlockFifo
from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.control._layout import Error, command_layout, operand_layout
from rtl.control._mha_calibration import CalibrationReader
from rtl.control._mha_check import AttendCheck
from rtl.control._mha_results import ResultKeeper, task_layout
from rtl.control._mha_rows import RowReader
from rtl.control._mha_scans import ScanLists
from rtl.control._read_order import ReadOrder
from rtl.mha._scan import job_layout

__all__ = ["MhaEngine"]

#: commands that the core works on, and one that waits
_TASKS = 5
#: users of the read port
CALIBRATION, HISTORY, SUMS = range(3)


class MhaEngine(wiring.Component):
    """Carries out ATTEND: hands queries to the attention core and takes its outputs and masses to where they belong.

    While the core works on a query, calibrations, rows and scan lists of the next ones are handed over, as far as the
    core takes them and scan lists have room. A calibration is asked for before its command may go, all else after.
    The sums of a query are read when those of the query before are in memory.

    Latency: `LATENCY` cycles from a go, without another command before, to the query.
    Stalls: any stream may stall.
    Combinational paths: ``o_row.ready`` to ``i_scratch_read.ready``, ``o_scratch_write.ready`` to ``i_out.ready``.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    i_command, i_go, o_done : a command, that it may go, how it ended. After an error no command is taken until reset
    o_read, i_read : requests in words of memory, and their words
    o_write, o_word, i_written : requests, words with byte strobes, whether each request failed
    outside : a request of memory lay outside the window
    o_scratch_read, i_scratch_read : words of the scratchpad
    o_scratch_write : stream of struct{address, mask, data}: elements with a bit in ``mask`` are written
    o_magnitude : stream of struct{row, slot, magnitude, first}, one a command, behind its words
    scratch_outside : an access lay behind the end of the scratchpad
    o_query : stream of struct{owner, job}, ``i_query`` of KvCache
    o_calibration, o_row : ``i_calibration`` and ``i_query`` of MhaCore
    o_scan : ``i_scan`` of KvCache
    i_out, i_mass, i_status : ``o``, ``o_mass`` and ``o_status`` of MhaCore
    """

    LATENCY: ClassVar[int] = 1

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        memory = AxiConfig(data_bits=config.dsq.bus_bits, addr_bits=config.cache.addr_bits, max_burst=1, depths=(1,))
        self._reads, self._scans = ReadOrder(memory, 3), ScanLists(config, memory)
        self._calibrations, self._rows = CalibrationReader(config, memory), RowReader(config)
        self._results = ResultKeeper(config, memory)
        inner = [part.signature.members for part in (self._reads, self._rows, self._results)]
        reads, rows, results = inner
        query = data.StructLayout({"owner": owner_layout(config), "job": job_layout()})
        names = ("o_write", "o_word", "i_written", "o_scratch_write", "o_magnitude", "i_out", "i_mass", "i_status")
        self._of_results = ("o_done", "outside", "scratch_outside", *names)
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout())),
                "i_go": In(stream.Signature(1)),
                **{name: reads[name] for name in ("o_read", "i_read")},
                **{name: rows[name] for name in ("o_scratch_read", "i_scratch_read")},
                **{name: results[name] for name in self._of_results},
                "o_query": Out(stream.Signature(query)),
                "o_calibration": self._calibrations.signature.members["o"],
                "o_row": rows["o"],
                "o_scan": self._scans.signature.members["o"],
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.reads = reads = self._reads
        m.submodules.calibrations = calibrations = self._calibrations
        m.submodules.scan_lists = scans = self._scans
        m.submodules.rows = rows = self._rows
        m.submodules.results = results = self._results
        command = Signal(command_layout())
        op = data.View(operand_layout(Opcode.ATTEND), command.operands)
        m.submodules.check = check = AttendCheck(self.config)
        m.d.comb += check.command.eq(command)
        for user, part in ((CALIBRATION, calibrations), (HISTORY, scans), (SUMS, results)):
            connect(m, part.o_request, reads.i[user])
            connect(m, reads.o[user], part.i_word)
        expose(m, reads, self, ("o_read", "i_read"))
        expose(m, rows, self, ("o_scratch_read", "i_scratch_read"))
        expose(m, results, self, self._of_results)
        for inner, outer in ((calibrations.o, self.o_calibration), (rows.o, self.o_row), (scans.o, self.o_scan)):
            connect(m, inner, flipped(outer))
        self._operands(m, op, check)

        sound = Signal()
        m.d.comb += sound.eq((check.ended.error == Error.NONE) & (command.opcode == Opcode.ATTEND))
        tasks, failed = self._tasks(m, op, check, sound)
        checking, begin = Signal(range(AttendCheck.LATENCY + 1)), Signal()
        m.d.comb += [scans.i.valid.eq(begin), rows.start.eq(begin)]
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.i_command.ready.eq(~results.stopped)
                m.d.sync += checking.eq(0)
                with m.If(self.i_command.valid & ~results.stopped):
                    m.d.sync += command.eq(self.i_command.payload)
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += checking.eq(checking + 1)
                with m.If(checking == AttendCheck.LATENCY):
                    m.next = "GO"
                    with m.If(sound & op.load_calibration):
                        m.next = "CALIBRATION"
            with m.State("CALIBRATION"):
                m.d.comb += calibrations.i.valid.eq(1)
                with m.If(calibrations.i.ready):
                    m.next = "GO"
            with m.State("GO"):
                m.d.comb += [self.i_go.ready.eq(1), begin.eq(self.i_go.valid & sound)]
                with m.If(self.i_go.valid):
                    m.next = "TASK"
                    with m.If(sound):
                        m.next = "QUERY"
            with m.State("QUERY"):
                m.d.comb += self.o_query.valid.eq(1)
                with m.If(self.o_query.ready):
                    m.next = "HAND"
            with m.State("HAND"):
                with m.If(~(scans.busy | rows.busy | (op.load_calibration & calibrations.busy))):
                    m.next = "TASK"
            with m.State("TASK"):
                m.d.comb += tasks.w_en.eq(1)
                with m.If(tasks.w_rdy):
                    m.next = "COMMAND"
                    with m.If(failed):
                        m.next = "STOPPED"
            with m.State("STOPPED"):
                pass
        return m

    def _operands(self, m: Module, op: data.View, check: AttendCheck) -> None:
        """What the parts are told of the command at hand."""
        scans, query = self._scans.i.payload, self.o_query.payload
        m.d.comb += [
            *(query.owner[name].eq(op[name]) for name in ("sequence", "stream")),
            *(query.job[name].eq(op[name]) for name, _ in job_layout()),
            *(scans[name].eq(op[name]) for name in ("tokens", "records", "salient", "drop_count", "state")),
            scans.blocks.eq(check.blocks),
            scans.by_history.eq(op.use_state),
            self._rows.source.eq(op.source),
            self._calibrations.i.payload.eq(op.calibration),
        ]

    def _tasks(self, m: Module, op: data.View, check: AttendCheck, sound: Signal) -> tuple[BlockFifo, Value]:
        """Commands on their way from the one at hand to its results; whether an error of it is known."""
        task = Signal(task_layout(self.config))
        m.submodules.tasks = tasks = BlockFifo(width=len(task.as_value()), depth=_TASKS)
        of_results = self._results.i_task
        by_history = op.use_state & self._scans.failed
        refused = sound & ((op.load_calibration & self._calibrations.failed) | by_history)
        m.d.comb += [
            task.ended.eq(check.ended),
            task.attends.eq(sound),
            task.output.target.eq(op.target),
            task.output.shift.eq(op.out_shift),
            task.output.row.eq(op.target_magnitude),
            task.output.first.eq(op.first),
            task.masses.keep.eq(op.use_state),
            task.masses.state.eq(op.state),
            task.masses.groups.eq(check.groups),
            task.masses.tokens.eq(op.tokens),
            task.masses.first.eq(op.records),
            tasks.w_data.eq(task),
        ]
        with m.If(refused):
            m.d.comb += task.ended.error.eq(Mux(self.outside, Error.ADDRESS, Error.MEMORY))
        m.d.comb += [
            of_results.valid.eq(tasks.r_rdy),
            of_results.payload.eq(tasks.r_data),
            tasks.r_en.eq(of_results.ready),
        ]
        return tasks, task.ended.error != Error.NONE
