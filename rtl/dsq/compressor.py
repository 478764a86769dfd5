"""One closed group of INT8 rows to its packed record: hardware of ``golden.dsq.compressor.compress`` and ``pack``."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from golden.dsq.record import COARSE_BITS
from rtl.config import DsqConfig
from rtl.dsq._compressor_lanes import Lanes, Pass, pipeline_depth
from rtl.dsq._compressor_order import RowWalker, TokenOrder
from rtl.dsq._compressor_scales import NORM_BITS, GroupScales, divider_config
from rtl.dsq._compressor_search import PairWalker
from rtl.dsq._compressor_steps import ChannelSteps, calibration_layout
from rtl.dsq.record import CodeKind, RecordPacker, section_cycles, word_layout
from rtl.dsq.scale import ScaleDivider

__all__ = ["Compressor"]


class Compressor(wiring.Component):
    """Compresses group after group of K and V rows to record words.

    A group's rows are read several times, beat by beat, through one pipeline with one multiplier per lane: salient K
    rows to INT16 (the bases), the nearest base of every other K row, the two sums that give the group scales, then
    the sections of the record in their order. The row memory has two halves: rows of the next group come in
    meanwhile.

    Latency: at most ``latency(config, salient_tokens)`` cycles from a group's last row beat to its first word at ``o``,
    if the group before has left.
    Throughput: a group at most every ``group_cycles(config, salient_tokens)`` cycles if no stream ever stalls (rows of
    the next group take ``2 * group_tokens * row_beats`` cycles of these; ``i_salient`` may pause every other cycle).
    Stalls: a full ``o`` stops the passes that make record sections. ``i_group``, ``i_calibration`` and ``i_salient``
    are taken when the group's turn has come, ``i_row`` whenever a half of the row memory is free.
    Combinational paths: none between the streams; each ``ready`` depends on registers alone.

    Parameters
    ----------
    config : DsqConfig

    Members
    -------
    i_group : stream of struct{salient_tokens, load_calibration, k_norm, v_norm}, one transfer a group, taken when its
        rows are complete. ``salient_tokens`` is 1 to ``max_salient``, or ``group_tokens``: then all rows stay INT8 and
        no calibration is used. The norms are 1 to 2**20-1.
    i_calibration : stream of struct{k_shape, v_shape, v_mean}, ``head_dim`` transfers, channel 0 first, for each group
        with ``load_calibration``; kept for the groups behind it. Shapes are 1 to 4095.
    i_salient : stream of struct{token, last}: the group's salient tokens, ascending. ``salient_tokens`` counts them.
    i_row : stream of struct{scale, data}, ``row_beats`` transfers a row: token 0's K row, token 0's V row, token 1's K
        row, ... ``scale`` has an exponent of at most ``MAX_EXPONENT`` and is the same in all beats of a row.
    o : stream of struct{data, first, last}: record words.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = c = config
        self.i_group_shape = data.StructLayout(
            {
                "salient_tokens": range(c.group_tokens + 1),
                "load_calibration": 1,
                "k_norm": NORM_BITS,
                "v_norm": NORM_BITS,
            }
        )
        self.i_salient_shape = data.StructLayout({"token": range(c.group_tokens), "last": 1})
        self.i_row_shape = data.StructLayout({"scale": 8, "data": data.ArrayLayout(signed(8), c.lanes)})
        self.o_shape = word_layout(c)
        super().__init__(
            {
                "i_group": In(stream.Signature(self.i_group_shape)),
                "i_calibration": In(stream.Signature(calibration_layout)),
                "i_salient": In(stream.Signature(self.i_salient_shape)),
                "i_row": In(stream.Signature(self.i_row_shape)),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: DsqConfig, salient_tokens: int) -> int:
        """The most cycles from a group's last row beat to its first word, with a calibration, if no stream stalls.

        Passes over rows cost a cycle per beat and one per base, and the pipeline's depth at their end. The search costs
        a cycle per beat and base, and one for reading the beat.
        """
        beats, others = config.row_beats, config.group_tokens - salient_tokens
        pass_end = pipeline_depth(config) + 3
        cycles = 1 + config.head_dim + 2 * salient_tokens  # calibration and salient indices
        if others:
            round_cycles = 1 + max(salient_tokens, Lanes.PAIR_DISTANCE - 2)
            cycles += salient_tokens * (1 + beats) + pass_end
            cycles += config.group_tokens + 1 + (others * beats + 1) * round_cycles + pass_end
            cycles += 2 * (salient_tokens + others * beats + pass_end)
            cycles += ScaleDivider.latency(divider_config(config)) + 3
        return cycles + 4 + 5 * salient_tokens + 2 * pass_end + config.bus_bits // 8  # header

    @staticmethod
    def group_cycles(config: DsqConfig, salient_tokens: int) -> int:
        """The most cycles from a group's start to the next one's, with a calibration, if no stream stalls."""
        others = config.group_tokens - salient_tokens
        sections = [(CodeKind.FOUR, salient_tokens), (CodeKind.FOUR, salient_tokens), (CodeKind.EIGHT, salient_tokens)]
        if others:
            planes = config.delta_bits // COARSE_BITS + 1
            sections += [(CodeKind.TWO, others)] * planes
        section_end = salient_tokens + pipeline_depth(config) + 3
        return Compressor.latency(config, salient_tokens) + sum(
            section_cycles(config, kind, rows) + section_end for kind, rows in sections
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.lanes = lanes = Lanes(c)
        m.submodules.order = order = TokenOrder(c)
        m.submodules.rows = rows = RowWalker(c)
        m.submodules.pairs = pairs = PairWalker(c)
        m.submodules.scales = scales = GroupScales(c)
        m.submodules.steps = steps = ChannelSteps(c)
        m.submodules.packer = packer = RecordPacker(c)
        connect(m, packer.o, flipped(self.o))

        group = Signal(self.i_group_shape)
        dense = Signal()  # all tokens are salient
        buffer, release = Signal(), Signal()  # the half of the row memory at work; it may be filled again
        full = self._load(m, lanes, buffer, release)
        current, start = Signal(Pass), Signal()
        searching = current == Pass.SEARCH
        is_sum = (current == Pass.K_SUM) | (current == Pass.V_SUM)
        is_delta = (current == Pass.K_DELTAS) | (current == Pass.V_DELTAS)
        steps_v = (current == Pass.V_CODES) | (current == Pass.V_DELTAS)
        last_pass = Mux(dense, current == Pass.V_CODES, current == Pass.V_DELTAS)
        for walker in (rows, pairs):
            m.d.comb += [
                walker.buffer.eq(buffer),
                walker.salient_tokens.eq(group.salient_tokens),
                walker.salient_token.eq(order.salient_token),
            ]
        m.d.comb += [
            rows.start.eq(start & ~searching),
            rows.current.eq(current),
            rows.rows.eq(c.group_tokens - group.salient_tokens),
            rows.head.eq(order.head),
            rows.count.eq(order.count),
            rows.next_token.eq(order.next_token),
            rows.advance.eq(lanes.advance),
            pairs.start.eq(start & searching),
            order.index.eq(Mux(searching, pairs.index, rows.index)),
            order.token.eq(rows.token),
            order.link.eq(lanes.nearest),
            lanes.op.eq(Mux(searching, pairs.op, rows.op)),
            lanes.current.eq(current),
            lanes.ends_record.eq(last_pass),
            lanes.step.eq(steps.o),
            lanes.clear_total.eq(scales.accepted),
            scales.total.eq(lanes.total),
            scales.row_stb.eq(rows.row_end & is_sum),
            scales.k_norm.eq(group.k_norm),
            scales.v_norm.eq(group.v_norm),
            # The steps of K are there before its deltas begin, those of V follow while V codes leave.
            steps.start.eq(scales.k_stb | (start & (current == Pass.V_CODES) & ~dense)),
            steps.is_v.eq(steps_v),
            steps.scale.eq(Mux(steps_v, scales.v_scale, scales.k_scale)),
        ]

        position = Signal(range(max(c.head_dim, c.group_tokens)))
        ends, moves = Signal(), Signal()  # of a count of `position`
        last_salient = position == group.salient_tokens - 1
        with m.If(moves):
            m.d.sync += position.eq(Mux(ends, 0, position + 1))
        self._take(m, position, order, steps, lanes)
        in_header, byte = Signal(), Signal(8)
        self._pack(m, lanes, packer, in_header, byte)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i_group.ready.eq(full)
                m.d.sync += [
                    group.eq(self.i_group.payload),
                    dense.eq(self.i_group.payload.salient_tokens == c.group_tokens),
                    current.eq(Pass.BASES),
                ]
                with m.If(self.i_group.valid & full):
                    m.next = "SALIENT"
                    with m.If(self.i_group.payload.load_calibration):
                        m.next = "CALIBRATION"
            with m.State("CALIBRATION"):
                m.d.comb += [
                    self.i_calibration.ready.eq(1),
                    moves.eq(self.i_calibration.valid),
                    ends.eq(position == c.head_dim - 1),
                ]
                with m.If(moves & ends):
                    m.next = "SALIENT"
            with m.State("SALIENT"):
                m.d.comb += [self.i_salient.ready.eq(1), moves.eq(self.i_salient.valid), ends.eq(last_salient)]
                with m.If(moves & ends):
                    m.next = "BEGIN"
                    with m.If(dense):
                        m.next = "HEADER"
            with m.State("BEGIN"):
                with m.If(~(steps.busy & is_delta)):
                    m.d.comb += start.eq(1)
                    m.next = "PASS"
            with m.State("PASS"):
                with m.If(~(rows.busy | pairs.busy | lanes.busy)):
                    with m.If(is_sum):
                        m.next = "DIVIDE"
                    with m.Elif(last_pass):
                        m.d.comb += release.eq(1)
                        m.d.sync += buffer.eq(~buffer)
                        m.next = "IDLE"
                    with m.Else():
                        m.d.sync += current.eq(current.as_value() + 1)
                        k_ends = current == (Pass.K_DELTAS if c.delta_bits == COARSE_BITS else Pass.K_FINE)
                        with m.If(k_ends | (dense & (current == Pass.LOWER))):
                            m.d.sync += current.eq(Pass.V_CODES)
                        m.next = "BEGIN"
            with m.State("DIVIDE"):
                m.d.comb += scales.divide.eq(1)
                with m.If(scales.accepted):
                    m.d.sync += current.eq(Pass.V_SUM)
                    m.next = "BEGIN"
                    with m.If(current == Pass.V_SUM):
                        m.next = "SCALE"
            with m.State("SCALE"):
                with m.If(scales.v_stb):
                    m.next = "HEADER"
            with m.State("HEADER"):
                group_scales = [Mux(dense, 0, scale) for scale in (scales.k_scale, scales.v_scale)]
                fixed = [group.salient_tokens, c.delta_bits, *group_scales]
                m.d.comb += [in_header.eq(1), byte.eq(Array(fixed)[position[:2]])]
                m.d.comb += [moves.eq(packer.i.ready), ends.eq(position == len(fixed) - 1)]
                m.d.sync += current.eq(Pass.K_SCALES)
                with m.If(moves & ends):
                    m.next = "COUNTS"
            with m.State("COUNTS"):
                m.d.comb += [in_header.eq(1), byte.eq(Mux(dense, 0, order.count))]
                m.d.comb += [moves.eq(packer.i.ready), ends.eq(last_salient)]
                with m.If(moves & ends):
                    m.next = "BEGIN"
        m.d.comb += order.base.eq(Mux(in_header, position, rows.index))
        return m

    def _load(self, m: Module, lanes: Lanes, buffer: Signal, release: Signal) -> Signal:
        """Fill the halves of the row memory in turn; returns whether the half ``buffer`` is full."""
        half = 2 * self.config.group_tokens * self.config.row_beats
        full = Signal(2)
        address = Signal(range(2 * half))
        loading = Signal()
        m.d.comb += [
            self.i_row.ready.eq(~full.bit_select(loading, 1)),
            lanes.row.valid.eq(self.i_row.valid & self.i_row.ready),
            lanes.row.address.eq(address),
            lanes.row.beat.scale.eq(self.i_row.payload.scale),
            lanes.row.beat.data.eq(self.i_row.payload.data),
        ]
        with m.If(release):
            m.d.sync += full.bit_select(buffer, 1).eq(0)
        with m.If(lanes.row.valid):
            m.d.sync += address.eq(address + 1)
            with m.If((address == half - 1) | (address == 2 * half - 1)):
                m.d.sync += [full.bit_select(loading, 1).eq(1), loading.eq(~loading)]
                with m.If(loading):
                    m.d.sync += address.eq(0)
        return full.bit_select(buffer, 1)

    def _take(self, m: Module, position: Signal, order: TokenOrder, steps: ChannelSteps, lanes: Lanes) -> None:
        """Put the ``position``-th transfer of ``i_calibration`` and ``i_salient`` to where it is kept."""
        calibration, salient = self.i_calibration, self.i_salient
        m.d.comb += [
            steps.shape.valid.eq(calibration.valid & calibration.ready),
            steps.shape.channel.eq(position),
            steps.shape.k.eq(calibration.payload.k_shape),
            steps.shape.v.eq(calibration.payload.v_shape),
            lanes.mean.valid.eq(calibration.valid & calibration.ready),
            lanes.mean.channel.eq(position),
            lanes.mean.value.eq(calibration.payload.v_mean),
            order.salient.valid.eq(salient.valid & salient.ready),
            order.salient.index.eq(position),
            order.salient.token.eq(salient.payload.token),
        ]

    def _pack(self, m: Module, lanes: Lanes, packer: RecordPacker, in_header: Signal, byte: Signal) -> None:
        """Counts and group scales come from here, everything else from the lanes."""
        m.d.comb += [
            packer.i.valid.eq(lanes.o.valid | in_header),
            packer.i.payload.eq(lanes.o.payload),
            lanes.o.ready.eq(packer.i.ready),
        ]
        with m.If(in_header):
            m.d.comb += [
                packer.i.payload.data.eq(byte),
                packer.i.payload.kind.eq(CodeKind.BYTE),
                packer.i.payload.last.eq(0),
                packer.i.payload.end.eq(0),
            ]
