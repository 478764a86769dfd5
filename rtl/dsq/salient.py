"""Which tokens of a group keep INT8: sinks, then the highest attention mass (golden `pick_salient`)."""

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.memory import NO_COLLISIONS
from rtl.config import DsqConfig

__all__ = ["SalientPicker"]

MASS_BITS = 32


class SalientPicker(wiring.Component):
    """Gives the indices of a group's salient tokens, ascending.

    Tokens rank by sink (the first ``sink_tokens`` of a sequence's first group), then by mass, then by lower index; the
    three side by side are one number, different for each token. The masses lie in block RAM. Each scan finds the
    highest rank below the one found last, so no list and no sorting is needed; a final scan gives out every token whose
    rank is not below the one that scan ``salient_tokens`` found.

    Latency: at most ``latency(config, salient_tokens)`` cycles from a group's last mass to its last index, if the
    output is never stalled.
    Throughput: one group at a time: its setting is taken, then its masses, one a cycle, then its indices are given out,
    one in two cycles at most. The next group's setting is taken in the cycle after the last index was found.
    Stalls: output back-pressure stops the scans; nothing is lost.
    Combinational paths: none between streams; ``ready`` of both inputs depends on registers alone.

    A ``salient_tokens`` of 0 counts as 1, one above ``group_tokens`` as ``group_tokens``.

    Parameters
    ----------
    config: geometry; of which only ``group_tokens`` matters.

    Members
    -------
    i_group : stream, one transfer a group: ``salient_tokens``, ``sink_tokens``, ``first_group``.
    i_mass : stream, ``group_tokens`` transfers a group: attention mass of each token.
    o : stream, ``salient_tokens`` transfers a group: ``token`` and ``last``.
    """

    def __init__(self, config: DsqConfig) -> None:
        self.tokens = tokens = config.group_tokens
        self.i_group_shape = data.StructLayout(
            {"salient_tokens": range(tokens + 1), "sink_tokens": range(tokens + 1), "first_group": 1}
        )
        self.o_shape = data.StructLayout({"token": range(tokens), "last": 1})
        super().__init__(
            {
                "i_group": In(stream.Signature(self.i_group_shape)),
                "i_mass": In(stream.Signature(unsigned(MASS_BITS))),
                "o": Out(stream.Signature(self.o_shape)),
            }
        )

    @staticmethod
    def latency(config: DsqConfig, salient_tokens: int) -> int:
        """Cycles from a group's last mass to its last index, if the last token is salient (less if it is not)."""
        tokens = config.group_tokens
        scans = salient_tokens if salient_tokens < tokens else 0
        return scans * (tokens + 3) + tokens + salient_tokens + 2

    def elaborate(self, platform):
        m = Module()
        # Scans read after all masses have been written.
        store = Memory(shape=unsigned(MASS_BITS + 1), depth=self.tokens, init=[], attrs=NO_COLLISIONS)
        m.submodules.store = store
        w, r = store.write_port(), store.read_port()
        rank_bits = len(r.data) + len(w.addr)

        setting = Signal(self.i_group_shape)
        left = Signal.like(setting.salient_tokens)
        everything = setting.salient_tokens == self.tokens
        token = Signal(range(self.tokens))
        last_token = token == self.tokens - 1
        advance = ~self.o.valid

        # A scan: cycle 1 the token's address, cycle 2 its store word, cycle 3 its rank against `limit` and `best`.
        issue, clear, restart = Signal(), Signal(), Signal()
        read_valid, rank_valid = Signal(), Signal()
        read_token = Signal.like(token)
        rank, best = Signal(rank_bits), Signal(rank_bits)
        limit = Signal(rank_bits + 1)
        below = rank < limit
        with m.If(advance):
            m.d.sync += [
                Cat(read_valid, rank_valid).eq(Cat(issue, read_valid)),
                read_token.eq(token),
                rank.eq(Cat(~read_token, r.data)),
            ]
        with m.If(clear):
            m.d.sync += [read_valid.eq(0), rank_valid.eq(0)]
        with m.If(rank_valid & below & (best < rank)):
            m.d.sync += best.eq(rank)
        with m.If(restart):
            m.d.sync += [best.eq(0), limit.eq(best)]

        m.d.comb += [
            r.addr.eq(token),
            r.en.eq(advance),
            w.addr.eq(token),
            w.data.eq(Cat(self.i_mass.payload, setting.first_group & (token < setting.sink_tokens))),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.FSM():
            with m.State("GROUP"):
                m.d.comb += self.i_group.ready.eq(1)
                group = self.i_group.payload
                m.d.sync += [setting.eq(group), token.eq(0)]
                with m.If(group.salient_tokens == 0):
                    m.d.sync += setting.salient_tokens.eq(1)
                with m.Elif(group.salient_tokens > self.tokens):
                    m.d.sync += setting.salient_tokens.eq(self.tokens)
                with m.If(self.i_group.valid):
                    m.next = "MASS"
            with m.State("MASS"):
                m.d.comb += [self.i_mass.ready.eq(1), w.en.eq(self.i_mass.valid)]
                m.d.sync += [left.eq(setting.salient_tokens), best.eq(0), limit.eq(0), limit[-1].eq(~everything)]
                with m.If(self.i_mass.valid):
                    m.d.sync += token.eq(token + 1)
                    with m.If(last_token & ~everything):
                        m.next = "SCAN"
                    with m.Elif(last_token):
                        m.next = "GIVE"
            with m.State("SCAN"):
                m.d.comb += issue.eq(1)
                with m.If(advance):
                    m.d.sync += token.eq(token + 1)
                    with m.If(last_token):
                        m.next = "FOUND"
            with m.State("FOUND"):
                with m.If(~read_valid & ~rank_valid):
                    m.d.comb += restart.eq(1)
                    m.d.sync += left.eq(left - 1)
                    m.next = "SCAN"
                    with m.If(left == 1):
                        m.d.sync += left.eq(setting.salient_tokens)
                        m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += issue.eq(1)
                with m.If(advance):
                    m.d.sync += token.eq(token + 1)
                    with m.If(rank_valid & ~below):
                        m.d.sync += [self.o.valid.eq(1), left.eq(left - 1)]
                        m.d.sync += [self.o.payload.token.eq(~rank[: len(token)]), self.o.payload.last.eq(left == 1)]
                        with m.If(left == 1):
                            m.d.comb += clear.eq(1)
                            m.next = "GROUP"
        return m
