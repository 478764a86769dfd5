"""Configuration of the generated hardware: block configs, the accelerator's, named presets, TOML files."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from golden.cache.cache import MemoryMap
from golden.errors import UserError
from golden.gemm.array import accumulator_bits

__all__ = [
    "PRESETS",
    "AcceleratorConfig",
    "CacheConfig",
    "ControlConfig",
    "DsqConfig",
    "GemmConfig",
    "MhaConfig",
    "load_config",
    "preset",
]


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

        lanes, tokens, bits = self.lanes, self.group_tokens, self.bus_bits
        _require(power_of_two(lanes) and 4 <= lanes <= 64, "lanes must be a power of two from 4 to 64", lanes)
        _require(16 <= self.head_dim <= 128, "head_dim must be from 16 to 128", self.head_dim)
        _require(self.head_dim % lanes == 0, f"head_dim must be a multiple of lanes={lanes}", self.head_dim)
        _require(
            power_of_two(tokens) and 16 <= tokens <= 128, "group_tokens must be a power of two from 16 to 128", tokens
        )
        _require(
            1 <= self.max_salient < tokens,
            f"max_salient must be from 1 to group_tokens-1={tokens - 1}",
            self.max_salient,
        )
        _require(self.delta_bits in (2, 4), "delta_bits must be 2 or 4", self.delta_bits)
        _require(power_of_two(bits) and 32 <= bits <= 512, "bus_bits must be a power of two from 32 to 512", bits)

    @property
    def row_beats(self) -> int:
        """Transfers of ``lanes`` channels that make up one row."""
        return self.head_dim // self.lanes

    def row_words(self, code_bits: int) -> int:
        """Bus words that a row of codes of so many bits takes, or shares with other rows."""
        return -(-self.head_dim * code_bits // self.bus_bits)


@dataclass(frozen=True, kw_only=True)
class MhaConfig:
    """Sizes of the attention core.

    Parameters
    ----------
    q_heads: query heads that share a KV head, 1 to 8.
    tile_groups: groups that are selected among at once, a power of two from 1 to 1024.
    max_groups: the most groups that one query may scan, from 1 to 2**20.
    delta_cycles: cycles in which a word of V deltas is added, 1, 2 or 4; fewer lanes with more of them.
    """

    q_heads: int = 3
    tile_groups: int = 64
    max_groups: int = 512
    delta_cycles: int = 1

    def __post_init__(self) -> None:
        tile, most = self.tile_groups, self.max_groups
        _require(1 <= self.q_heads <= 8, "q_heads must be from 1 to 8", self.q_heads)
        power_of_two = 1 <= tile <= 1024 and tile & (tile - 1) == 0
        _require(power_of_two, "tile_groups must be a power of two from 1 to 1024", tile)
        _require(1 <= most <= 1 << 20, "max_groups must be from 1 to 1048576", most)
        _require(self.delta_cycles in (1, 2, 4), "delta_cycles must be 1, 2 or 4", self.delta_cycles)


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The cache in memory and its AXI4 master, whose data are as wide as ``dsq.bus_bits``.

    Parameters
    ----------
    addr_bits: of a byte address, 16 to 64.
    max_sequences: sequences that exist at once, 1 to 256.
    streams: (layer, kv_head) pairs of the model, 1 to 65536.
    record_pages, block_pages: groups of all sequences, compressed and in INT8, that memory has room for: powers of two
        from 2 to 65536; a page has one group of every stream.
    max_burst: beats of an AXI burst at most, 1 to 256.
    outstanding: read bursts under way at once, 1 to 256.
    read_ports, write_ports: requesters beside attention, 0 to 16, and beside what is written to pages, 0 to 8.
    l1_words, l2_words: room for words that attention has asked for, and for scans that it will ask for; powers of two
        from 16 to 65536.
    """

    addr_bits: int = 32
    max_sequences: int = 4
    streams: int = 90
    record_pages: int = 256
    block_pages: int = 16
    max_burst: int = 16
    outstanding: int = 32
    read_ports: int = 8
    write_ports: int = 3
    l1_words: int = 512
    l2_words: int = 512

    def __post_init__(self) -> None:
        for name, least, most in (
            ("addr_bits", 16, 64),
            ("max_sequences", 1, 256),
            ("streams", 1, 1 << 16),
            ("max_burst", 1, 256),
            ("outstanding", 1, 256),
            ("read_ports", 0, 16),
            ("write_ports", 0, 8),
        ):
            value = getattr(self, name)
            _require(least <= value <= most, f"{name} must be from {least} to {most}", value)
        for name, least in (("record_pages", 2), ("block_pages", 2), ("l1_words", 16), ("l2_words", 16)):
            value = getattr(self, name)
            fits = least <= value <= 1 << 16 and value & (value - 1) == 0
            _require(fits, f"{name} must be a power of two from {least} to 65536", value)


