"""AxiReader between requesters and a memory that do whatever the rules allow, with properties beside it."""

from typing import Any

from amaranth.hdl import Array, Assert, Assume, Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from cocotb_tests.formal.axi_rules import (
    PLACE_BITS,
    address_of,
    assert_holds,
    assert_legal,
    assume_holds,
    assume_in_block,
    assume_soon,
    is_bad,
    place_of,
)
from rtl.cache.axi import AxiConfig
from rtl.cache.axi_reader import AxiReader

__all__ = ["ReaderIsRight", "ReaderMovesOn"]


class _Reader(wiring.Component):
    """The reader, a memory that mixes the words of all ports as it likes, requesters that ask for anything.

    One requester is watched; it asks for words one after the other. Requests in every other block of 4 words are bad.

    Parameters
    ----------
    config : of the reader
    watched : the requester
    """

    def __init__(self, config: AxiConfig, watched: int) -> None:
        self.config, self.watched = config, watched
        members: dict[str, Any] = {"answer": In(1), "port": In(config.id_bits), "arready": In(1)}
        members |= {"first": In(PLACE_BITS), "mark": In(PLACE_BITS)}
        for k in range(config.ports):
            members |= {f"ask_{k}": In(1), f"count_{k}": In(2), f"take_{k}": In(1)}
            if k != watched:
                members |= {f"place_{k}": In(PLACE_BITS), f"bad_{k}": In(1)}
        super().__init__(members)

    def _design(self, m: Module) -> AxiReader:
        """The reader and everything around it."""
        c = self.config
        m.submodules.reader = reader = AxiReader(c)
        m.d.comb += [Assume(~ResetSignal()), reader.share.eq(128), reader.pressure.eq(1)]
        self._memory(m, reader)
        begun, asked, given, mark = Signal(), Signal(PLACE_BITS), Signal(PLACE_BITS), Signal(PLACE_BITS)
        self.asked, self.given, self.marked = (
            Mux(begun, *pair) for pair in ((asked, self.first), (given, self.first), (mark, self.mark))
        )
        for k in range(c.ports):
            request = reader.i_request[k]
            count = getattr(self, f"count_{k}")
            place = self.asked if k == self.watched else getattr(self, f"place_{k}")
            m.d.comb += [
                request.valid.eq(getattr(self, f"ask_{k}")),
                request.payload.count.eq(count),
                request.payload.address.eq(address_of(place, c.word_addr_bits)),
                request.payload.bad.eq(is_bad(place) if k == self.watched else getattr(self, f"bad_{k}")),
                reader.o[k].ready.eq(getattr(self, f"take_{k}")),
            ]
            assume_holds(m, request.valid, request.ready, request.payload)
            if k == self.watched:
                asks, comes = request.valid & request.ready, reader.o[k].valid & reader.o[k].ready
                m.d.sync += [begun.eq(1), mark.eq(self.marked)]
                m.d.sync += [asked.eq(self.asked + Mux(asks, count, 0)), given.eq(self.given + comes)]
                assume_in_block(m, place, count)
        return reader

    def _memory(self, m: Module, reader: AxiReader) -> None:
        """Bursts of each port in order. A word of the watched port shows whether it is the marked one."""
        c, axi = self.config, reader.axi
        place = place_of(axi.araddr, c)
        self.under_way = Signal(range(2 * c.outstanding + 2))
        begins, ends = axi.arvalid & axi.arready, axi.rvalid & axi.rlast
        m.d.sync += self.under_way.eq(self.under_way + begins - ends)
        lasts, self.some, self.served = Signal(c.ports), Signal(c.ports), Signal(c.ports)
        m.d.comb += [
            Assume(self.port < c.ports),
            axi.arready.eq(self.arready),
            axi.rid.eq(self.port),
            axi.rvalid.eq(self.answer & self.some.bit_select(self.port, 1)),
            axi.rlast.eq(lasts.bit_select(self.port, 1)),
        ]
        for k in range(c.ports):
            # One more than may be under way: what begins too much is noticed, not lost.
            lengths = Array(Signal(c.beats_shape, name=f"length_{k}_{n}") for n in range(c.outstanding + 1))
            places = Array(Signal(PLACE_BITS, name=f"place_{k}_{n}") for n in range(c.outstanding + 1))
            level = Signal(range(c.outstanding + 2), name=f"level_{k}")
            beat = Signal(c.beats_shape, name=f"beat_{k}")
            taken, pop = Signal(name=f"taken_{k}"), Signal(name=f"pop_{k}")
            m.d.comb += [
                taken.eq(begins & (axi.arid == k)),
                self.served[k].eq(axi.rvalid & (axi.rid == k)),
                pop.eq(self.served[k] & lasts[k]),
                lasts[k].eq(beat == lengths[0]),
                self.some[k].eq(level != 0),
            ]
            with m.If(pop):
                m.d.sync += [queue[n].eq(queue[n + 1]) for queue in (lengths, places) for n in range(c.outstanding)]
            with m.If(taken):
                m.d.sync += [lengths[level - pop].eq(axi.arlen), places[level - pop].eq(place)]
            m.d.sync += [level.eq(level + taken - pop), beat.eq(Mux(self.served[k], Mux(pop, 0, beat + 1), beat))]
            if k == self.watched:
                self.word = (places[0] + beat)[:PLACE_BITS]


