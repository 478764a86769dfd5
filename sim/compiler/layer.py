"""A decoder layer and a batch to commands: every stage in its order, sub-batch by sub-batch."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.cache.page_table import PageOp, PageStatus, PageTable
from golden.control.commands import LINE_BYTES, Opcode, Wait
from golden.control.memory import row_bytes
from golden.decoder import DecoderLayer, swiglu_block
from golden.hcap.selector import keep_limit
from golden.settings import KvoSettings
from rtl.config import AcceleratorConfig
from sim.compiler.places import Matrix, place_batch, place_pages, place_projections, scratch_rooms
from sim.compiler.program import KINDS, Memory, Program, Queues, Tag
from sim.compiler.stages import Batch, Work, add_dma, add_pass, add_projections, rows_operands

__all__ = ["SCHEDULES", "compile_layer"]

#: one stage after the other for the whole batch; or sub-batches, of which one attends while another is projected
SCHEDULES = ("serial", "interleaved")


def compile_layer(
    config: AcceleratorConfig,
    decoder: DecoderLayer,
    x: NDArray[np.integer],
    *,
    positions: NDArray[np.integer] | None = None,
    schedule: str = "interleaved",
    sub_batches: int = 2,
) -> Program:
    """Commands that do what ``decoder.step`` does with ``x[steps, n, hidden]`` for all its n sequences.

    The decoder is not changed. Sequence i has number i in the page table, KV head h is stream h. positions: ``[steps,
    n]``, if they are not the numbers of tokens before. sub_batches: at most so many, with the interleaved schedule.

    A queue's commands are in an order in which all could be carried out one by one, so nothing waits for ever. Of a
    sub-batch each stage waits for the one before; ATTEND waits for the APPEND of its head (serial: for all). A full
    group is closed before the next token's APPEND (serial: right after attention), when its sequence has been attended
    to. A sub-batch's projections after attention stand in front of its next token's QKV, both behind the other
    sub-batches' attention, so that projections and attention of different ones overlap.

    Raises `ValueError` when the hardware is too small or made for another model.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if sub_batches < 1:
        raise ValueError(f"sub_batches must be at least 1, not {sub_batches!r}")
    _check(config, decoder, x)
    made = _Compiler(config, decoder, x, positions, 1 if schedule == "serial" else sub_batches, schedule == "serial")
    return made.compile()


