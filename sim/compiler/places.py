"""Where everything of a batch lies, in memory and in the scratchpad."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden.cache.cache import BlockLayout
from golden.cache.page_table import PageTable
from golden.control.commands import LINE_BYTES
from golden.control.memory import pack_angles, pack_calibration, pack_projection, pack_rows, pack_state, row_bytes
from golden.decoder import DecoderLayer, swiglu_block
from golden.dsq.record import RecordLayout, pack
from golden.gemm.core import Command
from golden.gemm.epilogue import Function
from golden.gemm.weights import Projection, identity_projection
from golden.state import HeadState
from rtl.config import AcceleratorConfig
from sim.compiler.program import Memory, Program, Region
from sim.compiler.split import Part, column_parts

__all__ = [
    "Matrix",
    "Placed",
    "Room",
    "expected_memory",
    "page_pieces",
    "place_batch",
    "place_pages",
    "place_projections",
    "scratch_rooms",
    "state_bytes",
]


class Matrix(NamedTuple):
    """Rows in the scratchpad, ``stride`` words apart; ``magnitude`` is that of row 0."""

    base: int
    stride: int
    magnitude: int = 0


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A projection in memory: its parts with the line of each."""

    command: Command
    k: int
    columns: int
    parts: list[tuple[Part, int]]

    @property
    def mask(self) -> int:
        """The cores that have a part."""
        return (1 << len(self.parts)) - 1


@dataclass(frozen=True, kw_only=True)
class Room:
    """A sub-batch's part of the scratchpad; ``views``: rows whose magnitudes passes of their own may use, from there
    on."""

    matrices: dict[str, Matrix]
    view_magnitude: int
    views: int


def _commands(decoder: DecoderLayer) -> dict[str, tuple[Projection, Command]]:
    """The layer's projections, and what becomes of their rows."""
    own, plain = decoder.projections, Command()
    finish = {"attention_output": (own.attention_output, plain), "down": (own.down, plain)}
    if decoder.fused:
        return {"qkv": (own.qkv, own.qkv_command), "gate_up": (own.gate_up, own.gate_up_command), **finish}
    narrow = replace(own.qkv_command, function=Function.LINEAR, rotary_columns=0)
    begins = np.cumsum([0, *decoder.widths]).tolist()
    parts = {name: (own.qkv.part(*begins[i : i + 2]), narrow) for i, name in enumerate("qkv")}
    wide = replace(own.gate_up_command, function=Function.LINEAR)
    dim, block = decoder.config.head_dim, swiglu_block(decoder.config.ffn)
    turn = replace(own.qkv_command, norm=plain.norm, epsilon=0, rotary_columns=dim)
    passes = {
        "rotary": (identity_projection(dim), turn),
        "swiglu": (identity_projection(block), Command(function=Function.SWIGLU)),
    }
    return {**parts, "gate_up": (own.gate_up, wide), **finish, **passes}


def place_projections(memory: Memory, config: AcceleratorConfig, decoder: DecoderLayer) -> dict[str, Placed]:
    """The projections of a layer, split over the cores; passes of their own are split by rows, so have one part."""
    placed = {}
    for name, (projection, command) in _commands(decoder).items():
        columns, k = projection.weights.shape
        parts = [Part(begin=0, end=columns, rotary=command.rotary_columns, target=0)]
        if name not in ("rotary", "swiglu"):
            parts = column_parts(config, columns, command)
        lines = []
        for number, part in enumerate(parts):
            own = projection.part(part.begin, part.end)
            content = pack_projection(own.weights, own.columns, config.gemm.columns, config.dsq.bus_bits)
            lines.append((part, memory.place(f"{name}.{number}", content)))
        placed[name] = Placed(command=command, k=k, columns=columns, parts=lines)
    return placed


def place_batch(
    memory: Memory,
    config: AcceleratorConfig,
    decoder: DecoderLayer,
    x: NDArray[np.integer],
    positions: NDArray[np.integer],
    sub_batches: list[range],
) -> dict[tuple[int, int, str], int]:
    """Calibrations, states, residuals in and out, and angles; returns the lines of the latter by step, sub-batch, and
    whose rows they are: of tokens (``qkv``), or of each head of q or k."""
    c = decoder.config
    for h in range(c.kv_heads):
        memory.place(f"calibration.{h}", pack_calibration(decoder.calibration.head(decoder.layer, h)))
    if decoder.kv != "dense":
        heads = [b"".join(state_bytes(config, state) for state in states) for states in decoder.sequences]
        at = memory.place("states", sum(map(len, heads))) * LINE_BYTES
        for states, content in zip(decoder.sequences, heads, strict=True):
            if states[0].tokens:  # others are filled with zeros
                memory.image.append((at, content))
            at += len(content)
    memory.place("inputs", pack_rows(x.reshape(-1, c.hidden)))
    memory.place("outputs", len(x) * len(positions[0]) * row_bytes(c.hidden))
    repeats = {"qkv": 1} if decoder.fused else {"q": c.q_heads, "k": c.kv_heads}
    lines = {}
    for step in range(len(x)):
        for s, sequences in enumerate(sub_batches):
            tables = decoder.rotary(positions[step, sequences.start : sequences.stop])
            for name, heads_of_row in repeats.items():
                cos, sin = (np.repeat(table, heads_of_row, axis=0) for table in tables)
                lines[step, s, name] = memory.place(f"angles.{step}.{s}.{name}", pack_angles(cos, sin))
    if not decoder.fused:
        q, k, v = decoder.widths
        widths = {"q": q, "k": k, "v": v, "attention": q, "x": c.hidden, "gate_up": 2 * c.ffn, "middle": c.ffn}
        for s, sequences in enumerate(sub_batches):
            for name, width in widths.items():
                memory.place(f"spill.{s}.{name}", len(sequences) * row_bytes(width))
    return lines


