"""Where the codes of a record's rows lie in bus words: constants of a geometry, from golden ``RecordLayout``."""

from amaranth.hdl import Shape, Value, unsigned
from amaranth.lib import data, enum
from amaranth.utils import bits_for

from golden.dsq.compressor import VALUE_BITS
from golden.dsq.record import COARSE_BITS, RecordLayout
from rtl.config import DsqConfig

__all__ = ["RowFormat", "Section", "base_index_shape", "beat_layout", "row_formats"]


class Section(enum.Enum, shape=unsigned(2)):
    """The sections of a record that give elements."""

    K_BASE = 0
    K_DELTA = 1
    V_SALIENT = 2
    V_DELTA = 3


class RowFormat:
    """How the rows of a section lie in bus words: several rows a word, or several words a row.

    Members
    -------
    words, per_word: words of a row and rows in a word; one of them is 1.
    codes: codes of one row in one word, unused ones included; a power of two when ``words`` is above 1.
    lanes: most elements of one word.
    """

    def __init__(self, config: DsqConfig, code_bits: int) -> None:
        layout = RecordLayout(head_dim=config.head_dim, group_tokens=config.group_tokens, bus_bits=config.bus_bits)
        stride, word = 8 * layout.row_stride(code_bits) // code_bits, config.bus_bits // code_bits
        self.head_dim, self.code_bits = config.head_dim, code_bits
        self.words, self.per_word = max(1, stride // word), max(1, word // stride)
        self.codes = min(stride, word)
        self.lanes = self.per_word * self.head_dim if self.words == 1 else self.codes

    def place(self, lane: int) -> tuple[int, int]:
        """Row of the word and channel, counted from the word's first ones, of element ``lane``."""
        return divmod(lane, self.head_dim) if self.words == 1 else (0, lane)

    def code(self, word: Value, lane: int) -> Value:
        """The bits of a word that are the code of element ``lane``; unused codes between rows are left out."""
        row, channel = self.place(lane)
        return word.word_select(row * self.codes + channel, self.code_bits)

    def count(self, rows: Value, word: Value) -> Value | int:
        """Elements of a word that has ``rows`` rows or is word ``word`` of its row."""
        if self.words == 1:
            return rows * self.head_dim
        rest = self.head_dim - (self.words - 1) * self.codes
        return self.codes - (word == self.words - 1) * (self.codes - rest)

    def section_words(self, rows: int) -> int:
        """Words of a section of ``rows`` rows."""
        return -(-rows // self.per_word) * self.words


def row_formats(config: DsqConfig) -> dict[Section, RowFormat]:
    """The row format of each section; that of K_BASE and K_DELTA holds for each of their two planes."""
    code_bits = {
        Section.K_BASE: 4,
        Section.K_DELTA: COARSE_BITS,
        Section.V_SALIENT: 8,
        Section.V_DELTA: VALUE_BITS,
    }
    return {section: RowFormat(config, bits) for section, bits in code_bits.items()}


def base_index_shape(config: DsqConfig) -> Shape:
    """Index of a base, never so narrow that the memory that has it could not be told from the others."""
    rows = row_formats(config)[Section.K_BASE].per_word
    return unsigned(max(1, bits_for(config.max_salient - 1), bits_for(rows - 1)))


def beat_layout(config: DsqConfig) -> data.StructLayout:
    """Which elements a word gives, `Dequantizer`'s output without the elements."""
    return data.StructLayout(
        {
            "section": Section,
            "row": range(config.group_tokens),
            "channel": range(config.head_dim),
            "count": range(config.bus_bits // 2 + 1),
            "last": 1,
            "error": 1,
        }
    )
