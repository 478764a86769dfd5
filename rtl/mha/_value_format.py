"""Sizes and layouts that the parts of ValueSum share."""

from amaranth.hdl import signed
from amaranth.lib import data
from amaranth.utils import ceil_log2

from golden.dsq.compressor import VALUE_BITS
from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS
from golden.mha.softmax import PROBABILITY_BITS
from golden.mha.value_sum import SCALED_BITS
from rtl.config import AcceleratorConfig
from rtl.dsq._compressor_steps import SHAPE_BITS
from rtl.mha._query_store import SLOT_BITS

__all__ = ["CODE_BITS", "ROW_SCALED_BITS", "ValueFormat", "value_calibration_layout"]

#: bits of the codes of INT8 rows
CODE_BITS = 8
#: bits of a scaled weight of an INT8 row, whose scale has an exponent of at most MAX_EXPONENT
ROW_SCALED_BITS = PROBABILITY_BITS + 4 + MAX_EXPONENT - SCALE_BIAS
#: bits of a count of tokens, at most: `inverse` knows totals below 2**42
_MOST_COUNT_BITS = 26

#: what the calibration memory keeps for each channel
value_calibration_layout = data.StructLayout({"v_shape": SHAPE_BITS, "v_mean": signed(16)})


class ValueFormat:
    """Sizes of ValueSum.

    ``row_*`` belongs to INT8 rows, ``delta_*`` to rows of 2-bit codes: ``lanes`` a head, ``chunks`` of as many channels
    in a token. A word has ``delta_cycles`` chunks of deltas.
    ``exact_bits`` (signed) and ``delta_bits`` are the accumulators', ``total_bits`` those of a sum of weights,
    ``scaled_bits`` those of a sum of scaled weights: no row that fits the config overflows them.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        dsq, mha = config.dsq, config.mha
        self.heads, self.channels, self.word_bits = mha.q_heads, dsq.head_dim, dsq.bus_bits
        self.delta_cycles = mha.delta_cycles
        self.row_lanes, self.delta_lanes = dsq.bus_bits // CODE_BITS, dsq.bus_bits // VALUE_BITS // mha.delta_cycles
        self.row_chunks, self.delta_chunks = -(-self.channels // self.row_lanes), -(-self.channels // self.delta_lanes)
        tokens = (mha.max_groups + 2) * dsq.group_tokens  # those of open and waiting group are INT8
        self.count_bits = min(ceil_log2(tokens), _MOST_COUNT_BITS)
        self.exact_bits = ROW_SCALED_BITS + CODE_BITS + self.count_bits
        self.delta_bits = SCALED_BITS + VALUE_BITS + self.count_bits
        self.total_bits = PROBABILITY_BITS + self.count_bits
        self.scaled_bits = SCALED_BITS + self.count_bits

        heads, head_range = self.heads, range(max(self.heads, 2))
        self.token_layout = data.StructLayout(
            {
                "weights": data.ArrayLayout(PROBABILITY_BITS, heads),
                "rises": data.ArrayLayout(6, heads),
                "scale": 8,
                "delta": 1,
                "end": 1,
                "slot": SLOT_BITS,
            }
        )
        #: a token with its weights scaled; ``most``: the largest rise, ``some``: it is not 0
        self.scaled_layout = data.StructLayout(
            {
                "weights": data.ArrayLayout(PROBABILITY_BITS, heads),
                "rises": data.ArrayLayout(6, heads),
                "most": 6,
                "some": 1,
                "scaled": data.ArrayLayout(SCALED_BITS, heads),
                "delta": 1,
                "end": 1,
                "slot": SLOT_BITS,
            }
        )
        self.beat_layout = data.StructLayout(
            {"head": head_range, "data": data.ArrayLayout(signed(16), dsq.lanes), "last": 1}
        )
        #: what the accumulators do in a cycle, at the chunks and of the row ``bank``; a ``fresh`` kind's stored sums
        #: count as 0, ``last`` is a token's last chunk or the last chunk of a shift by one
        self.step_layout = data.StructLayout(
            {
                "row_write": 1,
                "delta_write": 1,
                "delta": 1,
                "shift": 1,
                "last": 1,
                "end": 1,
                "read": 1,
                "row_fresh": 1,
                "delta_fresh": 1,
                "bank": 1,
                "row_chunk": range(self.row_chunks),
                "delta_chunk": range(self.delta_chunks),
                "channel": range(self.channels),
                "head": head_range,
            }
        )
