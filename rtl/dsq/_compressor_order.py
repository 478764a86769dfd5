"""Order of the Compressor's rows: salient tokens by index, the others in one list per base."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.config import DsqConfig
from rtl.dsq._compressor_lanes import Pass, operation_layout

__all__ = ["RowWalker", "TokenOrder", "times"]


def times(value: Value, factor: int) -> Value:
    """``value * factor`` for a small constant factor: shifts and adders, never a multiplier block."""
    return sum(value << bit for bit in range(factor.bit_length()) if factor >> bit & 1)


class TokenOrder(wiring.Component):
    """Memories of the order, all with reads of latency 0.

    The tokens of a base form a linked list. A new token goes to its head, so that tokens linked in descending order are
    read in ascending order.

    Members
    -------
    salient : struct{valid, index, token}: the index-th salient token; empties the base's list
    link : struct{valid, token, base}: ``token`` goes to the list of ``base``
    index, salient_token : the index-th salient token
    base, head, count : first token of the base's list, and its length; not while ``link.valid``
    token, next_token : the token behind ``token`` in its list
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        token, base = range(config.group_tokens), range(config.max_salient)
        super().__init__(
            {
                "salient": In(data.StructLayout({"valid": 1, "index": token, "token": token})),
                "link": In(data.StructLayout({"valid": 1, "token": token, "base": base})),
                "index": In(token),
                "salient_token": Out(token),
                "base": In(base),
                "head": Out(token),
                "count": Out(bits_for(config.group_tokens)),
                "token": In(token),
                "next_token": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        tokens, bases = self.config.group_tokens, self.config.max_salient
        # name: words, word shape, read address, read data, write enable, write address, write data
        salient, link, token = self.salient, self.link, self.token.shape()
        base = Mux(link.valid, link.base, self.base)
        count = Mux(salient.valid, 0, self.count + 1)
        change = salient.valid | link.valid
        changed = Mux(link.valid, link.base, salient.index[: len(self.base)])
        memories = {
            "listed": (tokens, token, self.index, self.salient_token, salient.valid, salient.index, salient.token),
            "heads": (bases, token, base, self.head, link.valid, link.base, link.token),
            "counts": (bases, self.count.shape(), base, self.count, change, changed, count),
            "successors": (tokens, token, self.token, self.next_token, link.valid, link.token, self.head),
        }
        for name, (depth, shape, r_addr, r_data, w_en, w_addr, w_data) in memories.items():
            m.submodules[name] = words = memory.Memory(shape=shape, depth=depth, init=[])
            w, r = words.write_port(), words.read_port(domain="comb")
            m.d.comb += [r.addr.eq(r_addr), r_data.eq(r.data), w.en.eq(w_en), w.addr.eq(w_addr), w.data.eq(w_data)]
        return m


class RowWalker(wiring.Component):
    """Issues the row beats of one pass: salient rows by index, or the other rows base by base.

    One beat a cycle, and one cycle before the first row of every base.

    Members
    -------
    start, current, busy : begins the pass ``current``, which holds while ``busy``
    salient_tokens, rows, buffer : of the group: its bases, its other rows, the half of the row memory
    index, salient_token, head, count, token, next_token : reads of TokenOrder, the list being that of base ``index``
    op, advance : to Lanes
    row_end : a row's last beat enters the pipeline
    """

    def __init__(self, config: DsqConfig) -> None:
        self.config = config
        token, count = range(config.group_tokens), bits_for(config.group_tokens)
        super().__init__(
            {
                "start": In(1),
                "current": In(Pass),
                "busy": Out(1),
                "salient_tokens": In(count),
                "rows": In(count),
                "buffer": In(1),
                "index": Out(token),
                "salient_token": In(token),
                "head": In(token),
                "count": In(count),
                "token": Out(token),
                "next_token": In(token),
                "op": Out(operation_layout(config)),
                "advance": In(1),
                "row_end": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        by_base, is_v, is_scale = Signal(), Signal(), Signal()
        with m.Switch(self.current):
            with m.Case(Pass.K_SUM, Pass.V_SUM, Pass.K_DELTAS, Pass.K_FINE, Pass.V_DELTAS):
                m.d.comb += by_base.eq(1)
        with m.Switch(self.current):
            with m.Case(Pass.V_SUM, Pass.V_SCALES, Pass.V_CODES, Pass.V_DELTAS):
                m.d.comb += is_v.eq(1)
        with m.Switch(self.current):
            with m.Case(Pass.K_SCALES, Pass.V_SCALES):
                m.d.comb += is_scale.eq(1)

        beat = Signal(range(c.row_beats))
        of_base = Signal.like(self.count)  # rows of this base that are left, this one included
        of_pass = Signal.like(self.count)  # rows of this pass
        last_beat = (beat == c.row_beats - 1) | is_scale
        base_row = Mux(is_v, c.max_salient, self.index)
        m.d.comb += [
            self.op.row_address.eq(times(Cat(is_v, self.token, self.buffer), c.row_beats) + beat),
            self.op.base_address.eq(times(base_row, c.row_beats) + beat),
            self.op.beat.eq(beat),
            self.op.last.eq(last_beat & (of_pass == 1)),
            self.row_end.eq(self.op.row & self.advance & last_beat),
        ]
        with m.FSM() as fsm:
            m.d.comb += [self.busy.eq(~fsm.ongoing("IDLE")), self.op.row.eq(fsm.ongoing("ROW"))]
            with m.State("IDLE"):
                m.d.sync += [self.index.eq(0), of_pass.eq(Mux(by_base, self.rows, self.salient_tokens))]
                with m.If(self.start):
                    m.next = "BASE"
            with m.State("BASE"):
                m.d.sync += [
                    self.token.eq(Mux(by_base, self.head, self.salient_token)),
                    of_base.eq(Mux(by_base, self.count, 1)),
                ]
                with m.If(by_base & (self.count == 0)):
                    m.d.sync += self.index.eq(self.index + 1)
                with m.Else():
                    m.next = "ROW"
            with m.State("ROW"):
                with m.If(self.advance):
                    m.d.sync += beat.eq(Mux(last_beat, 0, beat + 1))
                with m.If(self.row_end):
                    m.d.sync += [
                        self.token.eq(self.next_token),
                        of_base.eq(of_base - 1),
                        of_pass.eq(of_pass - 1),
                    ]
                    with m.If(of_pass == 1):
                        m.next = "IDLE"
                    with m.Elif(of_base == 1):
                        m.d.sync += self.index.eq(self.index + 1)
                        m.next = "BASE"
        return m
