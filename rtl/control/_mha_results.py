"""Part of the MHA engine: what the attention core gives, and how commands end."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from rtl.cache.axi import AxiConfig
from rtl.common.ports import expose
from rtl.config import AcceleratorConfig
from rtl.control._layout import Error, done_layout
from rtl.control._mha_rows import OutputWriter, output_layout
from rtl.control._mha_state import MassKeeper, masses_layout
from rtl.mha._requests import Fault
from rtl.mha._scan import fault_layout

__all__ = ["ResultKeeper", "task_layout"]

OUTPUT = ("o_scratch_write", "o_magnitude")
MASS = ("o_request", "i_word", "o_write", "o_word", "i_written")


def task_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A command that has been passed on to the core, if it ``attends``; ``ended``: what was wrong by then."""
    return data.StructLayout(
        {"ended": done_layout(), "attends": 1, "output": output_layout(), "masses": masses_layout(config)}
    )


class ResultKeeper(wiring.Component):
    """Takes outputs, masses and status of one query after the other to where they belong, and ends their commands.

    A command ends when its outputs are in the scratchpad and its masses in memory. After a fault of the core nothing
    more is written; it may have no masses. After an error all that the core still gives is dropped.

    Members
    -------
    i_task : stream of `task_layout`
    o_done : stream of `done_layout`
    stopped : a command has ended with an error
    i_out, i_mass, i_status : of MhaCore
    outside, scratch_outside : a request of memory, or of the scratchpad, lay outside
    others : of OutputWriter and MassKeeper
    """

    def __init__(self, config: AcceleratorConfig, memory: AxiConfig) -> None:
        self._outputs, self._masses = OutputWriter(config), MassKeeper(config, memory)
        outputs, masses = self._outputs.signature.members, self._masses.signature.members
        super().__init__(
            {
                "i_task": In(stream.Signature(task_layout(config))),
                "o_done": Out(stream.Signature(done_layout())),
                "stopped": Out(1),
                "i_out": outputs["i"],
                "i_mass": masses["i_mass"],
                "i_status": In(stream.Signature(fault_layout())),
                "outside": In(1),
                "scratch_outside": In(1),
                **{name: outputs[name] for name in OUTPUT},
                **{name: masses[name] for name in MASS},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.outputs = outputs = self._outputs
        m.submodules.masses = masses = self._masses
        expose(m, outputs, self, OUTPUT)
        expose(m, masses, self, MASS)
        task, done, status = self.i_task.payload, self.o_done, self.i_status
        start, fault = Signal(), Signal(fault_layout())
        m.d.comb += [
            outputs.start.eq(start),
            outputs.output.eq(task.output),
            masses.start.eq(start),
            masses.masses.eq(task.masses),
        ]
        for inner, outer in ((outputs.i, self.i_out), (masses.i_mass, self.i_mass)):
            m.d.comb += [
                inner.valid.eq(outer.valid & ~self.stopped),
                inner.payload.eq(outer.payload),
                outer.ready.eq(inner.ready | self.stopped),
            ]
        m.d.comb += status.ready.eq(self.stopped)

        end = done.payload
        refused = Mux(self.outside, Error.ADDRESS, Error.MEMORY)
        with m.FSM():
            with m.State("TASK"):
                m.d.comb += self.i_task.ready.eq(~self.stopped)
                m.d.sync += end.eq(task.ended)
                with m.If(self.i_task.valid & ~self.stopped):
                    m.next = "DONE"
                    with m.If((task.ended.error == Error.NONE) & task.attends):
                        m.d.comb += start.eq(1)
                        m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += status.ready.eq(1)
                m.d.sync += fault.eq(status.payload)
                with m.If(status.valid):
                    m.next = "OUTPUT"
            with m.State("OUTPUT"):
                # A query with a fault may have no masses; one without has some.
                with m.If(~outputs.busy):
                    m.next = "MASSES"
                    with m.If(fault.fault == Fault.MEMORY):
                        m.d.sync += end.error.eq(Error.MEMORY)
                        m.next = "DONE"
                    with m.Elif(fault.fault != Fault.NONE):
                        m.d.sync += [end.error.eq(Error.ATTENTION), end.detail.eq(Cat(fault.fault, fault.group))]
                        m.next = "DONE"
                    with m.Elif(self.scratch_outside):
                        m.d.sync += end.error.eq(Error.SCRATCHPAD)
                        m.next = "DONE"
            with m.State("MASSES"):
                with m.If(masses.added & masses.failed):
                    m.d.sync += end.error.eq(refused)
                    m.next = "DONE"
                with m.Elif(masses.added):
                    m.d.comb += masses.store.eq(1)
                    m.next = "STORED"
            with m.State("STORED"):
                with m.If(~masses.busy):
                    with m.If(masses.failed):
                        m.d.sync += end.error.eq(refused)
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += done.valid.eq(1)
                m.d.sync += self.stopped.eq(end.error != Error.NONE)
                with m.If(done.ready):
                    m.next = "TASK"
        return m
