"""One decoder layer as the accelerator decodes with it: integer rows in, integer rows out, no float between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import ModelCalibration
from golden.fixed import half_up
from golden.gemm.core import Command, project
from golden.gemm.epilogue import Function
from golden.gemm.weights import Projection, identity_projection
from golden.integer_model import ACTIVATION_BITS, IntegerLayer
from golden.kvo_method import score_shift
from golden.mha.core import Fetch, attend
from golden.model.llama import ModelConfig
from golden.settings import KvoSettings
from golden.state import HeadState

__all__ = ["KV_MODES", "DecoderLayer", "Step", "swiglu_block"]

Rows = NDArray[np.int32]
Rotary = tuple[NDArray[np.int64], NDArray[np.int64]]

#: all tokens stay INT8; groups are compressed; and what HCAP does not select is not fetched
KV_MODES = ("dense", "dsq", "dsq+hcap")


def swiglu_block(ffn: int) -> int:
    """Columns of a row that a pass for SwiGLU alone takes ``2 * ffn`` columns as, so that blocks and their halves of 32
    bits are whole lines of memory. Raises ``ValueError`` when there is no such number."""
    block = next((size for size in (64, 32) if 2 * ffn % size == 0), None)
    if block is None:
        raise ValueError(f"ffn must be a multiple of 16, not {ffn!r}")
    return block


@dataclass(frozen=True, kw_only=True)
class Step:
    """The rows ``[n, ...]`` of one token of each of n sequences, between the stages of a layer."""

    qkv: Rows  # INT16, turned
    attention: Rows  # in the unit of the coarsest KV head
    after: Rows  # residuals after attention
    middle: Rows  # SwiGLU's output
    out: Rows
    fetches: list[list[Fetch]]  # what each sequence and KV head has read


class DecoderLayer:
    """Decodes token by token, several sequences at once, each with its own cache: ``sequences[i][kv_head]``.

    Parameters
    ----------
    config: shape of the model.
    projections: of the layer, with their commands.
    calibration, layer: of the model, and which of its layers this is.
    settings: of DSQ and HCAP; ``prune`` follows from ``kv``.
    rotary: cosines and sines ``[T, head_dim / 2]`` of positions ``[T]``, 14 fraction bits.
    kv: one of `KV_MODES`.
    fused: otherwise q, k and v are projections of their own, each of which normalizes again, and rotary embedding and
        SwiGLU are passes of their own over their results: projections by one, of heads and of blocks of columns.
    """

    def __init__(
        self,
        config: ModelConfig,
        projections: IntegerLayer,
        calibration: ModelCalibration,
        layer: int,
        settings: KvoSettings,
        *,
        rotary: Callable[[NDArray[np.integer]], Rotary],
        kv: str = "dsq+hcap",
        fused: bool = True,
        act_bits: int = ACTIVATION_BITS,
    ) -> None:
        if kv not in KV_MODES:
            raise ValueError(f"kv must be one of {', '.join(KV_MODES)}, not {kv!r}")
        self.config, self.projections, self.calibration, self.layer = config, projections, calibration, layer
        self.settings = replace(settings, prune=kv == "dsq+hcap")
        self.rotary, self.kv, self.fused, self.act_bits = rotary, kv, fused, act_bits
        self.sequences: list[list[HeadState]] = []

    @property
    def shared(self) -> int:
        """Query heads that share a KV head."""
        return self.config.q_heads // self.config.kv_heads

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of q, k and v."""
        c = self.config
        return c.q_heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim

    def score_shift(self, kv_head: int) -> int:
        """``shift`` of `attend`."""
        c, i = self.calibration, (self.layer, kv_head)
        return score_shift(int(c.q_fraction[i]), int(c.k_fraction[i]), self.config.head_dim)

    def out_shift(self, kv_head: int) -> int:
        """Right shift from the unit of a KV head's outputs to that of the coarsest one."""
        return int(self.calibration.v_fraction[self.layer, kv_head]) - self.projections.v_fraction

    def open(self, heads: Sequence[HeadState] | None = None) -> int:
        """Begin a sequence, empty or with copies of the caches of its KV heads; returns its index."""
        if heads is None:
            c = self.config
            heads = [HeadState(self.settings, self.calibration.head(self.layer, h)) for h in range(c.kv_heads)]
        if self.kv == "dense" and any(state.closed for state in heads):
            raise ValueError("heads of a dense cache must have no compressed groups")
        self.sequences.append([state.copy() for state in heads])
        for state in self.sequences[-1]:
            state.settings = self.settings
        return len(self.sequences) - 1

    def step(
        self, sequences: Sequence[int], x: NDArray[np.integer], positions: NDArray[np.integer] | None = None
    ) -> Step:
        """The next token of each of ``sequences``, whose residuals are ``x[n, hidden]``.

        positions: those of the tokens, if they are not the numbers of tokens before.
        """
        residuals = x.astype(np.int32)
        if positions is None:
            positions = np.array([self.sequences[i][0].tokens for i in sequences])
        own = self.projections
        qkv = self._qkv(residuals, self.rotary(positions))
        attended = [self._attend(self.sequences[i], row) for i, row in zip(sequences, qkv, strict=True)]
        attention = np.stack([rows for rows, _ in attended])
        after = self._project(attention, own.attention_output, Command(), residual=residuals)
        middle = self._middle(after)
        return Step(
            qkv=qkv,
            attention=attention,
            after=after,
            middle=middle,
            out=self._project(middle, own.down, Command(), residual=after),
            fetches=[fetches for _, fetches in attended],
        )

    def _qkv(self, x: Rows, rotary: Rotary) -> Rows:
        own, command = self.projections, self.projections.qkv_command
        if self.fused:
            return self._project(x, own.qkv, command, rotary=rotary)
        plain = Command(norm=command.norm, epsilon=command.epsilon, narrow=True)
        bounds = np.cumsum([0, *self.widths]).tolist()
        parts = [self._project(x, own.qkv.part(begin, end), plain) for begin, end in pairwise(bounds)]
        return np.concatenate([self._turn(parts[0], rotary), self._turn(parts[1], rotary), parts[2]], axis=1)

    def _turn(self, rows: Rows, rotary: Rotary) -> Rows:
        """Rotary embedding as a pass of its own, each head a row."""
        dim = self.config.head_dim
        heads = rows.reshape(-1, dim)
        angles = tuple(np.repeat(table, rows.shape[1] // dim, axis=0) for table in rotary)
        command = replace(self.projections.qkv_command, norm=Command().norm, epsilon=0, rotary_columns=dim)
        turned = self._project(heads, identity_projection(dim), command, rotary=(angles[0], angles[1]))
        return turned.reshape(rows.shape)

    def _middle(self, after: Rows) -> Rows:
        own, command = self.projections, self.projections.gate_up_command
        if self.fused:
            return self._project(after, own.gate_up, command)
        pairs = self._project(after, own.gate_up, Command(norm=command.norm, epsilon=command.epsilon))
        block = swiglu_block(self.config.ffn)
        swiglu = Command(function=Function.SWIGLU)
        return self._project(pairs.reshape(-1, block), identity_projection(block), swiglu).reshape(len(after), -1)

    def _attend(self, heads: Sequence[HeadState], qkv: Rows) -> tuple[Rows, list[Fetch]]:
        """A token into the caches of its sequence, and its attention: a row, and what each head has read."""
        dim, n = self.config.head_dim, self.settings.group_tokens
        q, k, v = np.split(qkv.astype(np.int16).reshape(-1, dim), np.cumsum(self.widths)[:2] // dim)
        rows, fetches = [], []
        for h, state in enumerate(heads):
            state.append(k[h : h + 1], v[h : h + 1])
            queries = q[h * self.shared : (h + 1) * self.shared, None]
            out, fetch = attend(state, queries, shift=self.score_shift(h))
            rows.append(half_up(out, self.out_shift(h)).ravel())
            fetches.append(fetch)
            if self.kv != "dense" and state.tokens % n == 0:
                state.close_group()
        return np.concatenate(rows).astype(np.int32), fetches

    def _project(
        self,
        x: Rows,
        projection: Projection,
        command: Command,
        *,
        rotary: Rotary | None = None,
        residual: Rows | None = None,
    ) -> Rows:
        rows, _ = project(
            x,
            projection.weights,
            projection.columns,
            command,
            act_bits=self.act_bits,
            rotary=rotary,
            residual=residual,
        )
        return rows
