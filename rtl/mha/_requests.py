"""What the attention core asks memory for, and what it must know of the words that come back."""

from amaranth.hdl import Shape, Value, unsigned
from amaranth.lib import data, enum
from amaranth.utils import bits_for, ceil_log2

from golden.dsq.record import COARSE_BITS, HEADER_BYTES, RecordLayout
from rtl.config import AcceleratorConfig
from rtl.mha._query_store import SLOT_BITS

__all__ = [
    "GROUP_BITS",
    "RING_ITEMS",
    "SUM_BITS",
    "Piece",
    "Fault",
    "RecordOffsets",
    "ask_layout",
    "base_bits",
    "block_words",
    "piece_layout",
    "request_layout",
    "times",
]

#: bits of a group's number
GROUP_BITS = 20
#: bits of a sum of scores
SUM_BITS = 26
#: groups whose K rows are under way at once
RING_ITEMS = 8


class Piece(enum.Enum, shape=unsigned(4)):
    """A contiguous piece of a record or of a block of INT8 tokens."""

    K_SCALES = 0
    K_ROWS = 1
    SCAN = 2
    LOWER = 3
    COARSE = 4
    FINE = 5
    V_SCALES = 6
    V_ROWS = 7
    V_DELTA = 8


class Fault(enum.Enum, shape=unsigned(3)):
    """What was wrong with a query; the first fault is kept, with the number of its group."""

    NONE = 0
    SALIENT_COUNT = 1
    DELTA_BITS = 2
    RUN_LENGTHS = 3
    SCALE = 4
    MEMORY = 5
    TOO_MANY_GROUPS = 6
    EMPTY = 7


def base_bits(config: AcceleratorConfig) -> int:
    """Bits of the index of a base in its group."""
    return max(1, ceil_log2(config.dsq.max_salient))


def block_words(config: AcceleratorConfig) -> dict[Piece, tuple[int, int]]:
    """First word and number of words of the pieces of a block of ``group_tokens`` INT8 tokens."""
    block = config.memory_map.block
    return {
        Piece.K_SCALES: block.k_scales,
        Piece.K_ROWS: block.k_rows,
        Piece.V_SCALES: block.v_scales,
        Piece.V_ROWS: block.v_rows,
    }


def times(value: Value, factor: int) -> Value:
    """``value * factor`` for a small constant factor, without a multiplier block."""
    return sum((value << bit for bit in range(factor.bit_length()) if factor >> bit & 1), Value.cast(0))


class RecordOffsets:
    """Word offsets of a record's sections for a salient count that is known at run time: golden ``RecordLayout``."""

    def __init__(self, config: AcceleratorConfig, salient: Value) -> None:
        c = config.dsq
        word_bytes = c.bus_bits // 8
        others = (c.group_tokens - salient)[: bits_for(c.group_tokens)]
        planes = c.delta_bits // COARSE_BITS
        self.header = (HEADER_BYTES + word_bytes - 1 + times(salient, 3)) >> ceil_log2(word_bytes)
        self.scan = self.header + times(salient, c.row_words(4))
        self.lower = self.scan
        self.coarse = self.scan + times(salient, c.row_words(4))
        self.fine = self.coarse + times(others, c.row_words(2))
        self.v_salient = self.coarse + times(others, planes * c.row_words(2))
        self.v_delta = self.v_salient + times(salient, c.row_words(8))

    def row(self, offset: Value, row: Value, words: int) -> Value:
        """Offset of a row of ``words`` words in the section that begins at ``offset``."""
        return offset + times(row, words)


def _word_bits(config: AcceleratorConfig) -> int:
    """Bits of a word's number in a block or record, and of the number of its words."""
    c = config.dsq
    geometry = {name: getattr(c, name) for name in ("head_dim", "group_tokens", "delta_bits", "bus_bits")}
    records = (RecordLayout(**geometry, salient_tokens=s).record_bytes for s in range(1, c.max_salient + 1))
    words = max(*records, 0) * 8 // c.bus_bits
    return bits_for(max(words, sum(count for _, count in block_words(config).values())))


def _words_members(config: AcceleratorConfig) -> dict[str, int]:
    bits = _word_bits(config)
    return {"dense": 1, "group": GROUP_BITS, "word": bits, "count": bits}


def request_layout(config: AcceleratorConfig) -> data.StructLayout:
    """``count`` words from ``word`` on of the record of ``group``, or of its block of INT8 tokens if ``dense``, in the
    cache that the query in ``slot`` reads."""
    return data.StructLayout({"slot": SLOT_BITS, **_words_members(config)})


def piece_layout(config: AcceleratorConfig) -> data.StructLayout:
    """What the words of a request are.

    kind: of piece; slot: of the query; rows: its rows (of SCAN those behind the header, of scales their words);
    words: header words of SCAN; place: item of the tile (K_ROWS, SCAN) or of the ring (LOWER, COARSE); tile: its tile;
    index: number of the first row in its section, or of the first token in the tile; base: the base of a run; scale: of
    the rows; end: the item ends with this piece.
    """
    c = config.dsq
    places = max(config.mha.tile_groups, RING_ITEMS)
    scale_words = -(-8 * c.group_tokens // c.bus_bits)
    header_words = -(-8 * (HEADER_BYTES + 3 * c.max_salient) // c.bus_bits)
    members: dict[str, Shape | type | int] = {
        "kind": Piece,
        "slot": SLOT_BITS,
        "tile": 1,
        "place": unsigned(max(1, ceil_log2(places))),
        "rows": unsigned(bits_for(max(c.group_tokens, scale_words))),
        "words": unsigned(bits_for(header_words)),
        "index": unsigned(ceil_log2(2 * c.group_tokens)),
        "base": unsigned(base_bits(config)),
        "scale": 8,
        "end": 1,
    }
    return data.StructLayout(members)


def ask_layout(config: AcceleratorConfig) -> data.StructLayout:
    """A request, but for the slot, and what its words are."""
    return data.StructLayout({"request": data.StructLayout(_words_members(config)), "piece": piece_layout(config)})
