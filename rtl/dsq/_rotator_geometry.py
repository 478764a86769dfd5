"""Part of RowQuantizer: how a row is cut for the rotation."""

from dataclasses import dataclass

from amaranth.utils import ceil_log2, exact_log2

from golden.dsq.rotation import rotation_block

__all__ = ["RotatorGeometry"]


@dataclass(frozen=True, kw_only=True)
class RotatorGeometry:
    """What follows from ``head_dim`` and ``lanes``.

    A row is cut into words of ``word_lanes`` channels, four to a beat. Of the ``log2(block)`` butterfly levels the
    first ``word_levels`` join words, the last ``lane_levels`` the channels of a word.
    """

    head_dim: int
    lanes: int

    @property
    def word_lanes(self) -> int:
        """Channels of a word."""
        return self.lanes // 4

    @property
    def words(self) -> int:
        """Words of a row."""
        return self.head_dim // self.word_lanes

    @property
    def pairs(self) -> int:
        """Butterfly steps of one level between words."""
        return self.words // 2

    @property
    def pair_bits(self) -> int:
        """Bits of a step's number."""
        return ceil_log2(self.pairs)

    @property
    def word_levels(self) -> int:
        """Levels between words, at least 2."""
        return exact_log2(rotation_block(self.head_dim) // self.word_lanes)

    @property
    def lane_levels(self) -> int:
        """Levels inside a word."""
        return exact_log2(self.word_lanes)

    @property
    def lane_registers(self) -> int:
        """Registers of the levels inside a word: one for two levels, at least one."""
        return max(1, (self.lane_levels + 1) // 2)

    @property
    def output_cycles(self) -> int:
        """Registers between the banks and the one that gives a word out."""
        return 2 + self.lane_registers

    @property
    def peak_registers(self) -> int:
        """Registers between a word and the register of the row's peak: one for two comparisons."""
        return (self.lane_levels + 1) // 2

    @property
    def stage_cycles(self) -> int:
        """Cycles of all levels between words but the first and the last, which overlap other rows."""
        return (self.word_levels - 2) * (self.pairs + 1 + self.settle_cycles)

    @property
    def stored_bits(self) -> int:
        """Bits of a channel before the last level between words."""
        return 16 + self.word_levels - 1

    @property
    def full_bits(self) -> int:
        """Bits of a rotated channel before the shift."""
        return 16 + exact_log2(rotation_block(self.head_dim))

    @property
    def settle_cycles(self) -> int:
        """Idle cycles after a level, so that the next one never reads a word before it is written.

        One idle cycle comes from the control anyway; a sum can be read 3 cycles after its step began, a difference
        after 4.
        """
        half_block = 1 << (self.word_levels - 1)
        missing = 0
        for step in range(self.pairs):
            block, index = divmod(step, half_block)
            for word, written in ((index, step + 3), (half_block + index, step + 4)):
                read = self.pairs + 1 + (2 * half_block * block + word) // 2
                missing = max(missing, written - read)
        return missing
