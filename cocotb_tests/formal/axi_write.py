"""AxiWriter between requesters and a memory that do whatever the rules allow, with properties beside it."""

from typing import Any

from amaranth.hdl import Array, Assert, Assume, Cat, Module, Mux, ResetSignal, Signal, Value, ValueLike
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
    block,
    is_bad,
    place_of,
)
from rtl.cache.axi import AxiConfig
from rtl.cache.axi_writer import AxiWriter

__all__ = ["WriterAddresses", "WriterAnswers", "WriterMovesOn", "WriterWords"]

#: requests of the watched port that can be under way, and some more
_REQUESTS = 6


class _Writer(wiring.Component):
    """The writer, a memory that answers ports in any order, requesters that do anything.

    One requester is watched; it writes words one after the other, its requests in every other block of 4 words are bad,
    and the memory refuses what it writes to half of the other blocks. The memory takes words of a burst while or after
    its address is offered, not of later ones.

    Parameters
    ----------
    config : of the writer
    watched : the requester
    """

    def __init__(self, config: AxiConfig, watched: int) -> None:
        self.config, self.watched = config, watched
        members: dict[str, Any] = {"awready": In(1), "wready": In(1), "answer": In(1), "port": In(config.id_bits)}
        members |= {"first": In(PLACE_BITS), "mark": In(PLACE_BITS)}
        for k in range(config.ports):
            members |= {f"ask_{k}": In(1), f"count_{k}": In(2), f"give_{k}": In(1), f"take_{k}": In(1)}
            if k != watched:
                members |= {f"place_{k}": In(PLACE_BITS), f"bad_{k}": In(1)}
        super().__init__(members)

    def _design(self, m: Module) -> AxiWriter:
        """The writer and everything around it."""
        c = self.config
        m.submodules.writer = writer = AxiWriter(c)
        m.d.comb += Assume(~ResetSignal())
        begun, asked, stored, mark = Signal(), Signal(PLACE_BITS), Signal(PLACE_BITS), Signal(PLACE_BITS)
        self.asked, self.stored, self.marked = (
            Mux(begun, *pair) for pair in ((asked, self.first), (stored, self.first), (mark, self.mark))
        )
        m.d.sync += [begun.eq(1), mark.eq(self.marked)]
        for k in range(c.ports):
            watched = k == self.watched
            request, words, o = writer.i_request[k], writer.i[k], writer.o[k]
            count = getattr(self, f"count_{k}")
            place = self.asked if watched else getattr(self, f"place_{k}")
            m.d.comb += [
                request.valid.eq(getattr(self, f"ask_{k}")),
                request.payload.count.eq(count),
                request.payload.address.eq(address_of(place, c.word_addr_bits)),
                request.payload.bad.eq(is_bad(place) if watched else getattr(self, f"bad_{k}")),
                words.valid.eq(getattr(self, f"give_{k}")),
                words.payload.data.eq((self.stored == self.marked) if watched else 0),
                words.payload.strb.eq(words.payload.data[0]),
                o.ready.eq(getattr(self, f"take_{k}")),
            ]
            assume_holds(m, request.valid, request.ready, request.payload)
            assume_holds(m, words.valid, words.ready, words.payload)
            if watched:
                self.asks, self.comes = request.valid & request.ready, o.valid & o.ready
                m.d.sync += asked.eq(self.asked + Mux(self.asks, count, 0))
                m.d.sync += stored.eq(self.stored + (words.valid & words.ready))
                assume_in_block(m, place, count)
        self._memory(m, writer)
        self._answers(m)
        return writer

    def _memory(self, m: Module, writer: AxiWriter) -> None:
        """Addresses wait for their words, then for their answer."""
        c, axi = self.config, writer.axi
        slots = c.outstanding + 1  # one more than may be under way: what begins too much is noticed, not lost
        ids = Array(Signal(c.id_bits, name=f"id_{n}") for n in range(slots))
        lengths = Array(Signal(c.beats_shape, name=f"length_{n}") for n in range(slots))
        level = Signal(range(slots + 1))
        early = Signal()  # the words of the address that is offered have been taken
        self.beat = Signal(c.beats_shape)
        offered = level == 0
        self.owner = Mux(offered, axi.awid, ids[0])
        self.length = Mux(offered, axi.awlen, lengths[0])
        self.sent = axi.wvalid & axi.wready
        taken = axi.awvalid & axi.awready
        done = self.sent & axi.wlast
        pop = done & ~offered
        push = taken & ~early & ~(offered & done)
        m.d.comb += [
            axi.awready.eq(self.awready),
            axi.wready.eq(self.wready & (~offered | (axi.awvalid & ~early))),
        ]
        with m.If(pop):
            m.d.sync += [queue[n].eq(queue[n + 1]) for queue in (ids, lengths) for n in range(slots - 1)]
        with m.If(push):
            m.d.sync += [ids[level - pop].eq(axi.awid), lengths[level - pop].eq(axi.awlen)]
        with m.If(taken):
            m.d.sync += early.eq(0)
        with m.Elif(offered & done):
            m.d.sync += early.eq(1)
        m.d.sync += level.eq(level + push - pop)
        m.d.sync += self.beat.eq(Mux(self.sent, Mux(axi.wlast, 0, self.beat + 1), self.beat))

        finished = pop | (taken & (early | (offered & done)))
        finished_port = Mux(pop, ids[0], axi.awid)
        self.due, self.answered = Signal(c.ports), Signal(c.ports)
        self.under_way = Signal(range(2 * slots))
        m.d.sync += self.under_way.eq(self.under_way + taken - (axi.bvalid & axi.bready))
        m.d.comb += [
            Assume(self.port < c.ports),
            axi.bid.eq(self.port),
            axi.bvalid.eq(self.answer & self.due.bit_select(self.port, 1)),
        ]
        for k in range(c.ports):
            unanswered = Signal(range(slots + 1), name=f"unanswered_{k}")
            ends = finished & (finished_port == k)
            m.d.comb += [self.due[k].eq(unanswered != 0), self.answered[k].eq(axi.bvalid & (axi.bid == k))]
            m.d.sync += unanswered.eq(unanswered + ends - self.answered[k])

        # Places of the watched port's bursts that are to be answered.
        places = Array(Signal(PLACE_BITS, name=f"place_of_{n}") for n in range(slots))
        count = Signal(range(slots + 1))
        mine, over = taken & (axi.awid == self.watched), self.answered[self.watched]
        with m.If(over):
            m.d.sync += [places[n].eq(places[n + 1]) for n in range(slots - 1)]
        with m.If(mine):
            m.d.sync += places[count - over].eq(place_of(axi.awaddr, c))
        m.d.sync += count.eq(count + mine - over)
        m.d.comb += axi.bresp[1].eq(block(places[0])[3])

    def _answers(self, m: Module) -> None:
        """What the watched port's requests will be answered, in order."""
        errors = Array(Signal(name=f"error_{n}") for n in range(_REQUESTS))
        self.owed = Signal(range(_REQUESTS + 1))
        self.error = errors[0]
        with m.If(self.comes):
            m.d.sync += [errors[n].eq(errors[n + 1]) for n in range(_REQUESTS - 1)]
        with m.If(self.asks):
            m.d.sync += errors[self.owed - self.comes].eq(is_bad(self.asked) | block(self.asked)[3])
        m.d.sync += self.owed.eq(self.owed + self.asks - self.comes)

    def _next_good(self, m: Module, moves: Value, words: ValueLike) -> Value:
        """The watched port's next place that is not of a bad request; by so many words it moves."""
        begun, place = Signal(), Signal(PLACE_BITS)
        now = Mux(begun, place, self.first)
        good = Mux(is_bad(now), now - block(now)[:2] + 4, now)[:PLACE_BITS]
        m.d.sync += [begun.eq(1), place.eq(Mux(moves, good + words, now))]
        return good


