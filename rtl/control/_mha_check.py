"""Part of the MHA engine: whether what a command would read, write and hold is there, and its sizes."""

from typing import Any, ClassVar

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.control.commands import LINE_BYTES, Opcode
from rtl.config import AcceleratorConfig
from rtl.control._dma_check import ELEMENT_BITS, ceil_divide
from rtl.control._layout import Error, command_layout, done_layout, operand_layout
from rtl.hcap.mass_bank import SUMS_OF_A_LINE

__all__ = ["AttendCheck", "StateLines", "calibration_lines", "row_words"]

_CALIBRATION_BYTES = 8
#: of a request of memory
_MOST_WORDS = (1 << 16) - 1


class StateLines:
    """Lines of a state: the second and the third of its parts begin at ``recent`` and ``votes``, it ends at ``end``.

    Raises `ValueError` for a part that is longer than a request of memory may be.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        words = -(-config.mha.max_groups * ELEMENT_BITS // config.dsq.bus_bits)
        if words > _MOST_WORDS:
            raise ValueError(f"mha.max_groups must fit in {_MOST_WORDS} words of the bus, not {words!r}")
        self.recent = -(-config.mha.max_groups // SUMS_OF_A_LINE)
        self.votes = 2 * self.recent
        self.end = self.votes + 2 * config.dsq.group_tokens // SUMS_OF_A_LINE


def calibration_lines(config: AcceleratorConfig) -> int:
    """Lines of a calibration."""
    return -(-config.dsq.head_dim * _CALIBRATION_BYTES // LINE_BYTES)


def row_words(config: AcceleratorConfig) -> int:
    """Words of the scratchpad that a token's rows take, of all query heads together."""
    return -(-config.mha.q_heads * config.dsq.head_dim // config.gemm.row_lanes)


class AttendCheck(wiring.Component):
    """Looks at all operands of a command, before it begins.

    Latency: `LATENCY` cycles from the first one with ``command``, which holds.

    Members
    -------
    command : see `command_layout`
    ended : struct{error, detail}: what is wrong with it
    blocks, groups : INT8 blocks, and those and the records together; of a command that nothing is wrong with
    """

    LATENCY: ClassVar[int] = 3

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        most = bits_for(config.mha.max_groups)
        super().__init__(
            {"command": In(command_layout()), "ended": Out(done_layout()), "blocks": Out(most), "groups": Out(most)}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, opcode, ended = self.config, self.command.opcode, self.ended
        op = data.View(operand_layout(Opcode.ATTEND), self.command.operands)
        memory_lines = 1 << c.cache.addr_bits - ceil_log2(LINE_BYTES)
        words, scratch_words = row_words(c), c.control.scratch_words

        blocks = Signal(len(op.tokens))
        groups = Signal(len(op.tokens) + 1)
        address, scratchpad = Signal(), Signal()
        m.d.sync += [
            blocks.eq(ceil_divide(op.tokens, c.dsq.group_tokens)),
            groups.eq(op.records + blocks),
            address.eq(
                (op.use_state & (op.state + StateLines(c).end > memory_lines))
                | (op.load_calibration & (op.calibration + calibration_lines(c) > memory_lines))
            ),
            scratchpad.eq(
                (op.source + words > scratch_words)
                | (op.target + words > scratch_words)
                | (op.target_magnitude >= c.control.scratch_rows)
            ),
            self.blocks.eq(blocks),
            self.groups.eq(groups),
            ended.detail.eq(0),
            ended.error.eq(Error.NONE),
        ]
        with m.If(opcode != Opcode.ATTEND):
            m.d.sync += ended.error.eq(Mux(opcode == Opcode.NOP, Error.NONE, Error.OPCODE))
            m.d.sync += ended.detail.eq(Mux(opcode == Opcode.NOP, 0, opcode))
        with m.Elif((groups == 0) | (groups > c.mha.max_groups)):
            m.d.sync += ended.error.eq(Error.LENGTH)
        with m.Elif(address):
            m.d.sync += ended.error.eq(Error.ADDRESS)
        with m.Elif(scratchpad):
            m.d.sync += ended.error.eq(Error.SCRATCHPAD)
        return m