@dataclass(frozen=True, kw_only=True)
class GemmConfig:
    """Sizes of the GEMM cores.

    Parameters
    ----------
    cores: of them, 1 to 8, which are alike.
    rows, columns: of the PE array, 1 to 64 activation rows and 2 to 64 outputs, the latter even.
    act_bits: of an activation code, 8 to 16.
    max_k: the longest activation row, 1 to 65536; no sum of so many products overflows.
    act_words: k steps that the codes of a command may take in all its row tiles, at least ``max_k``.
    weight_words: k steps of weights that are kept for further row tiles, a power of two from 16.
    row_lanes: elements of an activation row that are taken in a cycle, a power of two from 1 to 64.
    pairs: pairs of outputs that are finished in a cycle, a divisor of ``columns / 2``, a power of two.
    """

    cores: int = 4
    rows: int = 8
    columns: int = 8
    act_bits: int = 12
    max_k: int = 2048
    act_words: int = 2048
    weight_words: int = 2048
    row_lanes: int = 8
    pairs: int = 1

    def __post_init__(self) -> None:
        def power_of_two(n: int) -> bool:
            return n > 0 and n & (n - 1) == 0

        _require(1 <= self.cores <= 8, "cores must be from 1 to 8", self.cores)
        _require(1 <= self.rows <= 64, "rows must be from 1 to 64", self.rows)
        even = 2 <= self.columns <= 64 and self.columns % 2 == 0
        _require(even, "columns must be an even number from 2 to 64", self.columns)
        _require(8 <= self.act_bits <= 16, "act_bits must be from 8 to 16", self.act_bits)
        _require(1 <= self.max_k <= 1 << 16, "max_k must be from 1 to 65536", self.max_k)
        enough = self.max_k <= self.act_words <= 1 << 20
        _require(enough, f"act_words must be from max_k={self.max_k} to 1048576", self.act_words)
        fits = power_of_two(self.weight_words) and 16 <= self.weight_words <= 1 << 16
        _require(fits, "weight_words must be a power of two from 16 to 65536", self.weight_words)
        lanes = power_of_two(self.row_lanes) and self.row_lanes <= 64
        _require(lanes, "row_lanes must be a power of two from 1 to 64", self.row_lanes)
        pairs = power_of_two(self.pairs) and self.columns % (2 * self.pairs) == 0
        _require(pairs, f"pairs must be a power of two that divides columns/2={self.columns // 2}", self.pairs)

    @property
    def acc_bits(self) -> int:
        """Width of a sum in the array."""
        return accumulator_bits(self.act_bits, self.max_k)

    @property
    def beats(self) -> int:
        """Transfers of ``pairs`` pairs that make up a row of the array."""
        return self.columns // (2 * self.pairs)


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """Sizes of what drives the cores.

    Parameters
    ----------
    scratch_words: of the activation scratchpad, each of ``gemm.row_lanes`` elements of 32 bits, 16 to 2**20.
    scratch_rows: rows in it whose magnitudes are kept, 1 to 65536.
    semaphores: 1 to 256.
    queue_depth: commands of a queue that are on chip at once, 2 to 16.
    event_depth: events that wait to be read, a power of two from 2 to 4096.
    """

    scratch_words: int = 16384
    scratch_rows: int = 1024
    semaphores: int = 64
    queue_depth: int = 4
    event_depth: int = 64

    def __post_init__(self) -> None:
        for name, least, most in (
            ("scratch_words", 16, 1 << 20),
            ("scratch_rows", 1, 1 << 16),
            ("semaphores", 1, 256),
            ("queue_depth", 2, 16),
        ):
            value = getattr(self, name)
            _require(least <= value <= most, f"{name} must be from {least} to {most}", value)
        depth = self.event_depth
        fits = 2 <= depth <= 4096 and depth & (depth - 1) == 0
        _require(fits, "event_depth must be a power of two from 2 to 4096", depth)


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Everything that is fixed when the hardware is generated; one member for each kind of block."""

    dsq: DsqConfig = field(default_factory=DsqConfig)
    mha: MhaConfig = field(default_factory=MhaConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    gemm: GemmConfig = field(default_factory=GemmConfig)
    control: ControlConfig = field(default_factory=ControlConfig)

    def __post_init__(self) -> None:
        most = 2 * self.dsq.head_dim
        _require(self.dsq.bus_bits <= most, f"dsq.bus_bits must be at most 2*head_dim={most}", self.dsq.bus_bits)
        half = self.dsq.head_dim // 2
        _require(half % self.gemm.pairs == 0, f"gemm.pairs must divide dsq.head_dim/2={half}", self.gemm.pairs)
        layout = self.memory_map
        size = (layout.pool_words(False) + layout.pool_words(True)) * self.dsq.bus_bits // 8
        _require(
            size <= 1 << self.cache.addr_bits,
            f"cache.addr_bits must be enough for {size} bytes of pages",
            self.cache.addr_bits,
        )

    def check_accelerator(self) -> None:
        """Whether the parts fit together to an accelerator; raises `ValueError` when they do not."""
        d, g, c = self.dsq, self.gemm, self.cache
        lanes, bus = g.row_lanes, d.bus_bits
        ports = g.cores + 4
        _require(c.read_ports == ports, f"cache.read_ports must be gemm.cores+4={ports}", c.read_ports)
        _require(c.write_ports == 3, "cache.write_ports must be 3", c.write_ports)
        step = 8 * g.columns
        fits = bus % step == 0 and 8 * step % bus == 0
        _require(fits, f"gemm.columns must be from bus_bits/64={max(2, bus // 64)} to bus_bits/8={bus // 8}", g.columns)
        _require(lanes >= 2 * g.pairs, f"gemm.row_lanes must be at least 2*gemm.pairs={2 * g.pairs}", lanes)
        _require(d.head_dim % lanes == 0, f"gemm.row_lanes must divide dsq.head_dim={d.head_dim}", lanes)
        most = ((1 << 16) - 1) * bus // 32
        _require(self.mha.max_groups <= most, f"mha.max_groups must be at most {most}", self.mha.max_groups)
        most = (1 << 16) * bus // step - 8
        _require(g.max_k <= most, f"gemm.max_k must be at most {most}", g.max_k)

    @property
    def memory_map(self) -> MemoryMap:
        """Where pages lie in memory."""
        d, c = self.dsq, self.cache
        return MemoryMap(
            head_dim=d.head_dim,
            group_tokens=d.group_tokens,
            max_salient=d.max_salient,
            delta_bits=d.delta_bits,
            bus_bits=d.bus_bits,
            streams=c.streams,
            record_pages=c.record_pages,
            block_pages=c.block_pages,
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The config as nested dictionaries, as `load_config` would read them from TOML."""
        return asdict(self)


