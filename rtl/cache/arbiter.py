"""Chooses whose burst is read next: attention, prefetch, GEMM ports (golden `grant`)."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.cache.arbiter import ATTENTION, GEMM, PREFETCH, SHARES
from rtl.cache._rotation import Rotation

__all__ = ["SHARE_BITS", "UNDER_WAY_BITS", "Arbiter", "ArbiterConfig"]

SHARE_BITS = ceil_log2(SHARES)
UNDER_WAY_BITS = 16


@dataclass(frozen=True, kw_only=True)
class ArbiterConfig:
    """Who asks: ``ports`` (attention, prefetch, at least one GEMM port), for bursts of at most ``max_burst`` beats."""

    ports: int = 6
    max_burst: int = 16

    def __post_init__(self) -> None:
        if self.ports <= GEMM:
            message = f"ports must be at least {GEMM + 1}, attention, prefetch and a GEMM port"
            raise ValueError(f"{message}, not {self.ports!r}")
        if self.max_burst < 1:
            raise ValueError(f"max_burst must be at least 1, not {self.max_burst!r}")


    @property
    def gain_bits(self) -> int:
        """Of `Arbiter`'s ``gains``."""
        return bits_for((SHARES - 1) * self.max_burst)


class Arbiter(wiring.Component):
    """Attention first, then prefetch, then the GEMM ports in rotation; GEMM is guaranteed a share of the beats.

    GEMM has a credit of beats. Those of others raise it by ``share`` / 256 each while a GEMM port asks; while it is
    above 0 GEMM comes first and pays for what it takes. GEMM that nobody else keeps waiting takes what it wants, for
    nothing, unless more than ``pressure`` beats of attention are under way.

    Latency: none, the grant comes in the cycle in which a port asks. Throughput: a grant a cycle.
    Combinational paths: from ``en`` and ``ask`` to ``grant``.

    Bounds in beats granted to others while a port asks and nothing else holds it up: golden `attention_wait`,
    `gemm_wait`. While GEMM asks, it gets ``share`` / 256 of the beats of any interval, less ``max_burst``. Prefetch
    has no bound: attention that always asks leaves it nothing.

    Parameters
    ----------
    config : ports and the longest burst

    Members
    -------
    ask, beats : per port: a burst of so many beats, 1 to ``max_burst``, both until its grant
    en : one may be granted
    grant : one-hot, none if ``en`` is low or nobody may go
    gains : per port: beats times ``share``, which is what GEMM is guaranteed, in 1/256 of the beats. Products are too
        slow to be made of what was granted.
    under_way, pressure : beats of attention that are under way; while they are above ``pressure``, and one cycle more,
        GEMM has its share and no more
    """

    def __init__(self, config: ArbiterConfig) -> None:
        self.config = config
        super().__init__(
            {
                "ask": In(config.ports),
                "beats": In(data.ArrayLayout(unsigned(bits_for(config.max_burst)), config.ports)),
                "en": In(1),
                "grant": Out(config.ports),
                "gains": In(data.ArrayLayout(unsigned(config.gain_bits), config.ports)),
                "under_way": In(UNDER_WAY_BITS),
                "pressure": In(UNDER_WAY_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.rotation = rotation = Rotation(c.ports - GEMM)
        credit = Signal(signed(bits_for(SHARES * c.max_burst) + 1))
        beats = Signal(unsigned(bits_for(c.max_burst)))
        gain = Signal(c.gain_bits)

        throttled = Signal()
        m.d.sync += throttled.eq(self.under_way > self.pressure)
        gemm_asks = self.ask[GEMM:].any()
        owed = credit > 0
        gemm_first = gemm_asks & owed
        attention = self.en & self.ask[ATTENTION] & ~gemm_first
        prefetch = self.en & self.ask[PREFETCH] & ~self.ask[ATTENTION] & ~gemm_first
        idle = ~self.ask[ATTENTION] & ~self.ask[PREFETCH] & ~throttled
        gemm = self.en & gemm_asks & (owed | idle)
        m.d.comb += [
            rotation.ask.eq(self.ask[GEMM:]),
            rotation.taken.eq(gemm),
            self.grant.eq(Cat(attention, prefetch, Mux(gemm, rotation.grant, 0))),
        ]
        for port in range(c.ports):
            with m.If(self.grant[port]):
                m.d.comb += [beats.eq(self.beats[port]), gain.eq(self.gains[port])]
        with m.If((attention | prefetch) & gemm_asks):
            m.d.sync += credit.eq(credit + gain)
        with m.Elif(gemm & owed):
            m.d.sync += credit.eq(credit + gain - SHARES * beats)
        return m
