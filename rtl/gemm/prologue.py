"""Activation rows to codes with one shift a row, and the factors that normalize rows (golden `prepare_rows`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from golden.gemm.prologue import EPSILON_BITS, FACTOR_FRACTION_BITS, Norm
from rtl.common.fixed import half_up, saturate
from rtl.common.stage import Stage
from rtl.config import GemmConfig
from rtl.gemm._inverse_root import EXPONENT_BITS, FACTOR_BITS, InverseRoot
from rtl.gemm._row_sums import RowSums

__all__ = ["Prologue"]

ELEMENT_BITS = 32
_MAGNITUDE_BITS = 5
_ROWS_BITS = 16
_NORM_BITS = 2
#: beats of codes that wait for `o_code`, and rows that wait for their factor, at most
_QUEUE = 16
#: registers that a beat passes before it joins the queue of codes
_CODE_STAGES = 2


class Prologue(wiring.Component):
    """Shifts the rows of a command right to codes of ``act_bits`` bits, and finds the factor of each row.

    Elements are shifted and rounded in two steps. Squares and codes are summed by adder trees, then over the beats of a
    row. With a norm one over the root of a row's power is found bit by bit while the next rows come in. Commands are
    taken ahead; no cycle is lost between rows or commands.

    Latency: ``latency`` cycles from a beat to its codes; from a row's last beat to its factor
    ``factor_latency(config)`` without norm, up to ``root_cycles(config, layer=)`` more with one.
    Throughput: a beat a cycle; with a norm a row each ``root_cycles(config, layer=) + 1`` cycles if it has fewer beats.
    Stalls: codes and factors do not wait for each other, but ``i_row`` waits until both have room for another beat.
    Combinational paths: none between streams; each ``ready`` depends on registers alone.

    Parameters
    ----------
    config: act_bits, max_k, row_lanes.

    Members
    -------
    i_command : stream: ``rows`` rows of ``k`` elements follow, at least one of each and ``k`` at most max_k; ``norm``
        is one of `Norm` (3 does as RMS), ``epsilon`` belongs to it.
    i_row : stream, ``ceil(k / row_lanes)`` beats a row: ``elements``, of which those past ``k`` do not count, and the
        ``magnitude`` of the whole row with each.
    o_code : stream, beat by beat: ``codes``, zero past ``k``; ``last`` of a row.
    o_factor : stream, one a row: ``factor`` with 15 fraction bits, and the ``exponent`` of two that belongs to it.
    """

    latency = _CODE_STAGES + 1

    def __init__(self, config: GemmConfig) -> None:
        self.config = config
        lanes = config.row_lanes
        self.i_command_shape = data.StructLayout(
            {"rows": _ROWS_BITS, "k": range(config.max_k + 1), "norm": _NORM_BITS, "epsilon": EPSILON_BITS}
        )
        self.i_row_shape = data.StructLayout(
            {"elements": data.ArrayLayout(signed(ELEMENT_BITS), lanes), "magnitude": _MAGNITUDE_BITS}
        )
        self.o_code_shape = data.StructLayout({"codes": data.ArrayLayout(signed(config.act_bits), lanes), "last": 1})
        self.o_factor_shape = data.StructLayout({"factor": FACTOR_BITS, "exponent": signed(EXPONENT_BITS)})
        super().__init__(
            {
                "i_command": In(stream.Signature(self.i_command_shape)),
                "i_row": In(stream.Signature(self.i_row_shape)),
                "o_code": Out(stream.Signature(self.o_code_shape)),
                "o_factor": Out(stream.Signature(self.o_factor_shape)),
            }
        )

    @staticmethod
    def factor_latency(config: GemmConfig) -> int:
        """Cycles from a row's last beat to its factor, without norm."""
        return _CODE_STAGES + RowSums.latency(config) + 1

    @staticmethod
    def root_cycles(config: GemmConfig, *, layer: bool, k: int | None = None) -> int:
        """Cycles that the root of a row of ``k`` elements, or the longest one, takes at most."""
        return InverseRoot.cycles(config, layer=layer, k=k)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lane_bits = exact_log2(self.config.row_lanes)
        element_bits = max(lane_bits + 1, ceil_log2(self.config.max_k))
        command_shape = data.StructLayout(
            {"last_row": _ROWS_BITS, "last_element": element_bits, "norm": _NORM_BITS, "epsilon": EPSILON_BITS}
        )
        m.submodules.commands = commands = Stage(command_shape)
        m.submodules.codes = codes = SyncFIFO(width=self.o_code_shape.size, depth=_QUEUE)
        m.submodules.sums = sums = RowSums(self.config)

        asked, entered = self.i_command.payload, Signal(command_shape)
        command = commands.o.payload
        m.d.comb += [
            entered.last_row.eq(asked.rows - 1),
            entered.last_element.eq(asked.k - 1),
            entered.norm.eq(asked.norm),
            entered.epsilon.eq(asked.epsilon),
            commands.i.payload.eq(entered),
            commands.i.valid.eq(self.i_command.valid),
            self.i_command.ready.eq(commands.i.ready),
        ]

        beat, row = Signal(element_bits - lane_bits), Signal(_ROWS_BITS)
        taken, row_ends = Signal(), Signal()
        m.d.comb += [
            taken.eq(self.i_row.valid & self.i_row.ready),
            row_ends.eq(beat == command.last_element[lane_bits:]),
            commands.o.ready.eq(taken & row_ends & (row == command.last_row)),
        ]
        with m.If(taken):
            m.d.sync += beat.eq(beat + 1)
            with m.If(row_ends):
                m.d.sync += [beat.eq(0), row.eq(Mux(commands.o.ready, 0, row + 1))]

        shift = Signal(range(ELEMENT_BITS + 1 - self.config.act_bits))
        magnitude, unshifted = self.i_row.payload.magnitude, self.config.act_bits - 1
        m.d.comb += shift.eq(Mux(magnitude > unshifted, magnitude - unshifted, 0))
        last_lane = command.last_element[:lane_bits]
        kept = Cat(1, *(~row_ends | (last_lane >= lane) for lane in range(1, self.config.row_lanes)))
        self._encode(m, shift, kept, sums.codes)
        valid, last = Signal(_CODE_STAGES), Signal(_CODE_STAGES)
        m.d.sync += [valid.eq(Cat(taken, valid)), last.eq(Cat(row_ends, last))]
        m.d.comb += [
            sums.valid.eq(valid[-1]),
            sums.last.eq(last[-1]),
            codes.w_data.eq(Cat(sums.codes, last[-1])),
            codes.w_en.eq(valid[-1]),
            self.o_code.payload.eq(codes.r_data),
            self.o_code.valid.eq(codes.r_rdy),
            codes.r_en.eq(self.o_code.ready),
        ]
        factor_room = self._finish(m, command, shift, taken & row_ends, sums)
        code_room = codes.level < _QUEUE - _CODE_STAGES
        m.d.comb += self.i_row.ready.eq(commands.o.valid & code_room & factor_room)
        return m

    def _encode(self, m: Module, shift: Value, kept: Value, codes: data.View) -> None:
        """Elements shifted, by fours and then the rest, and rounded; zero in lanes that are not kept."""
        bits = self.config.act_bits
        rest, kept_1 = Signal(2, reset_less=True), Signal(len(kept), reset_less=True)
        m.d.sync += [rest.eq(shift[:2]), kept_1.eq(kept)]
        for lane, element in enumerate(self.i_row.payload.elements):
            doubled = Signal(signed(bits + 4), name=f"doubled_{lane}", reset_less=True)
            code = Signal(signed(bits), name=f"code_{lane}", reset_less=True)
            rounded = half_up((doubled >> rest)[: bits + 1].as_signed(), 1)
            m.d.sync += [
                doubled.eq((element << 1) >> (shift[2:] << 2)),
                code.eq(Mux(kept_1[lane], saturate(rounded, bits), 0)),
            ]
            m.d.comb += codes[lane].eq(code)

    def _finish(self, m: Module, command: data.View, shift: Value, row_ends: Value, sums: RowSums) -> Value:
        """What is known of a row at its end and what it sums up to wait for the root; whether another row may end."""
        m.submodules.inverse_root = root = InverseRoot(self.config)
        norm, last_element = Signal.like(command.norm), Signal.like(command.last_element)
        fields = Cat(norm, root.shift, root.epsilon, last_element)
        m.submodules.row_queue = rows = SyncFIFO(width=len(fields), depth=_QUEUE)
        m.submodules.sum_queue = totals = SyncFIFO(width=len(sums.squares) + len(sums.total), depth=_QUEUE)
        both, normed, done = Signal(), Signal(), Signal()
        m.d.comb += [
            rows.w_data.eq(Cat(command.norm, shift, command.epsilon, command.last_element)),
            rows.w_en.eq(row_ends),
            totals.w_data.eq(Cat(sums.squares, sums.total)),
            totals.w_en.eq(sums.done),
            fields.eq(rows.r_data),
            Cat(root.squares, root.total).eq(totals.r_data),
            root.k.eq(last_element + 1),
            root.layer.eq(norm == Norm.LAYER),
            normed.eq(norm != Norm.NONE),
            both.eq(rows.r_rdy & totals.r_rdy),
            root.valid.eq(both & normed),
            root.ready.eq(done),
            self.o_factor.valid.eq(both & (~normed | root.done)),
            self.o_factor.payload.factor.eq(Mux(normed, root.factor, 1 << FACTOR_FRACTION_BITS)),
            self.o_factor.payload.exponent.eq(Mux(normed, root.exponent, root.shift)),
            done.eq(self.o_factor.valid & self.o_factor.ready),
            rows.r_en.eq(done),
            totals.r_en.eq(done),
        ]
        return rows.w_rdy
