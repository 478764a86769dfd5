"""Queries for the attention core: what it is told, what memory holds, what golden says comes out."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from amaranth.utils import bits_for
from numpy.typing import NDArray

from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.draws import state as random_state
from golden.cache.cache import fetched_words
from golden.dsq.compressor import Calibration
from golden.dsq.record import RecordLayout, pack
from golden.mha.core import Fetch, attend
from golden.mha.mass import normalize
from golden.mha.query import prepare_query
from golden.mha.scores import scores
from golden.mha.softmax import shifted_sum, softmax_streaming
from golden.settings import KvoSettings
from golden.state import HeadState
from rtl.config import AcceleratorConfig
from rtl.mha._requests import Fault, Piece, block_words

__all__ = [
    "Memory",
    "Query",
    "beats",
    "calibration_words",
    "dense_queries",
    "job_fields",
    "make_query",
    "queries_of",
    "random_cache",
    "random_settings",
    "read_words",
    "received_rows",
    "records_of",
    "words_of",
]


def words_of(content: NDArray[np.uint8], bus_bits: int) -> list[int]:
    """Bytes as bus words, zeros behind the last one."""
    size = bus_bits // 8
    padded = np.zeros(-(-len(content) // size) * size, np.uint8)
    padded[: len(content)] = content
    return [int.from_bytes(row.tobytes(), "little") for row in padded.reshape(-1, size)]


def block_content(
    config: AcceleratorConfig,
    k: tuple[NDArray[np.int8], NDArray[np.uint8]],
    v: tuple[NDArray[np.int8], NDArray[np.uint8]],
) -> list[int]:
    """The words of a block of INT8 tokens: scales and rows of K, then of V."""
    bus = config.dsq.bus_bits
    made: list[int] = []
    for (codes, scale), parts in ((k, (Piece.K_SCALES, Piece.K_ROWS)), (v, (Piece.V_SCALES, Piece.V_ROWS))):
        scales, rows = (block_words(config)[part][1] for part in parts)
        words = words_of(scale, bus)
        made += words + [0] * (scales - len(words))
        words = [word for row in codes.view(np.uint8) for word in words_of(row, bus)]
        made += words + [0] * (rows - len(words))
    return made


@dataclass
class Memory:
    """Records and blocks of one cache by group, as words."""

    records: dict[int, list[int]] = field(default_factory=dict)
    blocks: dict[int, list[int]] = field(default_factory=dict)

    def read(self, request: dict[str, int]) -> list[int]:
        """The words of a request of MhaCore."""
        content = (self.blocks if request["dense"] else self.records)[request["group"]]
        first, count = request["word"], request["count"]
        assert count and first + count <= len(content), f"{request} of {len(content)} words"
        return content[first : first + count]


@dataclass(kw_only=True)
class Query:
    """One query token with its cache and golden's answer."""

    rows: NDArray[np.int16]  # [G, head_dim]
    shift: int
    settings: KvoSettings
    state: HeadState
    scan: list[dict[str, int]]
    memory: Memory
    out: NDArray[np.int16]  # [G, head_dim]
    token_mass: NDArray[np.int64]  # of the INT8 tokens
    group_mass: NDArray[np.int64]  # of the compressed groups
    fetch: Fetch
    status: tuple[Fault, int] = (Fault.NONE, 0)  # and the group


def job_fields(query: Query, *, load_calibration: bool) -> dict[str, int]:
    """The transfer at ``i_job``."""
    s = query.settings
    return {
        "shift": query.shift,
        "keep": round(s.keep_fraction * 256),
        "run_margin": KvoSettings.fixed_point(s.run_margin),
        "estimate_margin": KvoSettings.fixed_point(s.estimate_margin),
        "value_margin": KvoSettings.fixed_point(s.value_margin),
        "prune": int(s.prune),
        "load_calibration": int(load_calibration),
    }