#: names and purposes of the presets
PRESETS: dict[str, tuple[str, AcceleratorConfig]] = {
    "tiny": (
        "small enough for quick simulations",
        AcceleratorConfig(
            dsq=DsqConfig(head_dim=16, group_tokens=16, max_salient=4, lanes=4, bus_bits=32),
            mha=MhaConfig(q_heads=2, tile_groups=4, max_groups=64),
            cache=CacheConfig(
                addr_bits=20, streams=3, record_pages=64, block_pages=16, read_ports=6, l1_words=32, l2_words=32
            ),
            gemm=GemmConfig(cores=2, rows=2, columns=4, max_k=96, act_words=192, weight_words=128, row_lanes=2),
            control=ControlConfig(scratch_words=1024, scratch_rows=64),
        ),
    ),
    "smollm2": (
        "SmolLM2-135M, the embedded default model: head_dim 64, 128-bit bus, 4-bit K deltas",
        AcceleratorConfig(dsq=DsqConfig(delta_bits=4), gemm=GemmConfig(act_words=6144)),
    ),
    "ulx3s": (
        "SmolLM2-135M on an ECP5-85F with a 16-bit SDRAM: 32-bit bus, few lanes",
        AcceleratorConfig(
            dsq=DsqConfig(delta_bits=4, lanes=4, bus_bits=32),
            mha=MhaConfig(max_groups=64, delta_cycles=4),
            cache=CacheConfig(
                addr_bits=25, max_sequences=2, record_pages=64, block_pages=4, outstanding=8, read_ports=5
            ),
            gemm=GemmConfig(cores=1, rows=2, columns=4, max_k=1536, act_words=1536, weight_words=16, row_lanes=2),
            control=ControlConfig(scratch_words=8192, scratch_rows=64),
        ),
    ),
    "llama2-7b": (
        "Llama-2-7B: head_dim 128, 256-bit bus",
        AcceleratorConfig(
            dsq=DsqConfig(head_dim=128, delta_bits=4, lanes=32, bus_bits=256),
            mha=MhaConfig(q_heads=1),
            cache=CacheConfig(addr_bits=40, max_sequences=20, streams=1024, record_pages=16384, block_pages=64),
            gemm=GemmConfig(
                rows=16, columns=16, max_k=11008, act_words=22016, weight_words=16384, row_lanes=16, pairs=2
            ),
            control=ControlConfig(scratch_words=1 << 16),
        ),
    ),
    "dac25": (
        "the accelerator of the DAC 2025 paper: head_dim 128, 2-bit K deltas, 13 of 64 tokens salient",
        AcceleratorConfig(
            dsq=DsqConfig(head_dim=128, max_salient=13, lanes=32, bus_bits=256),
            mha=MhaConfig(q_heads=1),
            cache=CacheConfig(addr_bits=40, max_sequences=20, streams=1024, record_pages=16384, block_pages=64),
            gemm=GemmConfig(
                rows=16, columns=16, max_k=11008, act_words=22016, weight_words=16384, row_lanes=16, pairs=2
            ),
            control=ControlConfig(scratch_words=1 << 16),
        ),
    ),
}


