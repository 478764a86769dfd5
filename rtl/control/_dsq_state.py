"""Part of the DSQ engine: attention history and votes of a head move on (golden `update_history`)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from golden.control.commands import LINE_BYTES
from golden.hcap.history import HISTORY_BITS
from rtl.cache._read_port import word_shape as read_word_shape
from rtl.cache._write_port import word_shape
from rtl.cache.cache import KvCache
from rtl.common.fixed import saturate_unsigned
from rtl.common.stage import Stage
from rtl.config import AcceleratorConfig

__all__ = ["GROUP_COUNT_BITS", "LINE_BITS", "StateUpdate", "part_lines"]

LINE_BITS = 32
GROUP_COUNT_BITS = 20
#: words that are read or written at once
_PIECE = 32
_UNDER_WAY = 15


def part_lines(config: AcceleratorConfig) -> tuple[int, int]:
    """Lines that history takes, as recent mass does, and votes."""
    per_line = 8 * LINE_BYTES // HISTORY_BITS
    return -(-config.mha.max_groups // per_line), -(-2 * config.dsq.group_tokens // per_line)


class _Pieces(wiring.Component):
    """Requests for votes, if wanted, then for a piece of history, the same of recent mass, and so on.

    Members
    -------
    start, state, words, votes : strobe; first line, words of history, whether votes are wanted
    o : stream of requests
    busy : there are more
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        memory = KvCache.axi_configs(config)[0]
        super().__init__(
            {
                "start": In(1),
                "state": In(LINE_BITS),
                "words": In(GROUP_COUNT_BITS),
                "votes": In(1),
                "o": Out(stream.Signature(memory.request_shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, out = self.config, self.o
        shift = ceil_log2(8 * LINE_BYTES // config.dsq.bus_bits)
        history_lines, vote_lines = part_lines(config)
        votes, is_recent = Signal(), Signal()
        offset, left = Signal(GROUP_COUNT_BITS), Signal(GROUP_COUNT_BITS)
        line = self.state + Mux(votes, 2 * history_lines, Mux(is_recent, history_lines, 0))
        some = Mux(left < _PIECE, left, _PIECE)
        m.d.comb += [
            self.busy.eq(votes | (left != 0)),
            out.valid.eq(self.busy),
            out.payload.address.eq((line << shift) + Mux(votes, 0, offset)),
            out.payload.count.eq(Mux(votes, vote_lines << shift, some)),
        ]
        with m.If(self.start):
            m.d.sync += [votes.eq(self.votes), offset.eq(0), left.eq(self.words)]
        with m.Elif(out.valid & out.ready):
            m.d.sync += votes.eq(0)
            with m.If(~votes):
                m.d.sync += is_recent.eq(~is_recent)
                with m.If(is_recent):
                    m.d.sync += [offset.eq(offset + _PIECE), left.eq(left - some)]
        return m


class StateUpdate(wiring.Component):
    """Reads and writes the state of a head.

    With ``votes`` those of the first group leave at ``o_vote``, those of the second take their place, zeros theirs. Of
    ``groups`` entries history becomes half of itself plus recent mass, which becomes 0; others stay. From the first
    word in error on nothing is written.

    Throughput: votes 3 words in 4 cycles, history a word of both in 3 cycles, if nothing stalls; one ``o_vote`` a
    cycle.

    Members
    -------
    start : strobe; ``state``, ``groups`` and ``votes`` hold from it until ``written``
    o_vote : stream of votes of the first group's tokens
    o_read, i_read, o_write, o_word, i_written : memory; words may be taken by others while ``reading`` is low
    reading : words are read
    written : all is written, and nothing more is to be
    failed : memory refused a word; until reset
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = config
        memory = KvCache.axi_configs(config)[0]
        self.lanes = config.dsq.bus_bits // HISTORY_BITS
        super().__init__(
            {
                "start": In(1),
                "state": In(LINE_BITS),
                "groups": In(GROUP_COUNT_BITS),
                "votes": In(1),
                "o_vote": Out(stream.Signature(config.dsq.bus_bits)),
                "o_read": Out(stream.Signature(memory.request_shape)),
                "i_read": In(stream.Signature(read_word_shape(memory))),
                "o_write": Out(stream.Signature(memory.request_shape)),
                "o_word": Out(stream.Signature(word_shape(memory))),
                "i_written": In(stream.Signature(1)),
                "reading": Out(1),
                "written": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.reads = reads = _Pieces(self.config)
        m.submodules.writes = writes = _Pieces(self.config)
        m.submodules.stage = stage = Stage(self.o_word.payload.shape())
        words = (self.groups + self.lanes - 1) >> ceil_log2(self.lanes)
        for pieces in (reads, writes):
            m.d.comb += [
                pieces.start.eq(self.start),
                pieces.state.eq(self.state),
                pieces.words.eq(words),
                pieces.votes.eq(self.votes),
            ]
        connect(m, reads.o, flipped(self.o_read))
        connect(m, stage.o, flipped(self.o_word))
        under_way = Signal(range(_UNDER_WAY + 1))
        m.d.comb += [
            self.o_write.valid.eq(writes.o.valid & (under_way != _UNDER_WAY)),
            self.o_write.payload.eq(writes.o.payload),
            writes.o.ready.eq(self.o_write.ready & (under_way != _UNDER_WAY)),
            self.i_written.ready.eq(1),
            self.written.eq(~self.reading & ~writes.busy & (under_way == 0)),
        ]
        m.d.sync += under_way.eq(under_way + (self.o_write.valid & self.o_write.ready) - self.i_written.valid)
        with m.If(self.i_written.valid & self.i_written.payload):
            m.d.sync += self.failed.eq(1)
        with m.If(self.i_read.valid & self.i_read.ready & self.i_read.payload.error):
            m.d.sync += self.failed.eq(1)
        self._move(m, stage, words)
        return m

    def _move(self, m: Module, stage: Stage, words: Value) -> None:
        """Words from the reads to where they belong."""
        config, i, o = self.config, self.i_read, stage.i
        _, vote_lines = part_lines(config)
        half = vote_lines * 8 * LINE_BYTES // config.dsq.bus_bits // 2
        m.submodules.history = history = Memory(shape=config.dsq.bus_bits, depth=_PIECE, init=[])
        write, read = history.write_port(), history.read_port(domain="comb")
        at, left = Signal(range(max(half, _PIECE))), Signal(GROUP_COUNT_BITS)
        some = Mux(left < _PIECE, left, _PIECE)
        step, last = Signal(), at == some - 1
        strobes = self._strobes(left - at == 1)
        sums = []
        for n in range(self.lanes):
            old, recent = (word.word_select(n, HISTORY_BITS) for word in (read.data, i.payload.data))
            sums.append(saturate_unsigned((old >> 1) + recent, HISTORY_BITS))
        every = (1 << len(o.payload.strb)) - 1
        fine = ~(self.failed | (i.valid & i.payload.error))
        m.d.comb += [write.addr.eq(at), write.data.eq(i.payload.data), read.addr.eq(at)]
        m.d.comb += self.o_vote.payload.eq(i.payload.data)
        with m.If(step):
            m.d.sync += at.eq(at + 1)
        with m.FSM() as fsm:
            m.d.comb += self.reading.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [at.eq(0), left.eq(words)]
                with m.If(self.start):
                    m.next = "HISTORY"
                    with m.If(self.votes):
                        m.next = "VOTES"
            with m.State("VOTES"):
                m.d.comb += [self.o_vote.valid.eq(i.valid), i.ready.eq(self.o_vote.ready), step.eq(i.valid & i.ready)]
                self._ends(m, step, at, at == half - 1, "NEXT_VOTES")
            with m.State("NEXT_VOTES"):
                m.d.comb += [o.valid.eq(i.valid), i.ready.eq(o.ready), step.eq(i.valid & i.ready)]
                m.d.comb += [o.payload.data.eq(i.payload.data), o.payload.strb.eq(Mux(fine, every, 0))]
                self._ends(m, step, at, at == half - 1, "NO_VOTES")
            with m.State("NO_VOTES"):
                m.d.comb += [o.valid.eq(1), step.eq(o.ready)]
                m.d.comb += o.payload.strb.eq(Mux(fine, every, 0))
                self._ends(m, step, at, at == half - 1, "HISTORY")
                with m.If(step & (at == half - 1) & (left == 0)):
                    m.next = "IDLE"
            with m.State("HISTORY"):
                m.d.comb += [i.ready.eq(1), step.eq(i.valid & i.ready), write.en.eq(i.valid)]
                self._ends(m, step, at, last, "RECENT")
            with m.State("RECENT"):
                m.d.comb += [o.valid.eq(i.valid), i.ready.eq(o.ready), step.eq(i.valid & i.ready)]
                m.d.comb += [o.payload.data.eq(Cat(sums)), o.payload.strb.eq(Mux(fine, strobes, 0))]
                self._ends(m, step, at, last, "CLEAR")
            with m.State("CLEAR"):
                m.d.comb += [o.valid.eq(1), step.eq(o.ready), o.payload.strb.eq(Mux(fine, strobes, 0))]
                self._ends(m, step, at, last, "HISTORY")
                with m.If(step & last):
                    m.d.sync += left.eq(left - some)
                    with m.If(left == some):
                        m.next = "IDLE"

    def _ends(self, m: Module, step: Value, at: Signal, last: Value, state: str) -> None:
        """After its last word go on to ``state``."""
        with m.If(step & last):
            m.d.sync += at.eq(0)
            m.next = state

    def _strobes(self, last: Value) -> Value:
        """The bytes of the entries that are to be changed, in the ``last`` word or another one."""
        tail = self.groups[: ceil_log2(self.lanes)]
        beyond = [tail > n if n < self.lanes - 1 else 0 for n in range(self.lanes)]  # the last one only if all are
        lanes = [~last | (tail == 0) | more for more in beyond]
        return Cat(lane[0].replicate(HISTORY_BITS // 8) for lane in lanes)
