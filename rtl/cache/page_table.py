"""Which page holds which group of which sequence (golden `PageTable`)."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.cache.page_table import PageOp, PageStatus
from rtl.cache._page_rules import PageRules, sequence_layout
from rtl.cache._page_store import PageStore
from rtl.common.memory import NO_COLLISIONS, ram_style

__all__ = ["PageConfig", "PageTable"]

_SEQUENCE_BITS = 8
_STREAM_BITS = 16
_GROUP_BITS = 20
_PAGE_BITS = 20


@dataclass(frozen=True, kw_only=True)
class PageConfig:
    """Sizes of the page table.

    Parameters
    ----------
    max_sequences: sequences that may be open at once, from 1 to 256.
    streams: (layer, kv_head) pairs, from 1 to 65536.
    max_groups: the most groups of a sequence, from 1 to 2**20.
    record_pages, block_pages: pages of the two pools, from 1 to 2**20 each.
    """

    max_sequences: int = 4
    streams: int = 90
    max_groups: int = 512
    record_pages: int = 1024
    block_pages: int = 64

    def __post_init__(self) -> None:
        limits = {
            "max_sequences": _SEQUENCE_BITS,
            "streams": _STREAM_BITS,
            "max_groups": _GROUP_BITS,
            "record_pages": _PAGE_BITS,
            "block_pages": _PAGE_BITS,
        }
        for name, bits in limits.items():
            value = getattr(self, name)
            if not 1 <= value <= 1 << bits:
                raise ValueError(f"{name} must be from 1 to {1 << bits}, not {value!r}")


class PageTable(wiring.Component):
    """Keeps pages of sequences that grow by groups, are compressed group by group, fork and end.

    Every command has one reply, in order. `golden.cache.page_table` tells what each `PageOp` does, how it may end, and
    which page is handed out. Nothing has changed unless the status is OK.

    Latency: `latency` cycles from a command to its reply: 3, but for RECORD, RELEASE, FORK and END that are OK.
    Lookups: 2. Throughput: one command at a time, the next one is taken in the cycle after the reply was; a lookup a
    cycle. A lookup sees the commands whose replies are there when it is taken, and not those that are taken then or
    later; of a command between the two it sees all or nothing.
    Stalls: a reply waits for ``o_reply``, which lookups do not; while ``o_page`` waits lookups stop.
    Combinational paths: ``o_page.ready`` to ``i_lookup.ready``. ``i_command.ready`` depends on registers alone.

    A reset closes all sequences and frees all pages at once; the memories may keep what they had.

    Parameters
    ----------
    config: see there.

    Members
    -------
    i_command : stream: ``op`` (10 or more: RANGE), ``sequence``, ``source`` of FORK, ``stream`` of COMMIT and COUNT.
    o_reply : stream: ``status``, ``group``, ``blocks_end``, ``page``, ``other``, as `golden.cache.page_table.Reply`.
    i_lookup : stream: ``sequence``, ``dense`` (its block, else its record), ``group``.
    o_page : stream: ``page`` if it is ``valid``, else 0: the sequence is open and the group has a page of that kind. Of
        a record it is there from RECORD on; COUNT tells when it may be read. ``held``: a job reads the sequence.
    record_pages_free, block_pages_free : pages that are not handed out; right one cycle after a reply was taken.
    """

    def __init__(self, config: PageConfig) -> None:
        self.config = config
        self.page_bits = bits_for(max(config.record_pages, config.block_pages) - 1)
        self.command_shape = data.StructLayout(
            {"op": PageOp, "sequence": _SEQUENCE_BITS, "source": _SEQUENCE_BITS, "stream": _STREAM_BITS}
        )
        self.reply_shape = data.StructLayout(
            {
                "status": PageStatus,
                "group": _GROUP_BITS + 1,
                "blocks_end": _GROUP_BITS + 1,
                "page": self.page_bits,
                "other": self.page_bits,
            }
        )
        self.lookup_shape = data.StructLayout({"sequence": _SEQUENCE_BITS, "dense": 1, "group": _GROUP_BITS})
        self.page_shape = data.StructLayout({"page": self.page_bits, "valid": 1, "held": 1})
        super().__init__(
            {
                "i_command": In(stream.Signature(self.command_shape)),
                "o_reply": Out(stream.Signature(self.reply_shape)),
                "i_lookup": In(stream.Signature(self.lookup_shape)),
                "o_page": Out(stream.Signature(self.page_shape)),
                "record_pages_free": Out(range(config.record_pages + 1)),
                "block_pages_free": Out(range(config.block_pages + 1)),
            }
        )

    @staticmethod
    def latency(config: PageConfig, op: PageOp, *, records: int = 0, blocks: int = 0) -> int:
        """Cycles from a command to its reply if it is OK, else 3; ``records`` and ``blocks`` of what forks or ends."""
        match op:
            case PageOp.RECORD:
                return 3 + config.streams
            case PageOp.RELEASE:
                return 6
            case PageOp.FORK | PageOp.END:
                return 5 + records + blocks
        return 3

    def _lookups(self, m: Module, states: Memory, store: PageStore, opened: Signal) -> None:
        """State and page are read in the same cycle, so that they belong together."""
        state = states.read_port()
        lookup, page = self.i_lookup, self.o_page
        advance = ~page.valid | page.ready
        m.d.comb += [
            lookup.ready.eq(advance),
            state.en.eq(advance),
            state.addr.eq(lookup.payload.sequence),
            store.r_en.eq(advance),
            store.r_sequence.eq(lookup.payload.sequence),
            store.r_dense.eq(lookup.payload.dense),
            store.r_group.eq(lookup.payload.group),
        ]
        reading, is_open, asked = Signal(), Signal(), Signal(self.lookup_shape)
        found = state.data
        has_block = (asked.group >= found.blocks_begin) & (asked.group < found.blocks_end)
        has_record = asked.group < found.blocks_begin + found.compressing
        has_page = is_open & Mux(asked.dense, has_block, has_record)
        with m.If(advance):
            m.d.sync += [
                reading.eq(lookup.valid),
                is_open.eq(opened.bit_select(lookup.payload.sequence, 1)),
                asked.eq(lookup.payload),
                page.valid.eq(reading),
                page.payload.page.eq(Mux(has_page, store.r_data, 0)),
                page.payload.valid.eq(has_page),
                page.payload.held.eq(is_open & (found.users != 0)),
            ]

    def _rules(self, m: Module, command: data.View, opened: Signal, store: PageStore) -> PageRules:
        """What becomes of the command in the registers."""
        config = self.config
        m.submodules.rules = rules = PageRules(max_groups=config.max_groups, streams=config.streams)
        of_stream = (command.op == PageOp.COMMIT) | (command.op == PageOp.COUNT)
        m.d.comb += [
            rules.op.eq(command.op),
            rules.exists.eq(
                (command.op <= max(PageOp))
                & (command.sequence < config.max_sequences)
                & ((command.op != PageOp.FORK) | (command.source < config.max_sequences))
                & (~of_stream | (command.stream < config.streams))
            ),
            rules.opened.eq(opened.bit_select(command.sequence, 1)),
            rules.source_opened.eq(opened.bit_select(command.source, 1)),
            rules.no_record.eq(store.records_free == 0),
            rules.no_block.eq(store.blocks_free == 0),
        ]
        return rules

    def _commits(self, m: Module, command: data.View, set_bit: Signal, clear: Signal, stream: Value) -> Value:
        """A bit for each stream of each sequence: whether it has committed the newest record."""
        config = self.config
        stream_bits = bits_for(config.streams - 1)
        depth = 1 << bits_for(config.max_sequences - 1) + stream_bits
        m.submodules.commits = commits = Memory(
            shape=unsigned(1), depth=depth, init=[], attrs=NO_COLLISIONS | ram_style(depth)
        )
        read, write = commits.read_port(), commits.write_port()
        given = self.i_command
        m.d.comb += [
            read.en.eq(given.ready),
            read.addr.eq(Cat(given.payload.stream[:stream_bits], given.payload.sequence)),
            write.en.eq(set_bit | clear),
            write.addr.eq(Cat(Mux(clear, stream, command.stream)[:stream_bits], command.sequence)),
            write.data.eq(set_bit),
        ]
        return read.data

    def elaborate(self, platform):
        m = Module()
        config = self.config
        layout = sequence_layout(config.max_groups, config.streams)
        m.submodules.states = states = Memory(shape=layout, depth=1 << bits_for(config.max_sequences - 1), init=[])
        m.submodules.store = store = PageStore(
            max_sequences=config.max_sequences,
            max_groups=config.max_groups,
            record_pages=config.record_pages,
            block_pages=config.block_pages,
        )
        state, set_state = states.read_port(), states.write_port()
        opened = Signal(config.max_sequences)
        command = Signal(self.command_shape)
        given, reply, op = self.i_command, self.o_reply, command.op
        rules = self._rules(m, command, opened, store)
        status, after = Signal(PageStatus), Signal(layout)
        left = Signal(range(config.streams + 1))  # streams whose bit is cleared for a new record
        commit, clear = Signal(), Signal()
        committed = self._commits(m, command, commit, clear, left - 1)
        self._lookups(m, states, store, opened)

        before = state.data  # of the source of a FORK, else of the sequence; stays until the next command
        forking, compressed = op == PageOp.FORK, before.blocks_begin + before.compressing
        readable = before.blocks_begin + (before.compressing & committed)
        is_open = opened.bit_select(command.sequence, 1)
        takes_record, releases = op == PageOp.RECORD, op == PageOp.RELEASE
        takes_page = takes_record | (op == PageOp.BLOCK) | (forking & (before.blocks_end != before.blocks_begin))
        group = Mux(takes_record | releases, before.blocks_begin, before.blocks_end - forking)
        m.d.comb += [
            self.record_pages_free.eq(store.records_free),
            self.block_pages_free.eq(store.blocks_free),
            state.en.eq(given.ready),
            state.addr.eq(Mux(given.payload.op == PageOp.FORK, given.payload.source, given.payload.sequence)),
            set_state.addr.eq(command.sequence),
            set_state.data.eq(after),
            rules.before.eq(before),
            rules.committed.eq(committed),
            store.sequence.eq(command.sequence),
            store.source.eq(Mux(forking, command.source, command.sequence)),
            store.dense.eq(~takes_record),
            store.group.eq(group),
            store.share.eq(forking),
            store.blocks_begin.eq(before.blocks_begin),
            store.walk_blocks.eq(Mux(releases, compressed, before.blocks_end)),
            store.walk_records.eq(Mux(releases, 0, compressed)),
        ]
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += given.ready.eq(1)
                m.d.sync += [command.eq(given.payload), left.eq(config.streams)]
                with m.If(given.valid):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += [status.eq(rules.status), after.eq(rules.after)]
                m.next = "ACT"
            with m.State("ACT"):
                m.d.sync += [reply.payload.eq(0), reply.payload.status.eq(status)]
                m.next = "REPLY"
                with m.If(status == PageStatus.OK):
                    m.d.comb += [set_state.en.eq(1), store.assign.eq(takes_page), commit.eq(op == PageOp.COMMIT)]
                    with m.If(takes_page | releases):
                        m.d.sync += reply.payload.group.eq(group)
                    with m.If(takes_page):
                        m.d.sync += reply.payload.page.eq(store.page)
                    with m.Switch(op):
                        with m.Case(PageOp.OPEN):
                            m.d.sync += is_open.eq(1)
                        with m.Case(PageOp.RECORD):
                            m.next = "CLEAR"
                        with m.Case(PageOp.RELEASE, PageOp.FORK, PageOp.END):
                            m.d.comb += store.start.eq(1)
                            with m.If(op == PageOp.END):
                                m.d.sync += is_open.eq(0)
                            m.next = "WALK"
                        with m.Case(PageOp.COUNT):
                            m.d.sync += reply.payload.group.eq(readable)
                            m.d.sync += reply.payload.blocks_end.eq(before.blocks_end)
            with m.State("CLEAR"):
                m.d.comb += clear.eq(1)
                m.d.sync += left.eq(left - 1)
                with m.If(left == 1):
                    m.next = "REPLY"
            with m.State("WALK"):
                with m.If(store.done):
                    with m.If(takes_page | releases):
                        m.d.sync += reply.payload.other.eq(store.first)
                    with m.If(forking):
                        m.d.sync += is_open.eq(1)
                    m.next = "REPLY"
            with m.State("REPLY"):
                m.d.comb += reply.valid.eq(1)
                with m.If(reply.ready):
                    m.next = "COMMAND"
        return m