def _check(config: AcceleratorConfig, decoder: DecoderLayer, x: NDArray[np.integer]) -> None:
    """Whether the hardware can serve the layer."""
    c, s, d = decoder.config, decoder.settings, config.dsq
    expected = {
        "dsq.head_dim": (d.head_dim, c.head_dim),
        "dsq.group_tokens": (d.group_tokens, s.group_tokens),
        "dsq.delta_bits": (d.delta_bits, s.delta_bits),
        "dsq.bus_bits": (d.bus_bits, s.bus_bits),
        "mha.q_heads": (config.mha.q_heads, decoder.shared),
        "mha.tile_groups": (config.mha.tile_groups, s.tile_groups),
        "cache.streams": (config.cache.streams, c.kv_heads),
        "gemm.act_bits": (config.gemm.act_bits, decoder.act_bits),
    }
    for name, (has, needs) in expected.items():
        if has != needs:
            raise ValueError(f"{name} must be {needs} for this model, not {has}")
    lanes = config.gemm.row_lanes
    for name, size in (("head_dim", c.head_dim), ("hidden", c.hidden), ("ffn", c.ffn)):
        if size % lanes:
            raise ValueError(f"{name} must be a multiple of gemm.row_lanes={lanes}, not {size}")
    if not decoder.fused and (c.head_dim % 16 or swiglu_block(c.ffn) // 2 % lanes):
        raise ValueError(f"passes of their own need heads of whole lines and rows of whole words, not {c.head_dim}")
    if s.salient_tokens > d.max_salient:
        raise ValueError(f"dsq.max_salient must be at least {s.salient_tokens}, not {d.max_salient}")
    n = len(decoder.sequences)
    if not 1 <= n <= config.cache.max_sequences:
        raise ValueError(f"sequences must be from 1 to cache.max_sequences={config.cache.max_sequences}, not {n}")
    if x.ndim != 3 or x.shape[1:] != (n, c.hidden):
        raise ValueError(f"x must have the shape [steps, {n}, {c.hidden}], not {list(x.shape)}")


class _Compiler:
    """Adds stage after stage; ``tokens`` and ``closed`` are those of each sequence so far."""

    def __init__(
        self,
        config: AcceleratorConfig,
        decoder: DecoderLayer,
        x: NDArray[np.integer],
        positions: NDArray[np.integer] | None,
        sub_batches: int,
        serial: bool,
    ) -> None:
        self.config, self.decoder, self.serial, self.steps = config, decoder, serial, len(x)
        self.tokens = [states[0].tokens for states in decoder.sequences]
        self.closed = [len(states[0].closed) for states in decoder.sequences]
        n = len(self.tokens)
        bounds = [n * s // min(sub_batches, n) for s in range(min(sub_batches, n) + 1)]
        parts = [range(begin, end) for begin, end in pairwise(bounds)]
        needed = len(KINDS) * len(parts)
        if needed > config.control.semaphores:
            raise ValueError(f"control.semaphores must be at least {needed}, not {config.control.semaphores}")
        if positions is None:
            positions = np.array(self.tokens) + np.arange(self.steps)[:, None]
        self.memory, self.queues = Memory(), Queues(config.gemm.cores)
        self.projections = place_projections(self.memory, config, decoder)
        self.angles = place_batch(self.memory, config, decoder, x, positions, parts)
        rooms = scratch_rooms(config, decoder, parts)
        self.batches = [Batch(index=i, sequences=p, room=r) for i, (p, r) in enumerate(zip(parts, rooms, strict=True))]
        cache = config.cache
        self.pages = PageTable(
            max_sequences=cache.max_sequences,
            streams=cache.streams,
            max_groups=config.mha.max_groups,
            record_pages=cache.record_pages,
            block_pages=cache.block_pages,
        )
        self.stream: int | None = None  # whose calibration the attention core has

    def compile(self) -> Program:
        """All steps."""
        for batch in self.batches:
            for i in batch.sequences:
                self._open(batch, i)
        setup = {name: len(commands) for name, commands in self.queues.commands.items()}
        place_pages(self.memory, self.config, self.decoder.sequences, self.pages)
        for step in range(self.steps):
            for batch in self.batches:
                if step:
                    self._finish(batch, step - 1)
                self._begin(batch, step)
        for batch in self.batches:
            self._finish(batch, self.steps - 1)
            self._close(batch)
        for name, commands in self.queues.commands.items():
            self.memory.place(f"ring.{name}", LINE_BYTES << max(len(commands) - 1, 0).bit_length())
        size, bits = self.memory.end * LINE_BYTES, self.config.cache.addr_bits
        if size > 1 << bits:
            raise ValueError(f"cache.addr_bits must be enough for {size} bytes, not {bits}")
        return Program(
            config=self.config,
            hidden=self.decoder.config.hidden,
            steps=self.steps,
            queues=self.queues.commands,
            setup=setup,
            regions=self.memory.regions,
            image=self.memory.image,
            semaphores=len(KINDS) * len(self.batches),
            tags={number: tag for tag, number in self.queues.tags.items()},
            sub_batches=[batch.sequences for batch in self.batches],
            pages=self.pages,
        )

    def _line(self, name: str) -> int:
        return self.memory.regions[name].line

    def _page(self, batch: Batch, i: int, op: PageOp, stream: int = 0, wait: Wait | None = None) -> None:
        """A command of the page table; refused ones are noticed here."""
        more = [stream] if op is PageOp.COMMIT else []
        status = getattr(self.pages, op.name.lower())(i, *more).status
        if status is not PageStatus.OK:
            raise ValueError(f"pages must be enough for sequence {i}: {op.name} gives {status.name}")
        operands = {"op": int(op), "sequence": i, "stream": stream}
        self.queues.add("dsq", Tag(batch.index, "page", i), Opcode.PAGE, operands, wait)

    def _open(self, batch: Batch, i: int) -> None:
        """A sequence with the pages that it has already, held for its readers."""
        n = self.config.dsq.group_tokens
        self._page(batch, i, PageOp.OPEN)
        for _ in range(self.closed[i]):
            for op in (PageOp.BLOCK, PageOp.RECORD):
                self._page(batch, i, op)
            for stream in range(self.config.cache.streams):
                self._page(batch, i, PageOp.COMMIT, stream)
            self._page(batch, i, PageOp.RELEASE)
        for _ in range(-(-self.tokens[i] // n) - self.closed[i]):
            self._page(batch, i, PageOp.BLOCK)
        self._page(batch, i, PageOp.HOLD)
        if self.decoder.kv != "dense" and not self.tokens[i]:
            lines = self._state_lines * self.config.cache.streams
            operands = {"address": self._state(i, 0), "lines": lines}
            self.queues.add("dma", Tag(batch.index, "fill", i), Opcode.FILL, operands)

    @property
    def _state_lines(self) -> int:
        return self.memory.regions["states"].lines // (len(self.tokens) * self.config.cache.streams)

    def _state(self, i: int, h: int) -> int:
        return self._line("states") + (i * self.config.cache.streams + h) * self._state_lines

    def _rows(self, batch: Batch, name: str, step: int) -> int:
        """Line of a sub-batch's residuals of a step among the inputs or outputs."""
        row = step * len(self.tokens) + batch.sequences.start
        return self._line(name) + row * row_bytes(self.decoder.config.hidden) // LINE_BYTES

    def _begin(self, batch: Batch, step: int) -> None:
        """From residuals to attention."""
        own, c, x = batch.room.matrices, self.decoder.config, batch.room.matrices["x"]
        load = rows_operands(x, self._rows(batch, "inputs", step), len(batch.sequences), c.hidden)
        add_dma(self.queues, batch, "load", Opcode.LOAD, {**load, "magnitude": x.magnitude})
        if self.decoder.fused:
            angles, target = self.angles[step, batch.index, "qkv"], own["q"]
            work = Work(placed=self.projections["qkv"], source=x, target=target, angles=angles)
            add_projections(self.config, self.queues, batch, "qkv", [work])
        else:
            self._unfused_qkv(batch, step)
        self._close(batch)
        appended = self._append(batch)
        attended = self._attend(batch, appended)
        n = self.config.dsq.group_tokens
        for i in batch.sequences:
            self.tokens[i] += 1
            if self.decoder.kv != "dense" and self.tokens[i] % n == 0:
                batch.closes.append((i, attended[i]))
        if self.serial:
            self._close(batch)

    def _unfused_qkv(self, batch: Batch, step: int) -> None:
        """Three projections, then q and k turned in passes of their own."""
        own, c = batch.room.matrices, self.decoder.config
        works = [Work(placed=self.projections[name], source=own["x"], target=own[name]) for name in "qkv"]
        add_projections(self.config, self.queues, batch, "qkv", works)
        self._spill(batch, "q", "k", "v")
        for name, heads in (("q", c.q_heads), ("k", c.kv_heads)):
            view = own[name]._replace(stride=c.head_dim // self.config.gemm.row_lanes)
            angles = self.angles[step, batch.index, name]
            work = Work(placed=self.projections["rotary"], source=view, target=view, angles=angles)
            line = self._line(f"spill.{batch.index}.{name}")
            add_pass(self.config, self.queues, batch, "rotary", work, line, heads * len(batch.sequences))
        self._spill(batch, "q", "k")
        self._fetch(batch, "q", "k", "v")

    def _widths(self) -> dict[str, int]:
        c, (q, k, v) = self.decoder.config, self.decoder.widths
        return {"q": q, "k": k, "v": v, "attention": q, "x": c.hidden, "gate_up": 2 * c.ffn, "middle": c.ffn}

    def _spilled(self, batch: Batch, name: str) -> dict[str, int]:
        line, rows = self._line(f"spill.{batch.index}.{name}"), len(batch.sequences)
        return rows_operands(batch.room.matrices[name], line, rows, self._widths()[name])

    def _spill(self, batch: Batch, *names: str) -> None:
        """Rows to memory."""
        operands = [self._spilled(batch, name) for name in names]
        add_dma(self.queues, batch, "spill", Opcode.STORE, *operands)

    def _fetch(self, batch: Batch, *names: str) -> None:
        """And back."""
        magnitudes = [batch.room.matrices[name].magnitude for name in names]
        operands = [{**self._spilled(batch, n), "magnitude": m} for n, m in zip(names, magnitudes, strict=True)]
        add_dma(self.queues, batch, "fetch", Opcode.LOAD, *operands)

    def _append(self, batch: Batch) -> dict[tuple[int, int], Wait]:
        """K and V into the caches; returns when that of each sequence and head is there."""
        n, lanes, own = self.config.dsq.group_tokens, self.config.gemm.row_lanes, batch.room.matrices
        done = {}
        for row, i in enumerate(batch.sequences):
            group, token = divmod(self.tokens[i], n)
            if not token:
                self._page(batch, i, PageOp.BLOCK)
            for h in range(self.decoder.config.kv_heads):
                place = h * self.config.dsq.head_dim // lanes
                k, v = (own[name].base + row * own[name].stride + place for name in "kv")
                operands = {"sequence": i, "stream": h, "token": token, "group": group, "source_k": k, "source_v": v}
                self.queues.add("dsq", Tag(batch.index, "append", i, h), Opcode.APPEND, operands, batch.last)
                done[i, h] = self.queues.reached(batch.index, "dsq")
        batch.last = self.queues.reached(batch.index, "dsq")
        return done

    def _attend(self, batch: Batch, appended: dict[tuple[int, int], Wait]) -> dict[int, Wait]:
        """Attention of all heads; returns when that of each sequence is complete."""
        s, d, own = self.decoder.settings, self.decoder, batch.room.matrices
        lanes = self.config.gemm.row_lanes
        margins = {name: KvoSettings.fixed_point(getattr(s, name)) for name in _MARGINS}
        done = {}
        for row, i in enumerate(batch.sequences):
            records = self.closed[i]
            for h in range(d.config.kv_heads):
                place = h * d.shared * d.config.head_dim // lanes
                source, target = (own[name].base + row * own[name].stride + place for name in ("q", "attention"))
                operands = {
                    "calibration": self._line(f"calibration.{h}"),
                    "sequence": i,
                    "stream": h,
                    "salient": s.salient_tokens,
                    "records": records,
                    "tokens": self.tokens[i] + 1 - records * s.group_tokens,
                    "drop_count": keep_limit(s.history_drop, records) if s.prune else 0,
                    "shift": d.score_shift(h),
                    "prune": int(s.prune),
                    "load_calibration": int(self.stream != h),
                    "keep": round(s.keep_fraction * 256),
                    **margins,
                    "source": source,
                    "out_shift": d.out_shift(h),
                    "first": int(h == 0),
                    "target": target,
                    "target_magnitude": own["attention"].magnitude + row,
                }
                if d.kv != "dense":
                    operands |= {"use_state": 1, "state": self._state(i, h)}
                wait = batch.last if self.serial else appended[i, h]
                self.queues.add("mha", Tag(batch.index, "attend", i, h), Opcode.ATTEND, operands, wait)
                self.stream = h
            done[i] = self.queues.reached(batch.index, "mha")
        batch.last = self.queues.reached(batch.index, "mha")
        return done

    def _close(self, batch: Batch) -> None:
        """Groups that are full: history moves on, the waiting group becomes a record, its block is given up."""
        n, s = self.config.dsq.group_tokens, self.decoder.settings
        for i, own in batch.closes:
            attended = batch.last if self.serial else own
            groups, group = self.tokens[i] // n, self.closed[i]
            compress = groups >= group + 2
            if compress:
                self._page(batch, i, PageOp.RECORD, wait=attended)
            for h in range(self.decoder.config.kv_heads):
                calibration = self.decoder.calibration.head(self.decoder.layer, h)
                operands = {
                    "state": self._state(i, h),
                    "calibration": self._line(f"calibration.{h}"),
                    "sequence": i,
                    "stream": h,
                    "salient": s.salient_tokens,
                    "groups": groups,
                    "sinks": 0 if group else s.sink_tokens,
                    "compress": int(compress),
                    "group": group if compress else 0,
                    "k_norm": calibration.k_norm,
                    "v_norm": calibration.v_norm,
                }
                self.queues.add("dsq", Tag(batch.index, "close", i, h), Opcode.CLOSE, operands, attended)
                if compress:
                    self.pages.commit(i, h)
            if compress:
                for op in (PageOp.DROP, PageOp.RELEASE, PageOp.HOLD):
                    self._page(batch, i, op)
                self.closed[i] += 1
        if batch.closes and self.serial:
            batch.last = self.queues.reached(batch.index, "dsq")
        batch.closes.clear()

    def _finish(self, batch: Batch, step: int) -> None:
        """From attention to residuals."""
        own, fused = batch.room.matrices, self.decoder.fused
        if not fused:
            self._spill(batch, "attention")
            self._fetch(batch, "attention")
        after = self._project(batch, "attention_output", "attention", "x", 1, residual=own["x"])
        parts = self._project(batch, "gate_up", "x", "middle", after) if fused else self._unfused_middle(batch)
        self._project(batch, "down", "middle", "x", parts, residual=own["x"])
        line, hidden = self._rows(batch, "outputs", step), self.decoder.config.hidden
        add_dma(self.queues, batch, "store", Opcode.STORE, rows_operands(own["x"], line, len(batch.sequences), hidden))

    def _project(
        self, batch: Batch, name: str, source: str, target: str, parts: int, residual: Matrix | None = None
    ) -> int:
        """A projection as a stage; returns who has written its rows."""
        placed, own = self.projections[name], batch.room.matrices
        work = Work(placed=placed, source=own[source], target=own[target], parts=parts, residual=residual)
        add_projections(self.config, self.queues, batch, name, [work])
        return placed.mask

    def _unfused_middle(self, batch: Batch) -> int:
        """Gate and up as a projection, SwiGLU as a pass of its own; returns who has written the rows."""
        own, c, lanes = batch.room.matrices, self.decoder.config, self.config.gemm.row_lanes
        self._spill(batch, "x")
        self._fetch(batch, "x")
        self._project(batch, "gate_up", "x", "gate_up", 1)
        self._spill(batch, "gate_up")
        block = swiglu_block(c.ffn)
        source = own["gate_up"]._replace(stride=block // lanes)
        target = own["middle"]._replace(stride=block // 2 // lanes)
        work = Work(placed=self.projections["swiglu"], source=source, target=target)
        line = self._line(f"spill.{batch.index}.gate_up")
        add_pass(self.config, self.queues, batch, "swiglu", work, line, len(batch.sequences) * 2 * c.ffn // block)
        self._spill(batch, "middle")
        self._fetch(batch, "middle")
        return 1


_MARGINS: Sequence[str] = ("run_margin", "estimate_margin", "value_margin")
