"""Part of the GEMM engine: commands checked as the core checks them, and given to all that carry them out."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.control.commands import Opcode
from golden.gemm.epilogue import Function
from rtl.config import AcceleratorConfig
from rtl.control._layout import command_layout, operand_layout
from rtl.gemm._command import SIZE_BITS, CommandDecoder, Fault, words_shape
from rtl.gemm._command import command_layout as core_layout

__all__ = ["COMMANDS", "NUMBER_BITS", "GemmFront", "order_layout", "plan_layout"]

#: commands that are not answered, at most, and bits of a number that tells them apart
COMMANDS = 4
NUMBER_BITS = 3

_OPERANDS = operand_layout(Opcode.PROJECT)
_KEPT = (
    *("stream", "angles", "rows", "k", "columns", "parts", "source", "source_stride", "target", "target_stride"),
    *("residual", "residual_stride", "source_magnitude", "target_magnitude"),
)


def plan_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What becomes of a command: operands (see `golden.control.commands.FIELDS`), and what follows from them.

    ``project``: not a NOP and not refused. ``turns``: angles belong to it. ``words`` of the scratchpad in a source row;
    ``beats`` of results in a row.
    """
    operands = {name: _OPERANDS[name].shape for name in _KEPT}
    more = {"project": 1, "turns": 1, "words": words_shape(config), "beats": SIZE_BITS, "number": NUMBER_BITS}
    return data.StructLayout({**operands, **more})


def order_layout() -> data.StructLayout:
    """How a command is to be answered."""
    return data.StructLayout({"project": 1, "fault": Fault, "number": NUMBER_BITS})


class GemmFront(wiring.Component):
    """Takes a command and gives it on in one cycle: to the core, and to as many parts as it concerns.

    Latency: 1 cycle and those of `CommandDecoder`. One command at a time. None is taken after one that is refused.
    Combinational paths: ``o_core.ready`` and ``o.ready`` to ``o.valid`` and ``give``.

    Members
    -------
    stop : no command is taken
    i_command : see `rtl.control._layout`
    o_core : stream of commands, as `GemmCore` takes them
    room : another command may be given
    give, plan, order, adds : strobe: this one is; ``adds`` a residual
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        super().__init__(
            {
                "stop": In(1),
                "i_command": In(stream.Signature(command_layout())),
                "o_core": Out(stream.Signature(core_layout())),
                "room": In(1),
                "give": Out(1),
                "plan": Out(plan_layout(config)),
                "order": Out(order_layout()),
                "adds": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.decoder = decoder = CommandDecoder(self.config)
        held, number, refused = Signal(command_layout()), Signal(NUMBER_BITS), Signal()
        operands = data.View(_OPERANDS, held.operands)
        asked, checked, core, plan = decoder.i.payload, decoder.o.payload, self.o_core.payload, self.plan
        beat = 2 * self.config.gemm.pairs
        good = checked.fault == Fault.NONE
        m.d.comb += [
            *(asked[name].eq(operands[name]) for name in core_layout().members if name != "epsilon"),
            asked.epsilon.eq(Cat(operands.epsilon_low, operands.epsilon_high)),
            core.eq(checked.command),
            *(plan[name].eq(operands[name]) for name in _KEPT),
            plan.turns.eq(operands.function == Function.ROTARY),
            plan.words.eq(checked.words),
            plan.beats.eq((operands.columns + beat - 1) >> exact_log2(beat)),
            plan.number.eq(number),
            self.order.number.eq(number),
            self.order.project.eq(plan.project),
            self.adds.eq(operands.add_residual),
        ]
        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += self.i_command.ready.eq(~self.stop & ~refused)
                m.d.sync += held.eq(self.i_command.payload)
                with m.If(self.i_command.valid & self.i_command.ready):
                    m.next = "NOTHING"
                    with m.If(self.i_command.payload.opcode == Opcode.PROJECT):
                        m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += decoder.i.valid.eq(1)
                with m.If(decoder.i.ready):
                    m.next = "PROJECT"
            with m.State("PROJECT"):
                m.d.comb += [
                    plan.project.eq(good),
                    self.order.fault.eq(checked.fault),
                    self.o_core.valid.eq(decoder.o.valid & good & self.room),
                    self.give.eq(decoder.o.valid & self.room & (~good | self.o_core.ready)),
                    decoder.o.ready.eq(self.give),
                ]
                with m.If(self.give):
                    m.d.sync += [number.eq(number + 1), refused.eq(~good)]
                    m.next = "TAKE"
            with m.State("NOTHING"):
                m.d.comb += self.give.eq(self.room)
                with m.If(self.give):
                    m.d.sync += number.eq(number + 1)
                    m.next = "TAKE"
        return m
