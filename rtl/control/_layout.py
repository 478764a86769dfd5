"""Part of the control: commands on their way to the cores, and how they end (golden `Command`)."""

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data, enum

from golden.control import commands as golden
from golden.control.commands import FIELDS, OPERAND_WORDS, Opcode, field_places

__all__ = ["Error", "command_layout", "done_layout", "operand_layout"]

_OPERAND_BITS = 32 * OPERAND_WORDS


class Error(enum.Enum, shape=4):
    """Golden's `Error`."""

    NONE = golden.Error.NONE
    OPCODE = golden.Error.OPCODE
    SEMAPHORE = golden.Error.SEMAPHORE
    TIMEOUT = golden.Error.TIMEOUT
    ADDRESS = golden.Error.ADDRESS
    MEMORY = golden.Error.MEMORY
    SCRATCHPAD = golden.Error.SCRATCHPAD
    LENGTH = golden.Error.LENGTH
    GEMM = golden.Error.GEMM
    ATTENTION = golden.Error.ATTENTION
    PAGE = golden.Error.PAGE
    WRITE = golden.Error.WRITE


def command_layout() -> data.StructLayout:
    """A command as a core's engine gets it; ``operands``: see `operand_layout`."""
    return data.StructLayout({"opcode": 8, "operands": _OPERAND_BITS})


def operand_layout(opcode: Opcode) -> data.FlexibleLayout:
    """The operands of a command, for ``data.View(operand_layout(opcode), command.operands)``."""
    fields = {}
    for name, (bit, width) in field_places(opcode).items():
        shape: Shape = signed(width) if FIELDS[opcode][name] < 0 else unsigned(width)
        fields[name] = data.Field(shape, bit)
    return data.FlexibleLayout(_OPERAND_BITS, fields)


def done_layout() -> data.StructLayout:
    """How a command has ended."""
    return data.StructLayout({"error": Error, "detail": 24})
