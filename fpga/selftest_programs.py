"""Programs of the test of a board: commands, memory before, and what golden says of memory afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fpga.selftest_data import RealHead, RealProjection
from golden.cache.page_table import PageOp, PageStatus, PageTable
from golden.control.commands import LINE_BYTES, Command, Opcode, Wait
from golden.control.memory import pack_angles, pack_calibration, pack_projection, pack_rows, row_bytes
from golden.gemm.core import project
from golden.gemm.epilogue import Function
from golden.hcap.selector import keep_limit
from golden.mha.core import attend
from golden.settings import KvoSettings
from golden.state import HeadState, fixed_mass
from rtl.config import AcceleratorConfig
from sim.compiler.places import Matrix, Placed, Room, page_pieces, state_bytes
from sim.compiler.program import Memory, Queues, Tag
from sim.compiler.split import column_parts
from sim.compiler.stages import Batch, Work, add_dma, add_projections, rows_operands

__all__ = ["Part", "Piece", "Programs"]

_MARGINS = ("run_margin", "estimate_margin", "value_margin")
_SEQUENCE = 0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What must lie in memory at a byte address."""

    label: str
    address: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the test.

    Parameters
    ----------
    name, what: for tables.
    image: byte address and content of what is written to memory before.
    commands: by queue, behind those of the parts before.
    expected: memory afterwards.
    cores: queues whose cycles count.
    """

    name: str
    what: str
    image: list[tuple[int, bytes]] = field(repr=False)
    commands: dict[str, list[Command]] = field(repr=False)
    expected: list[Piece] = field(repr=False)
    cores: list[str]


class Programs:
    """Makes one part after the other; heads are streams of one sequence. Golden's caches go on from part to part.

    Parameters
    ----------
    config: of the accelerator.
    settings: of DSQ and HCAP.
    heads, projections: real data, as `fpga.selftest_data` gives them.
    """

    def __init__(
        self,
        config: AcceleratorConfig,
        settings: KvoSettings,
        heads: Sequence[RealHead],
        projections: Sequence[RealProjection],
    ) -> None:
        self.config, self.settings, self.heads, self.projections = config, settings, heads, projections
        self.memory = Memory()
        self._lanes, self._dim = config.gemm.row_lanes, config.dsq.head_dim
        self._row_words = self._dim // self._lanes
        for dense, name in enumerate(("records", "blocks")):
            # Pages of a stream lie side by side, and further streams are not used.
            layout = config.memory_map
            words = layout.pages(bool(dense)) * layout.stride(bool(dense)) * len(heads)
            self.memory.place(name, words * config.dsq.bus_bits // 8)
        self._calibrations = [
            self.memory.place(f"calibration.{head.name}", pack_calibration(head.calibration)) for head in heads
        ]
        self._longest: dict[str, int] = {}
        self._placed = 0
        self._begin()

    def _begin(self) -> None:
        c = self.config
        self.queues = Queues(c.gemm.cores)
        self._taken = dict.fromkeys(self.queues.commands, 0)
        self.pages = PageTable(
            max_sequences=c.cache.max_sequences,
            streams=c.cache.streams,
            max_groups=c.mha.max_groups,
            record_pages=c.cache.record_pages,
            block_pages=c.cache.block_pages,
        )
        self.states = [HeadState(self.settings, head.calibration) for head in self.heads]
        self._state_lines: list[int] = []

    def restart(self) -> None:
        """What follows begins after a reset, with empty caches and rings."""
        self._begin()

    def place_rings(self) -> dict[str, tuple[int, int]]:
        """First line and log2 of the size of each queue's ring, when all parts have been made."""
        made = {}
        for queue, longest in self._longest.items():
            size = max(longest - 1, 0).bit_length()
            made[queue] = self.memory.place(f"ring.{queue}", LINE_BYTES << size), size
        return made

    @property
    def settings_of_registers(self) -> dict[str, int]:
        """Registers of window and pools."""
        regions = self.memory.regions
        return {
            "window_base": 0,
            "window_end": self.memory.end,
            "record_base": regions["records"].line,
            "block_base": regions["blocks"].line,
        }

    def _part(self, name: str, what: str, expected: list[Piece], cores: list[str]) -> Part:
        """All commands and contents since the part before."""
        commands, image = {}, self.memory.image[self._placed :]
        for queue, own in self.queues.commands.items():
            commands[queue] = own[self._taken[queue] :]
            self._taken[queue] = len(own)
            self._longest[queue] = max(self._longest.get(queue, 0), len(own))
        self._placed = len(self.memory.image)
        return Part(name=name, what=what, image=image, commands=commands, expected=expected, cores=cores)

    def _page(self, op: PageOp, stream: int = 0) -> None:
        more = [stream] if op is PageOp.COMMIT else []
        status = getattr(self.pages, op.name.lower())(_SEQUENCE, *more).status
        if status is not PageStatus.OK:
            raise ValueError(f"pages must be enough for so many groups: {op.name} gives {status.name}")
        operands = {"op": int(op), "sequence": _SEQUENCE, "stream": stream}
        self.queues.add("dsq", Tag(0, "page", _SEQUENCE), Opcode.PAGE, operands)

    def _load(self, tag: Tag, line: int, rows: int, wait: Wait) -> Wait:
        """Rows of head_dim elements to the beginning of the scratchpad."""
        operands = rows_operands(Matrix(0, self._row_words), line, rows, self._dim)
        self.queues.add("dma", tag, Opcode.LOAD, operands, wait)
        return self.queues.reached(0, "dma")

    def _append(self, h: int, token: int, source_k: int, source_v: int, wait: Wait) -> None:
        group, place = divmod(token, self.settings.group_tokens)
        operands = {"stream": h, "token": place, "group": group, "source_k": source_k, "source_v": source_v}
        tag = Tag(0, "append", _SEQUENCE, h)
        self.queues.add("dsq", tag, Opcode.APPEND, {**operands, "sequence": _SEQUENCE}, wait)

    def _cache_pieces(self, h: int, groups: Sequence[int]) -> list[Piece]:
        """Records and INT8 tokens of some groups of a head."""
        made, state = [], self.states[h]
        for group in groups:
            what = "record" if group < len(state.closed) else "INT8 tokens"
            label = f"{what} of head {self.heads[h].name}, group {group}"
            owner = _SEQUENCE, h
            pieces = page_pieces(self.config, self.memory.regions, self.pages, owner, state, [group])
            made += [Piece(label=label, address=address, content=content) for address, content in pieces]
        return made

    def dsq(self, groups: int) -> Part:
        """Tokens of ``groups`` groups, each closed when it is full; every CLOSE finds real attention in a state that
        the host has written."""
        n, expected = self.settings.group_tokens, []
        for op in (PageOp.OPEN, PageOp.HOLD):
            self._page(op)
        for group in range(groups):
            self._page(PageOp.BLOCK)
            for h in range(len(self.heads)):
                self._fill_group(h, group)
            compress = group > 0
            if compress:
                self._page(PageOp.RECORD)
            self._state_lines = [self._close(h, group, compress, expected) for h in range(len(self.heads))]
            if compress:
                for stream in range(len(self.heads), self.config.cache.streams):
                    self._page(PageOp.COMMIT, stream)  # a page has a group of all streams
                for op in (PageOp.DROP, PageOp.RELEASE, PageOp.HOLD):
                    self._page(op)
        for h in range(len(self.heads)):
            expected += self._cache_pieces(h, range(groups))
        what = f"{groups * n} tokens of {len(self.heads)} heads to {(groups - 1) * len(self.heads)} records"
        return self._part("dsq", what, expected, ["dsq"])

    def _fill_group(self, h: int, group: int) -> None:
        """As many tokens at a time as the scratchpad holds."""
        head, n, c = self.heads[h], self.settings.group_tokens, self.config.control
        chunk = min(n, c.scratch_rows // 2, c.scratch_words // (2 * self._row_words))
        for begin in range(group * n, (group + 1) * n, chunk):
            span = slice(begin, min(begin + chunk, (group + 1) * n))
            k, v = head.k_rows[span], head.v_rows[span]
            line = self.memory.place(f"rows.{head.name}.{begin}", pack_rows(np.concatenate([k, v])))
            wait = self._load(Tag(0, "load", _SEQUENCE, h), line, 2 * len(k), self.queues.reached(0, "dsq"))
            for i in range(len(k)):
                source = i * self._row_words
                self._append(h, begin + i, source, source + len(k) * self._row_words, wait)
            self.states[h].append(k, v)

    def _close(self, h: int, group: int, compress: bool, expected: list[Piece]) -> int:
        """CLOSE of the group that is full; returns the line of its state."""
        head, state, s = self.heads[h], self.states[h], self.settings
        own = fixed_mass(head.mass[group])[: (group + 1) * s.group_tokens]
        split = state.compressed_tokens
        state.observe(own[:split].reshape(-1, s.group_tokens).sum(axis=1), own[split:])
        line = self.memory.place(f"state.{head.name}.{group}", state_bytes(self.config, state))
        state.close_group()
        operands = {
            "state": line,
            "calibration": self._calibrations[h],
            "sequence": _SEQUENCE,
            "stream": h,
            "salient": s.salient_tokens,
            "groups": group + 1,
            "sinks": 0 if group > 1 else s.sink_tokens,
            "compress": int(compress),
            "group": group - 1 if compress else 0,
            "k_norm": head.calibration.k_norm,
            "v_norm": head.calibration.v_norm,
        }
        self.queues.add("dsq", Tag(0, "close", _SEQUENCE, h), Opcode.CLOSE, operands)
        if compress:
            self.pages.commit(_SEQUENCE, h)
        label = f"state of head {head.name} when group {group} is full"
        expected.append(Piece(label=label, address=line * LINE_BYTES, content=state_bytes(self.config, state)))
        return line

    def attention(self, steps: int) -> Part:
        """Further tokens, each appended and attended from, with the state that DSQ has left."""
        expected: list[Piece] = []
        for step in range(steps):
            for h in range(len(self.heads)):
                self._step("heads", h, step, expected)
        expected += self._after_attention()
        what = f"{steps} queries of {self.config.mha.q_heads} query heads at each of {len(self.heads)} KV heads"
        return self._part("heads", what, expected, ["mha"])

    def _after_attention(self) -> list[Piece]:
        """Tokens of the open group and states of all heads."""
        made = []
        for h, (head, state) in enumerate(zip(self.heads, self.states, strict=True)):
            made += self._cache_pieces(h, [(state.tokens - 1) // self.settings.group_tokens])
            address, content = self._state_lines[h] * LINE_BYTES, state_bytes(self.config, state)
            made.append(Piece(label=f"state of head {head.name} after attention", address=address, content=content))
        return made

    def _step(self, part: str, h: int, step: int, expected: list[Piece]) -> None:
        """A token of a head: its rows loaded, appended, attended from, the outputs stored."""
        head, state, s, q_heads = self.heads[h], self.states[h], self.settings, self.config.mha.q_heads
        token, closed = state.tokens, len(state.closed)
        if h == 0 and token % s.group_tokens == 0:
            self._page(PageOp.BLOCK)
        tag, words = Tag(0, part, _SEQUENCE, h), self._row_words
        k, v, q = head.k_rows[token, None], head.v_rows[token, None], head.q_rows[:, token]
        line = self.memory.place(f"{part}.{head.name}.{step}", pack_rows(np.concatenate([k, v, q])))
        wait = self._load(tag, line, 2 + q_heads, self.queues.reached(0, "mha"))
        self._append(h, token, 0, words, wait)
        operands = {
            "calibration": self._calibrations[h],
            "state": self._state_lines[h],
            "sequence": _SEQUENCE,
            "stream": h,
            "salient": s.salient_tokens,
            "records": closed,
            "tokens": token + 1 - closed * s.group_tokens,
            "drop_count": keep_limit(s.history_drop, closed),
            "shift": head.shift,
            "prune": int(s.prune),
            "load_calibration": 1,
            "use_state": 1,
            "keep": round(s.keep_fraction * 256),
            **{name: KvoSettings.fixed_point(getattr(s, name)) for name in _MARGINS},
            "source": 2 * words,
            "first": 1,
            "target": (2 + q_heads) * words,
            "target_magnitude": 2 + q_heads,
        }
        self.queues.add("mha", tag, Opcode.ATTEND, operands, self.queues.reached(0, "dsq"))
        target = self.memory.place(f"{part}.outputs.{head.name}.{step}", q_heads * row_bytes(self._dim))
        store = rows_operands(Matrix((2 + q_heads) * words, words), target, q_heads, self._dim)
        self.queues.add("dma", tag, Opcode.STORE, store, self.queues.reached(0, "mha"))
        state.append(k, v)
        out, _ = attend(state, q[:, None], shift=head.shift)
        label = f"output of head {head.name}, token {token}, query head"
        expected += self._rows(label, target, out[:, 0].astype(np.int32))

    def _rows(self, label: str, line: int, rows: NDArray[np.int32]) -> list[Piece]:
        """Stored rows."""
        step = row_bytes(rows.shape[1])
        contents = [row.astype("<i4").tobytes() for row in rows]
        return [
            Piece(label=f"{label} {n}", address=line * LINE_BYTES + n * step, content=content)
            for n, content in enumerate(contents)
        ]

    def gemm(self) -> Part:
        """Rows through columns of real projections, split over the cores."""
        expected, cores = [], [name for name in self.queues.commands if name.startswith("gemm")]
        for number in range(len(self.projections)):
            expected += self._project("gemm", number)
        sizes = " and ".join(f"{len(p.projection.weights)} x {p.x.shape[1]}" for p in self.projections)
        return self._part("gemm", f"weights {sizes}, {len(self.projections[0].x)} rows", expected, cores)

    def _project(self, part: str, number: int) -> list[Piece]:
        """LOAD, PROJECT on every core, STORE."""
        given, c = self.projections[number], self.config
        projection, command = given.projection, given.command
        (rows, k), columns = given.x.shape, len(projection.weights)
        width = columns // 2 if command.function is Function.SWIGLU else columns
        name, parts = f"{part}.{given.name}", []
        for n, own in enumerate(column_parts(c, columns, command)):
            weights = projection.part(own.begin, own.end)
            content = pack_projection(weights.weights, weights.columns, c.gemm.columns, c.dsq.bus_bits)
            parts.append((own, self.memory.place(f"{name}.{n}", content)))
        angles = 0
        if given.rotary is not None:
            angles = self.memory.place(f"{name}.angles", pack_angles(*given.rotary))
        source = Matrix(0, k // self._lanes, 0)
        target = Matrix(rows * source.stride, width // self._lanes, rows)
        inputs = self.memory.place(f"{name}.rows", pack_rows(given.x))
        outputs = self.memory.place(f"{name}.outputs", rows * row_bytes(width))
        batch = Batch(index=0, sequences=range(rows), room=Room(matrices={}, view_magnitude=0, views=0))
        batch.last = self.queues.reached(0, "dma")
        add_dma(self.queues, batch, name, Opcode.LOAD, {**rows_operands(source, inputs, rows, k), "magnitude": 0})
        placed = Placed(command=command, k=k, columns=columns, parts=parts)
        work = Work(placed=placed, source=source, target=target, angles=angles)
        add_projections(c, self.queues, batch, name, [work])
        add_dma(self.queues, batch, name, Opcode.STORE, rows_operands(target, outputs, rows, width))
        out, _ = project(
            given.x,
            projection.weights,
            projection.columns,
            command,
            act_bits=c.gemm.act_bits,
            rotary=given.rotary,
        )
        return self._rows(f"projection {given.name}, row", outputs, out)

    def step(self) -> Part:
        """A token of each head into an empty cache, and a projection: what a reset must leave possible."""
        size = len(state_bytes(self.config, self.states[0]))
        first = self.memory.place("step.states", size * len(self.heads))
        lines = size // LINE_BYTES
        self._state_lines = [first + lines * h for h in range(len(self.heads))]
        operands = {"address": first, "lines": lines * len(self.heads)}
        self.queues.add("dma", Tag(0, "fill", _SEQUENCE), Opcode.FILL, operands)
        for op in (PageOp.OPEN, PageOp.HOLD):
            self._page(op)
        expected: list[Piece] = []
        for h in range(len(self.heads)):
            self._step("step", h, 0, expected)
        expected += self._after_attention()
        expected += self._project("step", 0)
        return self._part("step", "a token and a projection after a reset", expected, ["mha", "dsq"])