def preset(name: str) -> AcceleratorConfig:
    """The preset called ``name``; raises `UserError` when there is none."""
    if name not in PRESETS:
        raise UserError(f"preset must be one of {', '.join(PRESETS)}, not '{name}'")
    return PRESETS[name][1]


def load_config(path: str | Path) -> AcceleratorConfig:
    """Read a TOML file: tables named like the members of `AcceleratorConfig`, keys named like theirs.

    What is not given comes from the preset that a top-level key ``preset`` names, else from the defaults. Raises
    `UserError`, one sentence, when the file cannot be read or says something impossible.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read config '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"config '{path}' is not valid TOML: {error}") from None
    try:
        return _from_tables(document)
    except (UserError, ValueError) as error:
        raise UserError(f"config '{path}': {error}") from None


def _from_tables(document: Mapping[str, Any]) -> AcceleratorConfig:
    tables = dict(document)
    base = AcceleratorConfig()
    if "preset" in tables:
        name = tables.pop("preset")
        if not isinstance(name, str):
            raise UserError(f"preset must be a string, not {name!r}")
        base = preset(name)
    blocks = {block.name: getattr(base, block.name) for block in fields(base)}
    for name, table in tables.items():
        if name not in blocks:
            raise UserError(f"unknown key '{name}', the keys are preset, {', '.join(blocks)}")
        if not isinstance(table, dict):
            raise UserError(f"{name} must be a table, not {table!r}")
        members = {member.name: member.type for member in fields(blocks[name])}
        for key, value in table.items():
            if key not in members:
                raise UserError(f"unknown key '{name}.{key}', the keys of {name} are {', '.join(members)}")
            if type(value) is not members[key]:
                raise UserError(f"{name}.{key} must be of type {members[key].__name__}, not {value!r}")
        try:
            blocks[name] = type(blocks[name])(**{**asdict(blocks[name]), **table})
        except ValueError as error:
            raise UserError(f"{name}: {error}") from None
    return AcceleratorConfig(**blocks)
