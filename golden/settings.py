"""Settings of the DSQ+HCAP method: everything that the hardware takes as a register or a parameter."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from golden.errors import UserError

__all__ = ["KvoSettings", "default_settings"]

LOG2E = 1.4426950408889634


@dataclass(frozen=True, kw_only=True)
class KvoSettings:
    """How K and V are quantized and pruned.

    Parameters
    ----------
    group_tokens: tokens of a group.
    salient_tokens: tokens of a group that keep INT8.
    sink_tokens: first tokens of a sequence that are always salient.
    delta_bits: bits of a K delta, 2 or 4.
    bus_bits: word width that the record is laid out for, a power of two from 32 to 512.
    prune: False fetches everything (DSQ alone).
    history_drop: share of the compressed groups, those with the least history, that are not scanned.
    tile_groups: groups that are selected among at once; a power of two from 1 to 1024.
    keep_fraction: the most tokens, as a share of those of the scanned groups, whose K delta a query may fetch.
    run_margin: nats below the running maximum down to which an estimate lets the base's run be fetched.
    estimate_margin: nats below the running maximum down to which an estimate has the base's lower nibbles fetched.
    value_margin: nats below the running maximum down to which a score has its V row fetched.
    """

    group_tokens: int = 64
    salient_tokens: int = 13
    sink_tokens: int = 4
    delta_bits: int = 2
    bus_bits: int = 128
    prune: bool = True
    history_drop: float = 0.35
    tile_groups: int = 64
    keep_fraction: float = 0.40
    run_margin: float = 64.0
    estimate_margin: float = 8.5
    value_margin: float = 7.0

    def __post_init__(self) -> None:
        checks = [
            (16 <= self.group_tokens <= 128, "group_tokens must be 16 to 128", self.group_tokens),
            (
                1 <= self.salient_tokens <= self.group_tokens,
                f"salient_tokens must be 1 to group_tokens={self.group_tokens}",
                self.salient_tokens,
            ),
            (
                0 <= self.sink_tokens <= self.group_tokens,
                f"sink_tokens must be 0 to group_tokens={self.group_tokens}",
                self.sink_tokens,
            ),
            (self.delta_bits in (2, 4), "delta_bits must be 2 or 4", self.delta_bits),
            (
                32 <= self.bus_bits <= 512 and self.bus_bits & (self.bus_bits - 1) == 0,
                "bus_bits must be a power of two from 32 to 512",
                self.bus_bits,
            ),
            (
                1 <= self.tile_groups <= 1024 and self.tile_groups & (self.tile_groups - 1) == 0,
                "tile_groups must be a power of two from 1 to 1024",
                self.tile_groups,
            ),
            (0 <= self.history_drop < 1, "history_drop must be at least 0 and below 1", self.history_drop),
            (0 <= self.keep_fraction <= 1, "keep_fraction must be 0 to 1", self.keep_fraction),
            (0 <= self.run_margin <= 64, "run_margin must be 0 to 64 nats", self.run_margin),
            (0 <= self.estimate_margin <= 64, "estimate_margin must be 0 to 64 nats", self.estimate_margin),
            (0 <= self.value_margin <= 64, "value_margin must be 0 to 64 nats", self.value_margin),
        ]
        for ok, requirement, value in checks:
            if not ok:
                raise ValueError(f"{requirement}, not {value!r}")

    @staticmethod
    def from_toml(path: str | Path) -> "KvoSettings":
        """Read settings from a TOML file; raises :class:`golden.errors.UserError` with one sentence on any fault."""
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as e:
            raise UserError(f"cannot read settings '{path}': {e.strerror}") from e
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise UserError(f"settings '{path}' are not valid TOML: {e}") from e
        types = {name: type(getattr(KvoSettings(), name)) for name in asdict(KvoSettings())}
        for name, value in table.items():
            if name not in types:
                raise UserError(f"settings '{path}' have the unknown key '{name}'; known: {', '.join(types)}")
            wanted = types[name]
            if wanted is float and type(value) is int:
                table[name] = float(value)
            elif type(value) is not wanted:
                raise UserError(f"settings '{path}': {name} must be of type {wanted.__name__}, not {value!r}")
        try:
            return KvoSettings(**table)
        except ValueError as e:
            raise UserError(f"settings '{path}': {e}") from e

    def to_toml(self) -> str:
        """The settings as a TOML document."""
        return "".join(f"{k} = {str(v).lower() if isinstance(v, bool) else v}\n" for k, v in asdict(self).items())

    @staticmethod
    def fixed_point(nats: float) -> int:
        """A margin in nats as the register value: base-2 exponent with 8 fraction bits."""
        return round(nats * LOG2E * 256)


def default_settings() -> KvoSettings:
    """The settings that the search found on the calibration text (``golden/settings.toml``)."""
    return KvoSettings.from_toml(Path(__file__).with_name("settings.toml"))
