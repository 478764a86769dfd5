"""Part of the attention core: the queue of tokens in the order of the value sum, completed by their fine planes."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.dsq.record import COARSE_BITS
from rtl.common.memory import BlockFifo
from rtl.common.stage import ForwardStage
from rtl.config import AcceleratorConfig
from rtl.hcap.estimator import scores_layout
from rtl.mha._commit import sums_layout
from rtl.mha._decide import TokenKind, token_layout
from rtl.mha._query_store import SLOT_BITS
from rtl.mha._rebuild import QUEUE_GROUPS
from rtl.mha._requests import GROUP_BITS

__all__ = ["TokenQueue", "weight_tag"]


def weight_tag(config: AcceleratorConfig) -> data.StructLayout:
    """What goes with a token through the softmax; the fields of `token_layout`, ``delta`` telling its kind of V."""
    return data.StructLayout(
        {
            "scale": 8,
            "delta": 1,
            "slot": SLOT_BITS,
            "index": ceil_log2(2 * config.dsq.group_tokens),
            "group": GROUP_BITS,
            "by_token": 1,
            "end": 1,
        }
    )


class TokenQueue(wiring.Component):
    """Tokens in, tokens with complete scores out, in the same order.

    Members
    -------
    i : tokens; there is always room, see RebuildEngine
    i_fine : scores of fine planes, in the order of the deltas
    v_ready, v_index, v_scale, v_done : scales of INT8 tokens, of WordFeed
    o : scores and tag, or the end of a query
    token_done : a token, not an end, leaves
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        out = data.StructLayout({"scores": sums_layout(c), "end": 1, "tag": weight_tag(c)})
        super().__init__(
            {
                "i": In(stream.Signature(token_layout(c))),
                "i_fine": In(stream.Signature(scores_layout(c))),
                "v_ready": In(1),
                "v_index": Out(range(c.dsq.group_tokens)),
                "v_scale": In(8),
                "v_done": Out(1),
                "o": Out(stream.Signature(out)),
                "token_done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        layout = token_layout(c)
        m.submodules.queue = queue = BlockFifo(width=layout.size, depth=QUEUE_GROUPS * c.dsq.group_tokens)
        m.submodules.front = front = ForwardStage(layout)  # behind block RAM
        token, out = front.o.payload, self.o.payload
        with_fine = (token.kind == TokenKind.DELTA) if c.dsq.delta_bits > COARSE_BITS else 0
        is_int8, is_end = token.kind == TokenKind.INT8, token.kind == TokenKind.END
        complete, free, moves = Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(queue.w_rdy),
            queue.w_en.eq(self.i.valid),
            queue.w_data.eq(self.i.payload),
            complete.eq(Mux(with_fine, self.i_fine.valid, ~is_int8 | self.v_ready)),
            free.eq(~self.o.valid | self.o.ready),
            front.i.valid.eq(queue.r_rdy),
            front.i.payload.eq(queue.r_data),
            queue.r_en.eq(front.i.ready),
            moves.eq(front.o.valid & complete & free),
            front.o.ready.eq(complete & free),
            self.i_fine.ready.eq(front.o.valid & with_fine & free),
            self.v_index.eq(token.index),
            self.v_done.eq(moves & is_int8 & token.block_end),
            self.token_done.eq(moves & ~is_end),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(moves),
                out.end.eq(is_end),
                out.tag.scale.eq(Mux(is_int8, self.v_scale, token.scale)),
                out.tag.delta.eq(token.kind == TokenKind.DELTA),
                *(out.tag[name].eq(token[name]) for name in ("slot", "index", "group", "by_token", "end")),
            ]
            for head, score in enumerate(out.scores):
                m.d.sync += score.eq(token.scores[head] + Mux(with_fine, self.i_fine.payload[head], 0))
        return m