def records_of(state: HeadState, config: AcceleratorConfig) -> dict[int, list[int]]:
    """The packed records of a cache's closed groups."""
    c, records = config.dsq, {}
    for number, group in enumerate(state.closed):
        layout = RecordLayout(
            head_dim=c.head_dim,
            group_tokens=c.group_tokens,
            salient_tokens=len(group.run_length),
            delta_bits=c.delta_bits,
            bus_bits=c.bus_bits,
        )
        records[number] = words_of(pack(group, layout), c.bus_bits)
    return records


def queries_of(
    state: HeadState,
    q_rows: NDArray[np.int16],
    config: AcceleratorConfig,
    *,
    shift: int,
    records: dict[int, list[int]] | None = None,
) -> Iterator[Query]:
    """Queries for the newest tokens of ``state``, the i-th of them seeing all tokens up to its own.

    Memory holds ``records``, if given, in place of those of the state.
    """
    tokens = len(state.k_codes)
    records = records_of(state, config) if records is None else records
    for i in range(q_rows.shape[1]):
        keep = tokens - q_rows.shape[1] + i + 1
        yield make_query(trimmed(state, keep), q_rows[:, i : i + 1], config, records, shift=shift)


def read_words(query: Query, config: AcceleratorConfig) -> int:
    """Words that golden reads for a query."""
    c = config.dsq
    layout = RecordLayout(
        head_dim=c.head_dim,
        group_tokens=c.group_tokens,
        salient_tokens=query.settings.salient_tokens,
        delta_bits=c.delta_bits,
        bus_bits=c.bus_bits,
    )
    return int(fetched_words(query.fetch, layout).sum())


def trimmed(state: HeadState, keep: int) -> HeadState:
    """The cache as it was with ``keep`` INT8 tokens."""
    made = copy.copy(state)
    made.k_codes, made.k_scale = state.k_codes[:keep], state.k_scale[:keep]
    made.v_codes, made.v_scale = state.v_codes[:keep], state.v_scale[:keep]
    made.mass, made.recent = state.mass[:keep].copy(), state.recent.copy()
    return made


def make_query(
    state: HeadState,
    q_rows: NDArray[np.int16],
    config: AcceleratorConfig,
    records: dict[int, list[int]],
    *,
    shift: int,
    faulty: Sequence[int] = (),
) -> Query:
    """One query ``q_rows[G, 1, head_dim]`` with golden's answer; ``faulty`` groups are scanned all the same."""
    n, first = config.dsq.group_tokens, len(state.closed)
    mass: list[NDArray[np.int64]] = []
    state.observe = lambda groups, tokens: mass.extend((groups, tokens))  # type: ignore[method-assign]
    out, fetch = attend(state, q_rows, shift=shift, faulty=faulty)
    del state.observe
    scan, blocks = [], {}
    for number, start in enumerate(range(0, len(state.k_codes), n)):
        span = slice(start, start + n)
        k, v = (state.k_codes[span], state.k_scale[span]), (state.v_codes[span], state.v_scale[span])
        blocks[first + number] = block_content(config, k, v)
        scan.append({"dense": 1, "group": first + number, "count": len(k[0]), "last": 0})
    for number in sorted({*np.flatnonzero(fetch.scanned).tolist(), *faulty}):
        scan.append({"dense": 0, "group": number, "count": len(state.closed[number].run_length), "last": 0})
    scan[-1]["last"] = 1
    return Query(
        rows=q_rows[:, 0],
        shift=shift,
        settings=state.settings,
        state=state,
        scan=scan,
        memory=Memory(records, blocks),
        out=out[:, 0],
        token_mass=mass[1],
        group_mass=mass[0],
        fetch=fetch,
    )


