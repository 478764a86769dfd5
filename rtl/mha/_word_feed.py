"""Part of the attention core: words from memory to rows for the scores, and to words of V."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.dsq.record import HEADER_BYTES
from golden.dsq.scale import MAX_EXPONENT
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOT_BITS
from rtl.mha._requests import Fault, Piece, block_words, piece_layout
from rtl.mha.scores import RowKind

__all__ = ["WordFeed", "row_tag"]


def row_tag(config: AcceleratorConfig) -> data.StructLayout:
    """What goes with a row through the scores.

    ``tile, place, index, base, end`` as in a piece, ``index`` being that of the row; of a base of a scan also the
    tokens of its run, its scales and what is wrong with the group.
    """
    piece = piece_layout(config)
    fields = {name: piece[name].shape for name in ("slot", "tile", "place", "index", "base", "end")}
    scales = {"k_scale": 8, "v_scale": 8, "k_group": 8, "v_group": 8}
    return data.StructLayout({**fields, "tokens": 8, **scales, "fault": Fault})


class _ByteStore(wiring.Component):
    """Words that are read byte by byte, ``reads`` bytes at once, in the cycle after they were written."""

    def __init__(self, *, bus_bits: int, words: int, reads: int) -> None:
        self.depth, self.bus_bits = 1 << ceil_log2(max(words, 2)), bus_bits
        address = unsigned(bits_for(self.depth * bus_bits // 8 - 1))
        super().__init__(
            {
                "w_en": In(1),
                "w_addr": In(range(self.depth)),
                "w_data": In(bus_bits),
                "r_addr": In(data.ArrayLayout(address, reads)),
                "r_data": Out(data.ArrayLayout(8, reads)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.words = words = Memory(shape=unsigned(self.bus_bits), depth=self.depth, init=[])
        write = words.write_port()
        m.d.comb += [write.en.eq(self.w_en), write.addr.eq(self.w_addr), write.data.eq(self.w_data)]
        lane_bits = ceil_log2(self.bus_bits // 8)
        for address, value in zip(self.r_addr, self.r_data, strict=True):
            read = words.read_port(domain="comb")
            m.d.comb += [read.addr.eq(address[lane_bits:]), value.eq(read.data.word_select(address[:lane_bits], 8))]
        return m


class WordFeed(wiring.Component):
    """Follows the pieces that were asked for, word by word, in the cycle in which a word comes.

    Headers and scales are kept, rows go to the scores with their scale, V goes to ``o_value``. The scales of two blocks
    of V are kept: ``v_blocks`` counts those that have come, `v_done` strobes when one is no longer needed.

    Members
    -------
    i_piece : the pieces in the order of the requests
    i : memory words, ``error`` if memory failed
    o_row : rows for ScoreArray
    o_value : words of V
    v_block, v_index, v_scale : the scale of a token of the older block of V
    v_ready, v_done : that block's scales are there; it is no longer needed
    failed, failed_slot : a word with ``error`` came, for the query in that slot
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self.config = c = config
        self._tag = row_tag(c)
        word = data.StructLayout({"data": c.dsq.bus_bits, "error": 1})
        row = data.StructLayout(
            {
                "word": c.dsq.bus_bits,
                "kind": RowKind,
                "slot": SLOT_BITS,
                "scale": 8,
                "first": 1,
                "last": 1,
                "tag": self._tag,
            }
        )
        super().__init__(
            {
                "i_piece": In(stream.Signature(piece_layout(c))),
                "i": In(stream.Signature(word)),
                "o_row": Out(stream.Signature(row)),
                "o_value": Out(stream.Signature(c.dsq.bus_bits)),
                "v_index": In(range(c.dsq.group_tokens)),
                "v_scale": Out(8),
                "v_ready": Out(1),
                "v_done": In(1),
                "failed": Out(1),
                "failed_slot": Out(SLOT_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        c, piece, word = self.config.dsq, self.i_piece.payload, self.i.payload
        index = Signal.like(piece.words)  # of a header or scale word
        row, chunk = Signal.like(piece.rows), Signal(range(max(c.row_words(8), 2)))
        last_chunk, rows_left = Signal.like(chunk), piece.rows - row
        is_k, is_v, is_scale, in_header = Signal(), Signal(), Signal(), Signal()
        m.d.comb += in_header.eq((piece.kind == Piece.SCAN) & (index != piece.words))
        kinds = {
            Piece.K_ROWS: (RowKind.INT8, c.row_words(8)),
            Piece.SCAN: (RowKind.UPPER, c.row_words(4)),
            Piece.LOWER: (RowKind.LOWER, c.row_words(4)),
            Piece.COARSE: (RowKind.COARSE, c.row_words(2)),
            Piece.FINE: (RowKind.FINE, c.row_words(2)),
        }
        with m.Switch(piece.kind):
            for kind, (row_kind, words) in kinds.items():
                with m.Case(kind):
                    m.d.comb += [is_k.eq(~in_header), self.o_row.payload.kind.eq(row_kind), last_chunk.eq(words - 1)]
            with m.Case(Piece.V_ROWS):
                m.d.comb += [is_v.eq(1), last_chunk.eq(c.row_words(8) - 1)]
            with m.Case(Piece.V_DELTA):
                m.d.comb += [is_v.eq(1), last_chunk.eq(c.row_words(2) - 1)]
            with m.Case(Piece.K_SCALES, Piece.V_SCALES):
                m.d.comb += is_scale.eq(1)

        take, row_end, piece_end = Signal(), Signal(), Signal()
        both = self.i.valid & self.i_piece.valid
        accepted = Mux(is_k, self.o_row.ready, Mux(is_v, self.o_value.ready, 1))
        m.d.comb += [
            row_end.eq((chunk == last_chunk) | is_scale),
            piece_end.eq(row_end & (rows_left == 1) & ~in_header),
            take.eq(both & accepted),
            self.i.ready.eq(self.i_piece.valid & accepted),
            self.i_piece.ready.eq(self.i.valid & accepted & piece_end),
            self.o_row.valid.eq(both & is_k),
            self.o_value.valid.eq(both & is_v),
            self.o_value.payload.eq(word.data),
            self.failed.eq(take & word.error),
            self.failed_slot.eq(piece.slot),
        ]
        with m.If(take):
            with m.If(in_header):
                m.d.sync += index.eq(index + 1)
            with m.Else():
                m.d.sync += chunk.eq(Mux(row_end, 0, chunk + 1))
                with m.If(row_end):
                    m.d.sync += row.eq(row + 1)
                with m.If(piece_end):
                    m.d.sync += [row.eq(0), index.eq(0)]
        store = self._k_store(m, take, in_header, index, row)
        self._v_store(m, take, piece_end, row)
        self._rows(m, store, take, row_end, row, chunk, index)
        return m

    def _k_store(self, m: Module, take: Value, in_header: Value, index: Value, row: Value) -> data.View:
        """Header or K scales of the piece at hand: K scale, tokens and V scale of a base, or the scale of a token."""
        c, piece = self.config.dsq, self.i_piece.payload
        header_words = -(-8 * (HEADER_BYTES + 3 * c.max_salient) // c.bus_bits)
        words = max(header_words, block_words(self.config)[Piece.K_SCALES][1])
        m.submodules.k_store = store = _ByteStore(bus_bits=c.bus_bits, words=words, reads=3)
        first = HEADER_BYTES + row
        m.d.comb += [
            store.w_en.eq(take & (in_header | (piece.kind == Piece.K_SCALES))),
            store.w_addr.eq(Mux(in_header, index, row)),
            store.w_data.eq(self.i.payload.data),
            store.r_addr[0].eq(Mux(piece.kind == Piece.SCAN, first + piece.rows, row)),
            store.r_addr[1].eq(first),
            store.r_addr[2].eq(first + (piece.rows << 1)),
        ]
        return store.r_data

    def _v_store(self, m: Module, take: Value, piece_end: Value, row: Value) -> None:
        c, piece = self.config.dsq, self.i_piece.payload
        words = 1 << ceil_log2(max(block_words(self.config)[Piece.V_SCALES][1], 2))
        m.submodules.v_store = store = _ByteStore(bus_bits=c.bus_bits, words=2 * words, reads=1)
        newer, older, count = Signal(), Signal(), Signal(2)
        comes = take & piece_end & (piece.kind == Piece.V_SCALES)
        bits = ceil_log2(words * c.bus_bits // 8)
        m.d.comb += [
            store.w_en.eq(take & (piece.kind == Piece.V_SCALES)),
            store.w_addr.eq(Cat(row[: ceil_log2(words)], newer)),
            store.w_data.eq(self.i.payload.data),
            store.r_addr[0].eq(self.v_index | (older << bits)),
            self.v_scale.eq(store.r_data[0]),
            self.v_ready.eq(count != 0),
        ]
        m.d.sync += count.eq(count + comes - self.v_done)
        with m.If(comes):
            m.d.sync += newer.eq(~newer)
        with m.If(self.v_done):
            m.d.sync += older.eq(~older)

    def _rows(
        self, m: Module, store: data.View, take: Value, row_end: Value, row: Value, chunk: Value, index: Value
    ) -> None:
        """Rows for the scores, and the check of a header while the bases of its scan pass."""
        c, piece, out = self.config.dsq, self.i_piece.payload, self.o_row.payload
        word, tag = self.i.payload.data, self.o_row.payload.tag
        scan = piece.kind == Piece.SCAN
        last_row = row == piece.rows - 1
        head = Signal(32)  # the first four bytes of the header
        tokens, fault = Signal(range(256 * c.max_salient)), Signal(Fault)
        total = (tokens + store[1])[: len(tokens)]
        bad_scale = (store[0][3:] > MAX_EXPONENT) | (store[2][3:] > MAX_EXPONENT)
        now = Signal(Fault)
        m.d.comb += now.eq(fault)
        with m.If(fault == Fault.NONE):
            with m.If(bad_scale):
                m.d.comb += now.eq(Fault.SCALE)
            with m.Elif(last_row & (total != c.group_tokens - piece.rows)):
                m.d.comb += now.eq(Fault.RUN_LENGTHS)
        with m.If(take & scan):
            with m.If((index == 0) & (piece.words != 0)):
                m.d.sync += [head.eq(word[:32]), tokens.eq(0), fault.eq(Fault.NONE)]
                with m.If(word[:8] != piece.rows):
                    m.d.sync += fault.eq(Fault.SALIENT_COUNT)
                with m.Elif(word[8:16] != c.delta_bits):
                    m.d.sync += fault.eq(Fault.DELTA_BITS)
            with m.Elif((index == piece.words) & row_end):
                m.d.sync += [tokens.eq(total), fault.eq(now)]
        m.d.comb += [
            out.word.eq(word),
            out.slot.eq(piece.slot),
            out.scale.eq(Mux(scan | (piece.kind == Piece.K_ROWS), store[0], piece.scale)),
            out.first.eq(chunk == 0),
            out.last.eq(row_end),
            tag.slot.eq(piece.slot),
            tag.tile.eq(piece.tile),
            tag.place.eq(piece.place),
            tag.index.eq(piece.index + row),
            tag.base.eq(piece.base),
            tag.end.eq(piece.end & last_row),
            tag.tokens.eq(store[1]),
            tag.k_scale.eq(store[0]),
            tag.v_scale.eq(store[2]),
            tag.k_group.eq(head[16:24]),
            tag.v_group.eq(head[24:32]),
            tag.fault.eq(now),
        ]
