"""INT16 K/V rows and attention mass to packed records: hardware of ``golden.dsq.quantizer.quantize``."""

from typing import Any

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.config import DsqConfig
from rtl.dsq._compressor_scales import NORM_BITS
from rtl.dsq._compressor_steps import calibration_layout
from rtl.dsq.compressor import Compressor
from rtl.dsq.record import word_layout
from rtl.dsq.row_quantizer import RowQuantizer
from rtl.dsq.salient import MASS_BITS, SalientPicker

__all__ = ["Quantizer"]


class Quantizer(wiring.Component):
    """RowQuantizer, SalientPicker and Compressor: group after group to record words.

    Rows are quantized as they come, into the half of the Compressor's row memory that is free, while the group before
    is being compressed; so are the salient tokens picked. What a group needs may come in any order on the four
    inputs, except that each is in group order.

    A ``salient_tokens`` that no record can have does not stop the block: 0 counts as 1, one above ``max_salient``
    that is not ``group_tokens`` as ``max_salient``. Then ``error`` rises, and stays until reset.

    Latency: at most ``latency(config, salient_tokens)`` cycles from a group's last row beat or last mass, whichever
    comes later, to its first record word, if the group before has left. Throughput: a group in at most
    ``group_cycles(config, salient_tokens)`` cycles if no stream ever stalls. Stalls: a full ``o`` stops the
    Compressor, then the rows of the second next group, then ``i_group``. Combinational paths: none between streams;
    each ``ready`` depends on registers alone.

    Parameters
    ----------
    config : DsqConfig

    Members
    -------
    i_group : stream of struct{salient_tokens, sink_tokens, first_group, load_calibration, k_norm, v_norm}, one a group.
        In a sequence's ``first_group`` the first ``sink_tokens`` tokens are salient before all others. The norms are
        1 to 2**20-1. With ``load_calibration`` a calibration follows, else the last one stays in use.
    i_calibration : stream of struct{k_shape, v_shape, v_mean}, ``head_dim`` transfers, channel 0 first. Shapes are 1 to
        4095.
    i_mass : stream of 32 bits, ``group_tokens`` transfers a group: attention mass of each token.
    i_row : stream of INT16 times ``lanes``, ``row_beats`` transfers a row, channel 0 first: token 0's K row (not
        rotated),
        token 0's V row, token 1's K row, ...
    o : stream of struct{data, first, last}: record words.
    error : a group had an impossible ``salient_tokens``.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        count = range(config.group_tokens + 1)
        self.i_group_shape = data.StructLayout(
            {
                "salient_tokens": count,
                "sink_tokens": count,
                "first_group": 1,
                "load_calibration": 1,
                "k_norm": NORM_BITS,
                "v_norm": NORM_BITS,
            }
        )
        super().__init__(
            {
                "i_group": In(stream.Signature(self.i_group_shape)),
                "i_calibration": In(stream.Signature(calibration_layout)),
                "i_mass": In(stream.Signature(unsigned(MASS_BITS))),
                "i_row": In(stream.Signature(data.ArrayLayout(signed(16), config.lanes))),
                "o": Out(stream.Signature(word_layout(config))),
                "error": Out(1),
            }
        )

    @staticmethod
    def token_cycles(config: DsqConfig) -> int:
        """Cycles in which the two rows of a token are quantized."""
        return sum(RowQuantizer.row_cycles(config, rotate=rotate) for rotate in (False, True))

    @staticmethod
    def latency(config: DsqConfig, salient_tokens: int) -> int:
        """The most cycles from the last row beat and mass of a group to its first word, if nothing stalls or waits."""
        rows = RowQuantizer.latency(config, rotate=False) + Quantizer.token_cycles(config)
        picking = SalientPicker.latency(config, salient_tokens)
        return max(rows, picking) + Compressor.latency(config, salient_tokens)

    @staticmethod
    def group_cycles(config: DsqConfig, salient_tokens: int) -> int:
        """The most cycles from one group to the next in a long sequence, if no stream stalls.

        Rows are quantized, tokens picked and groups compressed at the same time; the slowest of the three counts.
        """
        rows = config.group_tokens * Quantizer.token_cycles(config)
        picking = config.group_tokens + SalientPicker.latency(config, salient_tokens) + 4
        return max(rows, picking, Compressor.group_cycles(config, salient_tokens))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.rows = rows = RowQuantizer(c)
        m.submodules.picker = picker = SalientPicker(c)
        m.submodules.compressor = compressor = Compressor(c)
        connect(m, rows.o, compressor.i_row)
        connect(m, picker.o, compressor.i_salient)
        connect(m, flipped(self.i_mass), picker.i_mass)
        connect(m, flipped(self.i_calibration), compressor.i_calibration)
        connect(m, compressor.o, flipped(self.o))

        # A group waits here until both the picker and the Compressor, which needs it later, have taken it.
        group = Signal(self.i_group_shape)
        pending = {name: Signal(name=f"pending_{name}") for name in ("picker", "compressor")}
        m.d.comb += self.i_group.ready.eq(~(pending["picker"] | pending["compressor"]))
        for name, target in (("picker", picker.i_group), ("compressor", compressor.i_group)):
            m.d.comb += target.valid.eq(pending[name])
            m.d.comb += [target.payload[field].eq(group[field]) for field, _ in target.payload.shape()]
            with m.If(target.ready):
                m.d.sync += pending[name].eq(0)
        wanted = self.i_group.payload.salient_tokens
        with m.If(self.i_group.valid & self.i_group.ready):
            m.d.sync += [group.eq(self.i_group.payload), *(flag.eq(1) for flag in pending.values())]
            with m.If((wanted > c.max_salient) & (wanted != c.group_tokens)):
                m.d.sync += [group.salient_tokens.eq(c.max_salient), self.error.eq(1)]
            with m.If(wanted == 0):
                m.d.sync += [group.salient_tokens.eq(1), self.error.eq(1)]

        beat = Signal(range(c.row_beats))
        is_v = Signal()
        m.d.comb += [
            rows.i.valid.eq(self.i_row.valid),
            rows.i.payload.data.eq(self.i_row.payload),
            rows.i.payload.rotate.eq(~is_v),
            self.i_row.ready.eq(rows.i.ready),
        ]
        with m.If(self.i_row.valid & self.i_row.ready):
            m.d.sync += beat.eq(beat + 1)
            with m.If(beat == c.row_beats - 1):
                m.d.sync += [beat.eq(0), is_v.eq(~is_v)]
        return m
