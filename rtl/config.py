"""Configuration of the generated hardware: block configs and named presets."""

from dataclasses import dataclass

__all__ = ["DsqConfig"]


def _require(condition: bool, requirement: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{requirement}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class DsqConfig:
    """Geometry of the DSQ blocks.

    Parameters
    ----------
    head_dim: channels of a K or V row, 16 to 128, a multiple of ``lanes``.
    group_tokens: tokens of a group, 16 to 128, a power of two.
    max_salient: the most salient tokens that a compressed group may have; the count itself is a runtime field.
    delta_bits: bits of a K delta, 2 or 4 (V deltas have 2).
    lanes: channels handled per cycle by the quantizer, a power of two from 4 to 64.
    bus_bits: width of a record word, a power of two from 32 to 512.
    """

    head_dim: int = 64
    group_tokens: int = 64
    max_salient: int = 16
    delta_bits: int = 2
    lanes: int = 16
    bus_bits: int = 128

    def __post_init__(self) -> None:
        def power_of_two(n: int) -> bool:
            return n > 0 and n & (n - 1) == 0

        _require(power_of_two(self.lanes) and 4 <= self.lanes <= 64, "lanes must be a power of two from 4 to 64", self.lanes)
        _require(16 <= self.head_dim <= 128, "head_dim must be from 16 to 128", self.head_dim)
        _require(self.head_dim % self.lanes == 0, f"head_dim must be a multiple of lanes={self.lanes}", self.head_dim)
        _require(
            power_of_two(self.group_tokens) and 16 <= self.group_tokens <= 128,
            "group_tokens must be a power of two from 16 to 128",
            self.group_tokens,
        )
        _require(
            1 <= self.max_salient < self.group_tokens,
            f"max_salient must be from 1 to group_tokens-1={self.group_tokens - 1}",
            self.max_salient,
        )
        _require(self.delta_bits in (2, 4), "delta_bits must be 2 or 4", self.delta_bits)
        _require(
            power_of_two(self.bus_bits) and 32 <= self.bus_bits <= 512,
            "bus_bits must be a power of two from 32 to 512",
            self.bus_bits,
        )

    @property
    def row_beats(self) -> int:
        """Transfers of ``lanes`` channels that make up one row."""
        return self.head_dim // self.lanes