class ReaderIsRight(_Reader):
    """Nobody has to be fair.

    Addresses hold and are legal. The watched port gets its words in order, each once, none that it did not ask for;
    those of bad requests, and those that the memory answered with SLVERR, are errors, and no others.
    """

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        reader = self._design(m)
        axi, o = reader.axi, reader.o[self.watched]
        failing = self.word[0] & self.word[1]
        m.d.comb += [axi.rdata.eq(self.word == self.marked), axi.rresp[1].eq(failing)]

        assert_holds(m, axi.arvalid, axi.arready, Cat(axi.araddr, axi.arlen, axi.arid))
        assert_legal(m, axi.arvalid, axi.araddr, axi.arlen, max_burst=c.max_burst, word_bytes=c.word_bytes)
        assert_holds(m, o.valid, o.ready, o.payload)
        m.d.comb += [
            Assert(axi.rready),
            Assert((axi.arid < c.ports) | ~axi.arvalid),
            Assert(axi.arsize == c.word_bytes.bit_length() - 1),
            Assert(axi.arburst == 1),
            Assert(self.under_way <= c.outstanding),
        ]
        with m.If(o.valid):
            bad = is_bad(self.given)
            m.d.comb += [
                Assert(self.asked != self.given),
                Assert(o.payload.error == (bad | (self.given[0] & self.given[1]))),
                Assert(bad | (o.payload.data == (self.given == self.marked))),
            ]
        return m


class ReaderMovesOn(_Reader):
    """Everybody is fair; the watched port waits for ``within`` cycles at most for a word that it is owed.

    Fair: an address is taken in its second cycle at the latest, each port that waits for words of the memory gets one
    in so many cycles as there are ports, a word is taken in its second cycle. Prefetch asks only if it is watched,
    attention not then, since it would go first for ever.
    """

    def __init__(self, config: AxiConfig, watched: int, *, within: int) -> None:
        super().__init__(config, watched)
        self.within = within

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        reader = self._design(m)
        o = reader.o[self.watched]
        assume_soon(m, reader.axi.arvalid, reader.axi.arready, 1)
        for k in range(self.config.ports):
            assume_soon(m, self.some[k], self.served[k], self.config.ports - 1)
            assume_soon(m, reader.o[k].valid, reader.o[k].ready, 1)
        m.d.comb += Assume(~reader.i_request[0 if self.watched == 1 else 1].valid)
        waits = Signal(range(self.within + 2))
        m.d.sync += waits.eq(Mux((o.valid & o.ready) | (self.asked == self.given), 0, waits + 1))
        m.d.comb += Assert(waits <= self.within)
        return m