def state_bytes(config: AcceleratorConfig, state: HeadState) -> bytes:
    """History, recent mass and votes of a head as memory has them."""
    return pack_state(state.history, state.recent, state.mass, config.mha.max_groups, config.dsq.group_tokens)


def _block_pieces(state: HeadState, first: int, layout: BlockLayout) -> Iterator[tuple[int, bytes]]:
    """First byte and content of all that the block of INT8 tokens from the ``first`` on holds: scales, single rows."""
    word, span = layout.bus_bits // 8, slice(first, first + layout.group_tokens)
    for scale, codes, scales, rows in (
        (state.k_scale[span], state.k_codes[span], layout.k_scales, layout.k_rows),
        (state.v_scale[span], state.v_codes[span], layout.v_scales, layout.v_rows),
    ):
        yield scales[0] * word, scale.tobytes()
        for number, row in enumerate(codes):
            yield (rows[0] + number * layout.row_words) * word, row.tobytes()


def page_pieces(
    config: AcceleratorConfig,
    regions: dict[str, Region],
    pages: PageTable,
    owner: tuple[int, int],
    state: HeadState,
    groups: Iterable[int] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Byte address and content of all records and INT8 tokens of a sequence and head, or of some ``groups`` of them."""
    layout, word, n = config.memory_map, config.dsq.bus_bits // 8, config.dsq.group_tokens
    (sequence, h), closed = owner, len(state.closed)
    record = RecordLayout(
        head_dim=config.dsq.head_dim,
        group_tokens=n,
        salient_tokens=state.settings.salient_tokens,
        delta_bits=config.dsq.delta_bits,
        bus_bits=config.dsq.bus_bits,
    )
    for group in range(-(-state.tokens // n)) if groups is None else groups:
        dense = group >= closed
        page = pages.lookup(sequence, dense, group)
        if page is None:
            raise ValueError(f"group {group} of sequence {sequence} must have a page")
        at = regions["blocks" if dense else "records"].line * LINE_BYTES + layout.offset(dense, h, page) * word
        if dense:
            for offset, content in _block_pieces(state, (group - closed) * n, layout.block):
                yield at + offset, content
        else:
            yield at, pack(state.closed[group], record).tobytes()


def expected_memory(program: Program, decoder: DecoderLayer) -> Iterator[tuple[int, bytes]]:
    """Byte address and content of what must lie in memory, beside outputs, when ``decoder`` has decoded all steps too:
    records, INT8 tokens, states of attention."""
    for i, states in enumerate(decoder.sequences):
        for h, state in enumerate(states):
            yield from page_pieces(program.config, program.regions, program.pages, (i, h), state)
    if decoder.kv != "dense":
        contents = (state_bytes(program.config, state) for states in decoder.sequences for state in states)
        yield program.regions["states"].line * LINE_BYTES, b"".join(contents)


def place_pages(memory: Memory, config: AcceleratorConfig, sequences: list[list[HeadState]], pages: PageTable) -> None:
    """The pools of pages, with the records and tokens that there are."""
    for dense, name in enumerate(("records", "blocks")):
        memory.place(name, config.memory_map.pool_words(bool(dense)) * config.dsq.bus_bits // 8)
    for i, states in enumerate(sequences):
        for h, state in enumerate(states):
            memory.image += page_pieces(config, memory.regions, pages, (i, h), state)


def scratch_rooms(config: AcceleratorConfig, decoder: DecoderLayer, sub_batches: list[range]) -> list[Room]:
    """Each sub-batch's rows: residuals, which stages change in place, and an area for what lies between them.

    Before attention the area holds q, k, v and attention's outputs, after it SwiGLU's rows. Rows of residuals have
    magnitudes of their own, the others share some. Raises `ValueError` when there is no room.
    """
    lanes, c = config.gemm.row_lanes, decoder.config
    q, k, v, hidden, ffn = (width // lanes for width in (*decoder.widths, c.hidden, c.ffn))
    batch = sub_batches[-1].stop
    spare = 0 if decoder.fused else (config.control.scratch_rows - 2 * batch) // len(sub_batches)
    rooms, word, magnitude = [], 0, 0
    for sequences in sub_batches:
        rows = len(sequences)
        area, other = word + rows * hidden, magnitude + rows
        before = area + rows * (q + k + v)
        if decoder.fused:
            stride = q + k + v
            own = {"q": Matrix(area, stride, other), "k": Matrix(area + q, stride), "v": Matrix(area + q + k, stride)}
            own["middle"] = Matrix(area, ffn, other)
            after = area + rows * ffn
        else:
            own = {"q": Matrix(area, q, other), "k": Matrix(area + rows * q, k, other)}
            own["v"] = Matrix(area + rows * (q + k), v, other)
            own["gate_up"] = Matrix(area, 2 * ffn, other)
            own["middle"] = Matrix(area + rows * 2 * ffn, ffn, other)
            after = area + rows * 3 * ffn
        own["x"] = Matrix(word, hidden, magnitude)
        own["attention"] = Matrix(before, q, other)
        rooms.append(Room(matrices=own, view_magnitude=other + rows, views=max(spare, 0)))
        word, magnitude = max(before + rows * q, after), other + rows + max(spare, 0)
    for name, needed in (("scratch_words", word), ("scratch_rows", magnitude)):
        has = getattr(config.control, name)
        if needed > has:
            raise ValueError(f"control.{name} must be at least {needed} for a batch of {batch}, not {has}")
    return rooms
