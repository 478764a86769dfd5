"""Two-phase attention on compressed KV: hardware of golden ``attend`` for one query token after the other."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from rtl.common.memory import BlockFifo
from rtl.common.stage import ForwardStage, Stage
from rtl.config import AcceleratorConfig
from rtl.dsq._compressor_steps import calibration_layout
from rtl.hcap.estimator import Estimator
from rtl.mha._commit import ScoreCommit, decision_layout
from rtl.mha._decide import ValueDecider
from rtl.mha._mass_entries import MassEntries
from rtl.mha._query_store import SLOT_BITS, SLOTS
from rtl.mha._rebuild import RebuildEngine
from rtl.mha._requests import RING_ITEMS, Fault, piece_layout, request_layout
from rtl.mha._scan import ScanEngine, fault_layout, job_layout, scan_layout
from rtl.mha._token_queue import TokenQueue, weight_tag
from rtl.mha._word_feed import WordFeed, row_tag
from rtl.mha.mass import MassNormalizer
from rtl.mha.query import QueryPreparer
from rtl.mha.scores import ScoreArray
from rtl.mha.softmax import StreamingSoftmax
from rtl.mha.value_sum import ValueSum

__all__ = ["Fault", "MhaCore"]

#: requests whose words have not all come
PIECES_DEPTH = 128
#: words of V that wait for their weight: more than the cycles between a fine plane and its weight
VALUE_DEPTH = 64


class MhaCore(wiring.Component):
    """Attention of the query heads that share a KV head, for one token a query, reading only what is needed.

    A query gives its settings (``i_job``), its rows (``i_query``) and the groups to scan (``i_scan``): INT8 blocks
    first, then records. The core asks for pieces of them and takes their words in the order in which it asked. While
    one query is rebuilt, the scan of the next one goes on; requests of the former come first.

    Throughput: a word a cycle, as long as requests may be made that far ahead.
    Stalls: any stream may stall at any time. Words are taken whenever the value sum keeps up: room for what they bring
    is reserved before they are asked for, so a memory that answers in order cannot be blocked by the core alone.
    Combinational paths: none between the streams.

    Faults: a record whose header contradicts itself or the scan counts as not scanned. The first fault of a query
    stands in ``o_status`` with the number of its group; memory errors are only reported. A query without any token
    gives zeros and ``EMPTY``.

    Parameters
    ----------
    config : AcceleratorConfig

    Members
    -------
    i_job : stream of struct{shift, keep, run_margin, estimate_margin, value_margin, prune, load_calibration}
        One a query. Margins have 8 fraction bits, ``keep`` is in 256ths.
    i_calibration : stream of struct{k_shape, v_shape, v_mean}
        ``head_dim`` transfers for each query with ``load_calibration``, channel 0 first. A query without has that of
        the query before.
    i_query : stream of INT16 ``data`` of ``lanes`` channels: ``q_heads`` rows a query
    i_scan : stream of struct{dense, group, count, last}: what a query scans
        ``count`` is the number of tokens of an INT8 block (``dense``), else of salient tokens. Tokens of the blocks
        before the first record, two at most, have a mass each; other groups one together.
    o_request : stream of struct{slot, dense, group, word, count}
        The n-th query since reset, from 0 on, is in slot n modulo ``SLOTS``.
    i : stream of struct{data, error}: the words that were asked for
    o : stream of struct{head, data, last}: output rows, ``lanes`` channels a transfer
    o_mass : stream of struct{group, index, mass, last}: attention mass in units of 2**-16, summed over the heads
    o_status : stream of struct{fault, group}: one a query, when its output is complete
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        self._value_sum = ValueSum(c)
        self._mass = MassNormalizer(c)
        rows = data.ArrayLayout(signed(16), c.dsq.lanes)
        word = data.StructLayout({"data": c.dsq.bus_bits, "error": 1})
        super().__init__(
            {
                "i_job": In(stream.Signature(job_layout())),
                "i_calibration": In(stream.Signature(calibration_layout)),
                "i_query": In(stream.Signature(rows)),
                "i_scan": In(stream.Signature(scan_layout())),
                "o_request": Out(stream.Signature(request_layout(c))),
                "i": In(stream.Signature(word)),
                "o": Out(stream.Signature(self._value_sum.o.payload.shape())),
                "o_mass": Out(stream.Signature(self._mass.o.payload.shape())),
                "o_status": Out(stream.Signature(fault_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c = self.config
        m.submodules.scan = scan = ScanEngine(c)
        m.submodules.rebuild = rebuild = RebuildEngine(c)
        m.submodules.decide = decide = ValueDecider(c)
        m.submodules.estimator = estimator = Estimator(c)
        m.submodules.scores = scores = ScoreArray(c, row_tag(c))
        m.submodules.commit = commit = ScoreCommit(c)
        m.submodules.queue = queue = TokenQueue(c)
        m.submodules.softmax = softmax = StreamingSoftmax(c, weight_tag(c))
        m.submodules.value_sum = value_sum = self._value_sum
        m.submodules.entries = entries = MassEntries(c, softmax.o_shape)
        m.submodules.mass = mass = self._mass
        feed = self._memory(m, scan, rebuild, decide, scores, value_sum)
        weighed = self._weights(m, softmax, value_sum, entries)
        self._queries(m, scan, scores, value_sum, weighed, softmax.o.payload.tag.slot)
        self._scanned(m, scan, rebuild, estimator, commit)
        self._kept(m, rebuild, decide, estimator, commit)
        connect(m, flipped(self.i_job), scan.i_job)
        connect(m, flipped(self.i_scan), scan.i_scan)
        connect(m, scan.o_tile, rebuild.i)
        connect(m, scores.o, commit.i)
        connect(m, commit.o_fine, queue.i_fine)
        m.submodules.queued = queued = Stage(queue.o.payload.shape())
        connect(m, queue.o, queued.i)
        connect(m, queued.o, softmax.i)
        connect(m, entries.o, mass.i_entry)
        connect(m, value_sum.o_row, mass.i_row)
        connect(m, mass.o, flipped(self.o_mass))
        m.d.comb += [
            *(scores.shift[slot].eq(scan.jobs[slot].shift) for slot in range(SLOTS)),
            queue.v_ready.eq(feed.v_ready),
            queue.v_scale.eq(feed.v_scale),
            feed.v_index.eq(queue.v_index),
            feed.v_done.eq(queue.v_done),
            rebuild.token_done.eq(queue.token_done),
            rebuild.block_done.eq(queue.v_done),
        ]
        # Tokens of INT8 blocks and ends come when no group is under way, so both never come at once.
        m.d.comb += [
            queue.i.valid.eq(decide.o_token.valid | rebuild.o_token.valid),
            queue.i.payload.eq(Mux(decide.o_token.valid, decide.o_token.payload, rebuild.o_token.payload)),
            decide.o_token.ready.eq(queue.i.ready),
            rebuild.o_token.ready.eq(queue.i.ready & ~decide.o_token.valid),
        ]
        self._finish(m, scan, feed, value_sum, commit)
        return m

    def _memory(
        self,
        m: Module,
        scan: ScanEngine,
        rebuild: RebuildEngine,
        decide: ValueDecider,
        scores: ScoreArray,
        value_sum: ValueSum,
    ) -> WordFeed:
        """Requests, V first, scans last; words to where they belong."""
        c = self.config
        m.submodules.feed = feed = WordFeed(c)
        piece = piece_layout(c)
        m.submodules.pieces = pieces = BlockFifo(width=piece.size, depth=PIECES_DEPTH)
        m.submodules.piece = front = ForwardStage(piece)  # behind block RAM
        m.submodules.words = words = SyncFIFOBuffered(width=self.i.payload.shape().size, depth=4)
        m.submodules.values = values = BlockFifo(width=c.dsq.bus_bits, depth=VALUE_DEPTH)
        m.submodules.requests = requests = Stage(self.o_request.payload.shape())
        connect(m, requests.o, flipped(self.o_request))
        free = Signal()
        m.d.comb += free.eq(requests.i.ready & pieces.w_rdy)
        taken = 0
        for name, block in (("decide", decide), ("rebuild", rebuild), ("scan", scan)):
            m.submodules[f"{name}_ask"] = ask = ForwardStage(block.o_ask.payload.shape())
            connect(m, block.o_ask, ask.i)
            source = ask.o
            m.d.comb += source.ready.eq(free & ~taken)
            with m.If(source.valid & source.ready):
                m.d.comb += [pieces.w_en.eq(1), pieces.w_data.eq(source.payload.piece)]
                m.d.comb += requests.i.valid.eq(1)
                m.d.comb += requests.i.payload.eq(Cat(source.payload.piece.slot, source.payload.request))
            taken = taken | source.valid
        m.d.comb += [
            words.w_en.eq(self.i.valid),
            words.w_data.eq(self.i.payload),
            self.i.ready.eq(words.w_rdy),
            feed.i.valid.eq(words.r_rdy),
            feed.i.payload.eq(words.r_data),
            words.r_en.eq(feed.i.ready),
            front.i.valid.eq(pieces.r_rdy),
            front.i.payload.eq(pieces.r_data),
            pieces.r_en.eq(front.i.ready),
            values.w_en.eq(feed.o_value.valid),
            values.w_data.eq(feed.o_value.payload),
            feed.o_value.ready.eq(values.w_rdy),
            value_sum.i_word.valid.eq(values.r_rdy),
            value_sum.i_word.payload.eq(values.r_data),
            values.r_en.eq(value_sum.i_word.ready),
        ]
        connect(m, front.o, feed.i_piece)
        connect(m, feed.o_row, scores.i)
        return feed

    def _queries(
        self,
        m: Module,
        scan: ScanEngine,
        scores: ScoreArray,
        value_sum: ValueSum,
        weighed: Stage,
        end_slot: Value,
    ) -> None:
        """Query rows and calibration of the query that is loaded; the calibration of the query that ends."""
        c = self.config
        m.submodules.preparer = preparer = QueryPreparer(c)
        connect(m, preparer.o, scores.i_query)
        job = scan.jobs[scan.load_slot]
        channel, calibration = Signal(range(c.dsq.head_dim)), Signal(SLOT_BITS)
        beats = c.mha.q_heads * c.dsq.row_beats
        beat, all_in, calibrated, given = Signal(range(beats)), Signal(), Signal(), Signal()
        takes_rows = scan.load & ~all_in
        takes_calibration = scan.load & job.load_calibration & ~calibrated
        m.d.comb += [
            preparer.i.valid.eq(takes_rows & self.i_query.valid),
            self.i_query.ready.eq(takes_rows & preparer.i.ready),
            preparer.i.payload.load_shape.eq(job.load_calibration),
            preparer.i.payload.slot.eq(scan.load_slot),
            preparer.i.payload.data.eq(self.i_query.payload),
            preparer.i_shape.valid.eq(takes_calibration & self.i_calibration.valid),
            preparer.i_shape.payload.eq(self.i_calibration.payload.k_shape),
            self.i_calibration.ready.eq(takes_calibration & preparer.i_shape.ready),
            value_sum.c_en.eq(preparer.i_shape.valid & preparer.i_shape.ready),
            value_sum.c_slot.eq(calibration + 1),
            value_sum.c_channel.eq(channel),
            value_sum.c_data.v_shape.eq(self.i_calibration.payload.v_shape),
            value_sum.c_data.v_mean.eq(self.i_calibration.payload.v_mean),
        ]
        with m.If(preparer.i.valid & preparer.i.ready):
            m.d.sync += [beat.eq(beat + 1), all_in.eq(beat == beats - 1)]
        with m.If(value_sum.c_en):
            m.d.sync += channel.eq(Mux(channel == c.dsq.head_dim - 1, 0, channel + 1))
            with m.If(channel == c.dsq.head_dim - 1):
                m.d.sync += [calibrated.eq(1), calibration.eq(calibration + 1)]
        with m.If(preparer.o.valid & preparer.o.ready & preparer.o.payload.last):
            m.d.sync += given.eq(1)
        # No more queries are under way than calibrations are kept.
        calibrations = Signal(data.ArrayLayout(SLOT_BITS, SLOTS))
        m.d.comb += [scan.loaded.eq(given), weighed.i.payload.slot.eq(calibrations[end_slot])]
        with m.If(scan.loaded):
            m.d.sync += [beat.eq(0), all_in.eq(0), calibrated.eq(0), given.eq(0)]
            m.d.sync += calibrations[scan.load_slot].eq(calibration)

    def _scanned(
        self, m: Module, scan: ScanEngine, rebuild: RebuildEngine, estimator: Estimator, commit: ScoreCommit
    ) -> None:
        """Rows of scans to the estimator, tiles between scan and rebuild."""
        tag = commit.scan_row
        in_use = Signal(2)
        m.d.comb += [
            estimator.valid.eq(commit.scan_valid),
            estimator.token.eq(commit.scan_token),
            estimator.tile.eq(tag.tile),
            estimator.item.eq(tag.place),
            estimator.index.eq(tag.index),
            estimator.scores.eq(commit.scan_scores),
            estimator.base.tokens.eq(tag.tokens),
            estimator.base.k_scale.eq(tag.k_scale),
            estimator.base.v_scale.eq(tag.v_scale),
            estimator.end.eq(tag.end),
            estimator.sound.eq(commit.scan_token | (tag.fault == Fault.NONE)),
            estimator.k_group.eq(tag.k_group),
            estimator.v_group.eq(tag.v_group),
            estimator.begin.eq(scan.begin),
            estimator.begin_tile.eq(scan.begin_tile),
            estimator.clear.eq(scan.clear),
            scan.done.eq(commit.scan_valid & tag.end),
            scan.done_tile.eq(tag.tile),
            scan.peak.eq(estimator.peak),
            scan.tile_free.eq(~in_use),
            scan.entry_tile.eq(rebuild.table_tile),
            scan.entry_item.eq(rebuild.next_item),
            rebuild.entry.eq(scan.o_entry),
            scan.fault_tile.eq(tag.tile),
            scan.fault_item.eq(tag.place),
        ]
        with m.If(scan.begin):
            m.d.sync += in_use.bit_select(scan.begin_tile, 1).eq(1)
        with m.If(rebuild.release):
            m.d.sync += in_use.bit_select(rebuild.table_tile, 1).eq(0)

    def _kept(
        self, m: Module, rebuild: RebuildEngine, decide: ValueDecider, estimator: Estimator, commit: ScoreCommit
    ) -> None:
        """The estimator's entries to the rebuild, kept tokens to the decision."""
        m.submodules.decisions = decisions = SyncFIFOBuffered(
            width=decision_layout(self.config).size, depth=RING_ITEMS
        )
        m.d.comb += [
            estimator.base_tile.eq(rebuild.table_tile),
            estimator.base_item.eq(rebuild.table_item),
            estimator.base_index.eq(rebuild.table_base),
            estimator.item_tile.eq(rebuild.table_tile),
            estimator.item_item.eq(rebuild.next_item),
            estimator.token_tile.eq(rebuild.table_tile),
            estimator.token_index.eq(rebuild.token_index),
            rebuild.base.eq(estimator.o_base),
            rebuild.item.eq(estimator.o_item),
            rebuild.token_scores.eq(estimator.o_token),
            rebuild.sound_items.eq(estimator.sound_items),
            rebuild.top.eq(estimator.top),
            rebuild.ring.eq(decide.ring),
            rebuild.done.eq(decide.done),
            rebuild.used.eq(decide.used),
            commit.kept_ring.eq(decide.kept_ring),
            commit.kept_index.eq(decide.kept_index),
            commit.kept_en.eq(decide.kept_en),
            decide.kept.eq(commit.o_kept),
            decide.ring_data.eq(rebuild.ring_data),
            # There are no more groups under way than this queue has places.
            decisions.w_en.eq(commit.o_decision.valid),
            decisions.w_data.eq(commit.o_decision.payload),
            commit.o_decision.ready.eq(decisions.w_rdy),
            decide.i.valid.eq(decisions.r_rdy),
            decide.i.payload.eq(decisions.r_data),
            decisions.r_en.eq(decide.i.ready),
        ]
        for name in ("context_en", "context_ring", "context_base", "context_data", "top_clear", "top_en", "top_data"):
            m.d.comb += getattr(commit, name).eq(getattr(rebuild, name))

    def _weights(self, m: Module, softmax: StreamingSoftmax, value_sum: ValueSum, entries: MassEntries) -> Stage:
        """Each weight goes to the value sum, by what is returned, and to the masses, as soon as either takes it."""
        m.submodules.weighed = weighed = Stage(value_sum.i_token.payload.shape())
        connect(m, weighed.o, value_sum.i_token)
        token, tag = softmax.o.payload, softmax.o.payload.tag
        taken = Signal(2)
        sides = (weighed.i, entries.i)
        for n, side in enumerate(sides):
            m.d.comb += side.valid.eq(softmax.o.valid & ~taken[n])
            with m.If(side.valid & side.ready):
                m.d.sync += taken[n].eq(1)
        m.d.comb += softmax.o.ready.eq((taken[0] | weighed.i.ready) & (taken[1] | entries.i.ready))
        with m.If(softmax.o.ready):
            m.d.sync += taken.eq(0)
        m.d.comb += [
            entries.i.payload.eq(token),
            weighed.i.payload.weights.eq(token.weights),
            weighed.i.payload.rises.eq(token.rises),
            weighed.i.payload.scale.eq(tag.scale),
            weighed.i.payload.delta.eq(tag.delta),
            weighed.i.payload.end.eq(token.end),
        ]
        return weighed

    def _finish(
        self,
        m: Module,
        scan: ScanEngine,
        feed: WordFeed,
        value_sum: ValueSum,
        commit: ScoreCommit,
    ) -> None:
        """Output rows; the status of a query behind its last one; the slots that are free."""
        out, status = self.o, self.o_status
        faults, unnamed = Signal(data.ArrayLayout(fault_layout(), SLOTS)), Signal(SLOTS)
        used, oldest, any_token = Signal(SLOTS), Signal(SLOT_BITS), Signal(SLOTS)
        ends = value_sum.o.valid & value_sum.o.payload.last
        failed, failed_slot = Signal(), Signal.like(feed.failed_slot)
        m.d.sync += [failed.eq(feed.failed), failed_slot.eq(feed.failed_slot)]
        m.d.comb += [
            out.valid.eq(value_sum.o.valid & ~(ends & status.valid)),
            out.payload.eq(value_sum.o.payload),
            value_sum.o.ready.eq(out.ready & ~(ends & status.valid)),
            scan.free.eq(~used.bit_select(scan.load_slot, 1)),
        ]
        with m.If(status.ready):
            m.d.sync += status.valid.eq(0)
        for slot in range(SLOTS):
            fault = faults[slot]
            scanned_here = commit.scan_valid & (commit.scan_row.slot == slot)
            group_end = commit.scan_row.end & ~commit.scan_token
            sound = commit.scan_row.fault == Fault.NONE
            with m.If(scanned_here & (commit.scan_token | (group_end & sound))):
                m.d.sync += any_token[slot].eq(1)
            m.d.sync += unnamed[slot].eq(0)  # the group of a fault comes a cycle later
            with m.If(unnamed[slot]):
                m.d.sync += fault.group.eq(scan.fault_group)
            with m.If(fault.fault == Fault.NONE):
                with m.If(failed & (failed_slot == slot)):
                    m.d.sync += [fault.fault.eq(Fault.MEMORY), fault.group.eq(0)]
                with m.If(scan.fault_stb & (scan.slot == slot)):
                    m.d.sync += fault.eq(scan.o_fault)
                with m.If(scanned_here & group_end & ~sound):
                    m.d.sync += [fault.fault.eq(commit.scan_row.fault), unnamed[slot].eq(1)]
        with m.If(scan.i_job.valid & scan.i_job.ready):
            m.d.sync += [used.bit_select(scan.load_slot, 1).eq(1), faults[scan.load_slot].fault.eq(Fault.NONE)]
            m.d.sync += [faults[scan.load_slot].group.eq(0), any_token.bit_select(scan.load_slot, 1).eq(0)]
        with m.If(out.valid & out.ready & ends):
            done = faults[oldest]
            empty = (done.fault == Fault.NONE) & ~any_token.bit_select(oldest, 1)
            m.d.sync += [
                used.bit_select(oldest, 1).eq(0),
                oldest.eq(oldest + 1),
                status.valid.eq(1),
                status.payload.eq(done),
            ]
            with m.If(empty):
                m.d.sync += status.payload.fault.eq(Fault.EMPTY)