def random_settings(config: AcceleratorConfig, **changes: Any) -> KvoSettings:
    """Settings that keep some of everything in random caches."""
    c = config.dsq
    return replace(
        KvoSettings(
            group_tokens=c.group_tokens,
            salient_tokens=min(4, c.max_salient),
            sink_tokens=2,
            delta_bits=c.delta_bits,
            bus_bits=c.bus_bits,
            history_drop=0.25,
            tile_groups=config.mha.tile_groups,
            keep_fraction=0.5,
            estimate_margin=4.0,
            value_margin=3.0,
        ),
        **changes,
    )


def random_cache(
    config: AcceleratorConfig, label: str, *, groups: int, count: int, size: float = 700, **changes: Any
) -> tuple[HeadState, NDArray[np.int16]]:
    """A random cache of ``groups`` groups and ``count`` newer tokens, and their queries of magnitude ``size``."""
    c = config.dsq
    draw = generator("core", label, c.head_dim)
    settings = random_settings(config, **changes)
    made = random_state(draw, settings, groups * c.group_tokens, c.head_dim, opened=count)
    rows = np.clip(draw.normal(0, size, (config.mha.q_heads, count, c.head_dim)), -32768, 32767)
    return made, rows.astype(np.int16)


def beats(rows: NDArray[np.int16], lanes: int) -> list[int]:
    """INT16 rows as transfers of ``lanes`` channels."""
    return [int.from_bytes(beat.tobytes(), "little") for beat in np.asarray(rows, "<i2").reshape(-1, lanes)]


def calibration_words(calibration: Calibration) -> Iterator[int]:
    """The transfers of ``i_calibration``."""
    for k, v, mean in zip(calibration.k_shape, calibration.v_shape, calibration.v_mean, strict=True):
        yield int(k) | int(v) << 12 | (int(mean) & 0xFFFF) << 24


def received_rows(words: Sequence[int], config: AcceleratorConfig) -> NDArray[np.int16]:
    """The output rows ``[G, head_dim]`` of the transfers of one query at ``o``."""
    heads, lanes = config.mha.q_heads, config.dsq.lanes
    head_bits, beats_of_row = bits_for(max(heads, 2) - 1), config.dsq.row_beats
    rows = []
    for number, word in enumerate(words):
        head, last = word & ((1 << head_bits) - 1), word >> head_bits + 16 * lanes
        assert head == number // beats_of_row and last == (number == len(words) - 1), f"beat {number}: {word:#x}"
        data = word >> head_bits & ((1 << 16 * lanes) - 1)
        rows.append(np.frombuffer(data.to_bytes(2 * lanes, "little"), "<i2"))
    return np.concatenate(rows).reshape(heads, -1)


def dense_queries(
    state: HeadState, q_rows: NDArray[np.int16], config: AcceleratorConfig, *, shift: int
) -> Iterator[Query]:
    """Queries on an uncompressed INT8 cache: no group of ``state`` is closed, all are blocks, nothing is dropped.

    Tokens of the first two blocks have a mass each, those of others one a block.
    """
    n = config.dsq.group_tokens
    state = copy.copy(state)
    state.settings = replace(state.settings, prune=False)
    for query in queries_of(state, q_rows, config, shift=shift):
        made, tokens = prepare_query(query.rows, state.calibration.k_shape), len(query.token_mass)
        score = scores(made.codes, made.scale, state.k_codes[:tokens], state.k_scale[:tokens], shift=shift)
        weights, maximum = softmax_streaming(score)
        spans = [slice(t, t + 1) for t in range(min(tokens, 2 * n))]
        spans += [slice(t, min(t + n, tokens)) for t in range(2 * n, tokens, n)]
        rows = list(zip(weights, maximum, strict=True))
        sums = np.array([[shifted_sum(w[span], m[span]) for span in spans] for w, m in rows])
        against = np.stack([maximum[:, span.stop - 1] for span in spans], axis=1)
        totals = np.array([shifted_sum(w, m) for w, m in rows])
        masses = normalize(sums, against, maximum[:, -1], totals).sum(axis=0)
        query.token_mass, query.group_mass = masses[: 2 * n], np.array([0, 0, *masses[2 * n :]])
        yield query