class WriterAnswers(_Writer):
    """Nobody has to be fair: each request of the watched port has one answer, the right one, in order."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        writer = self._design(m)
        o = writer.o[self.watched]
        assert_holds(m, o.valid, o.ready, o.payload)
        m.d.comb += [
            Assert(writer.axi.bready),
            Assert(~o.valid | ((self.owed != 0) & (o.payload == self.error))),
            Assert(self.owed != _REQUESTS),
        ]
        return m


class WriterAddresses(_Writer):
    """Nobody has to be fair.

    Addresses hold and are legal, no more bursts than promised are under way. Those of the watched port follow each
    other without a gap, but for its bad requests.
    """

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        axi = self._design(m).axi
        assert_holds(m, axi.awvalid, axi.awready, Cat(axi.awaddr, axi.awlen, axi.awid))
        assert_legal(m, axi.awvalid, axi.awaddr, axi.awlen, max_burst=c.max_burst, word_bytes=c.word_bytes)
        m.d.comb += [
            Assert((axi.awid < c.ports) | ~axi.awvalid),
            Assert(axi.awsize == c.word_bytes.bit_length() - 1),
            Assert(axi.awburst == 1),
            Assert(self.under_way <= c.outstanding),
        ]
        moves = axi.awvalid & axi.awready & (axi.awid == self.watched)
        place = self._next_good(m, moves, axi.awlen + 1)
        m.d.comb += Assert(~moves | (place_of(axi.awaddr, c) == place))
        return m


class WriterWords(_Writer):
    """Nobody has to be fair.

    Words hold, WLAST is at the last beat alone. The watched port's words are written in order, each once, those of bad
    requests not at all.
    """

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi = self._design(m).axi
        assert_holds(m, axi.wvalid, axi.wready, Cat(axi.wdata, axi.wstrb, axi.wlast))
        m.d.comb += Assert(~self.sent | (axi.wlast == (self.beat == self.length)))
        moves = self.sent & (self.owner == self.watched)
        place = self._next_good(m, moves, 1)
        m.d.comb += Assert(~moves | ((axi.wdata == (place == self.marked)) & (axi.wstrb == axi.wdata[0])))
        return m


class WriterMovesOn(_Writer):
    """Memory and the watched port are fair; a request that waits for its answer gets one within so many cycles.

    Fair: addresses and words are taken in their second cycle at the latest, each port is answered in so many cycles as
    there are ports; the watched port gives a word in the second cycle at the latest and takes its answer likewise. The
    others may give nothing and take nothing for ever.
    """

    def __init__(self, config: AxiConfig, watched: int, *, within: int) -> None:
        super().__init__(config, watched)
        self.within = within

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        writer = self._design(m)
        axi, o = writer.axi, writer.o[self.watched]
        assume_soon(m, axi.awvalid, axi.awready, 1)
        assume_soon(m, axi.wvalid, axi.wready, 1)
        assume_soon(m, self.stored != self.asked, writer.i[self.watched].valid, 1)
        assume_soon(m, o.valid, o.ready, 1)
        for k in range(self.config.ports):
            assume_soon(m, self.due[k], self.answered[k], self.config.ports - 1)
        waits = Signal(range(self.within + 2))
        m.d.sync += waits.eq(Mux(self.comes | (self.owed == 0), 0, waits + 1))
        m.d.comb += Assert(waits <= self.within)
        return m
