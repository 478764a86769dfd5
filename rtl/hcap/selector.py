"""How far from the maximum runs are kept, by a histogram of their tokens (golden `select_runs`)."""

from amaranth.hdl import Module, Mux, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.hcap.selector import BIN_SHIFT, BINS
from golden.mha.scores import SCORE_BITS
from rtl.config import AcceleratorConfig
from rtl.hcap._histogram import Histogram

__all__ = ["DISTANCE_BITS", "RunSelector", "bin_of", "is_kept"]

#: of the difference of two scores
DISTANCE_BITS = SCORE_BITS + 1
_LIMIT_BITS = 20


def bin_of(distance: ValueLike) -> Value:
    """The histogram bin of an unsigned ``distance``, 0 to BINS: one for all that is far."""
    distance = Value.cast(distance)
    inside = bits_for(BINS - 1)
    return Mux(distance[BIN_SHIFT + inside :].any(), BINS, distance[BIN_SHIFT : BIN_SHIFT + inside])


def is_kept(distance: ValueLike, bins_kept: ValueLike, run_margin: ValueLike) -> Value:
    """Whether a run at this unsigned ``distance`` is kept, ``bins_kept`` being what RunSelector gave for its tile."""
    return (Value.cast(distance) <= Value.cast(run_margin)) & (bin_of(distance) < Value.cast(bins_kept))


class RunSelector(wiring.Component):
    """Finds how many histogram bins of distances may keep their runs, so that a tile keeps no more than its tokens.

    Which runs these are follows from each one's distance by `is_kept`: the tile is walked through a second time.

    Latency: ``latency(config)`` cycles from a tile's last base to a valid ``o``.
    Throughput: one base a cycle; the next tile's first one in the cycle after the transfer at ``o``.
    Stalls: while ``o`` waits no base is taken. After a reset the histogram is cleared first, in ``latency(config)``
    cycles.
    Combinational paths: none; ``i.ready`` and ``o.valid`` depend on registers alone.

    Exact for all distances and run lengths, whatever they sum up to.

    Parameters
    ----------
    config: nothing of it matters.

    Members
    -------
    i : stream: ``distance`` of a base below the maximum, base-2 units with 8 fraction bits; ``tokens`` of its run;
        ``last`` of the tile.
    keep_count : the most tokens that the tile may keep, sampled with the transfer of ``last``.
    o : stream, one transfer a tile: the bins that are kept, 0 to BINS + 1.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.i_shape = data.StructLayout({"distance": DISTANCE_BITS, "tokens": 8, "last": 1})
        super().__init__(
            {
                "i": In(stream.Signature(self.i_shape)),
                "keep_count": In(_LIMIT_BITS),
                "o": Out(stream.Signature(bits_for(BINS + 1))),
            }
        )

    @staticmethod
    def latency(config: AcceleratorConfig) -> int:
        """Cycles from a tile's last base to a valid ``o``."""
        return Histogram.latency(BINS + 1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.histogram = histogram = Histogram(bins=BINS + 1, amount_bits=8, limit_bits=_LIMIT_BITS)
        transfer = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(histogram.ready),
            histogram.add.eq(transfer),
            histogram.bin.eq(bin_of(self.i.payload.distance)),
            histogram.amount.eq(self.i.payload.tokens),
            histogram.scan.eq(transfer & self.i.payload.last),
            histogram.limit.eq(self.keep_count),
        ]
        wiring.connect(m, histogram.o, wiring.flipped(self.o))
        return m
