"""Part of RunSelector and History: weights by bin, and how many bins stay within a limit."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from rtl.hcap._accumulators import Accumulators

__all__ = ["Histogram"]


class Histogram(wiring.Component):
    """Counts what falls into each bin; a scan tells from how many bins, the first one on, the sum is within a limit.

    The scan clears the bins as it goes. After a reset they are swept in the same way, without a result.

    Latency: the result is valid ``latency(bins)`` cycles after ``scan``, ``ready`` is high again in the cycle after its
    transfer. After a reset ``ready`` takes ``latency(bins)`` cycles.

    Parameters
    ----------
    bins : number of bins.
    amount_bits : of what is added at once.
    limit_bits : of the limit; counts saturate above every limit.

    Members
    -------
    ready : ``add`` and ``scan`` may come.
    add, bin, amount : ``amount`` falls into ``bin``, which is below ``bins``.
    scan, limit : after this cycle's ``add`` the scan begins.
    o : stream, the number of first bins whose counts sum up to ``limit`` at most, 0 to ``bins``.
    """

    def __init__(self, *, bins: int, amount_bits: int, limit_bits: int) -> None:
        self.bins = bins
        super().__init__(
            {
                "ready": Out(1),
                "add": In(1),
                "bin": In(range(bins)),
                "amount": In(amount_bits),
                "scan": In(1),
                "limit": In(limit_bits),
                "o": Out(stream.Signature(bits_for(bins))),
            }
        )

    @staticmethod
    def latency(bins: int) -> int:
        """Cycles from ``scan`` to a valid result."""
        return bins + 3

    def elaborate(self, platform):
        m = Module()
        m.submodules.counts = counts = Accumulators(
            depth=self.bins, bits=len(self.limit) + 1, amount_bits=len(self.amount)
        )
        place = Signal(range(self.bins))
        wiping = Signal(init=1)
        # Counts come out two cycles after their place. Once one of them exceeds what is left, none is within the limit.
        asked, given = Signal(), Signal()
        left, exceeded = Signal.like(self.limit), Signal()
        rest = Signal(len(self.limit) + 2)
        over = exceeded | rest[-1]
        m.d.comb += rest.eq(left - counts.value)
        m.d.sync += [asked.eq(counts.clear), given.eq(asked)]
        with m.If(given):
            m.d.sync += [left.eq(rest), exceeded.eq(over), self.o.payload.eq(self.o.payload + ~over)]

        with m.FSM(init="SWEEP"):
            with m.State("ADD"):
                m.d.comb += [
                    self.ready.eq(1),
                    counts.en.eq(self.add),
                    counts.addr.eq(self.bin),
                    counts.amount.eq(self.amount),
                ]
                m.d.sync += [place.eq(0), wiping.eq(0), left.eq(self.limit), exceeded.eq(0), self.o.payload.eq(0)]
                with m.If(self.scan):
                    m.next = "SWEEP"
            with m.State("SWEEP"):
                m.d.comb += [counts.en.eq(1), counts.clear.eq(1), counts.addr.eq(place)]
                m.d.sync += place.eq(place + 1)
                with m.If(place == self.bins - 1):
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                with m.If(~asked):
                    m.next = "GIVE"
                    with m.If(wiping):
                        m.next = "ADD"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "ADD"
        return m
