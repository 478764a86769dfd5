"""Decoding work in the shape of a Llama-2-7B layer: real caches and queries, two heads of a small model side by side.

No weights of that model are needed. A KV head of 128 channels is two KV heads of the embedded model with 64 each, its
query a query head of each. The QKV projection is made so that the residuals of the new tokens, which are orthogonal
patterns of two values, give just these rows; the other projections are random. What the accelerator is given is an
ordinary layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import HEADROOM, ModelCalibration, calibrate_head, calibration_for, fixed_rows, to_fixed
from golden.decoder import DecoderLayer
from golden.errors import UserError
from golden.gemm.core import Command
from golden.gemm.epilogue import GATE_FRACTION_BITS, ROTARY_FRACTION_BITS, Function
from golden.gemm.prologue import Norm
from golden.gemm.weights import Projection, epsilon_code, quantize_projection
from golden.heads import query_rows
from golden.integer_model import RESIDUAL_FRACTION_BITS
from golden.model import Model, ModelConfig, Prefill, prefill, texts
from golden.settings import LOG2E
from golden.state import HeadState
from rtl.config import AcceleratorConfig
from sim.batches import Batch, settings_for
from sim.workloads import joined_rows, joined_votes

__all__ = ["FFN", "HEADS", "HIDDEN", "MadeLayer", "ShapeMaker", "patterns", "shape", "spread"]

HIDDEN, HEADS, FFN = 4096, 32, 11008
#: tokens of calibration, as many as for the model itself
_CALIBRATION_TOKENS = 4096
_UNIT = 2.0**-RESIDUAL_FRACTION_BITS


def shape(head_dim: int, heads: int = HEADS, ffn: int = FFN) -> ModelConfig:
    """A layer with so many heads, each with a KV head of its own."""
    return ModelConfig(
        name="llama2-7b shape",
        layers=1,
        hidden=HIDDEN,
        q_heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=1,
        rope_base=1e4,
        norm_eps=1e-5,
        context_length=4096,
    )


def spread(heads: int, pairs: int) -> list[int]:
    """So many of the ``pairs`` of heads, far from each other; some twice when there are not enough."""
    return [i * pairs // heads for i in range(heads)]


def patterns(count: int, draw: np.random.Generator) -> NDArray[np.int32]:
    """Rows ``[count, HIDDEN]`` of 1 and -1, orthogonal: of a Hadamard matrix, columns with random signs."""
    rows = draw.choice(HIDDEN, count, replace=False)
    parity = np.bitwise_count(rows[:, None] & np.arange(HIDDEN)) & 1
    return (1 - 2 * parity.astype(np.int32)) * draw.choice(np.array([-1, 1], np.int32), HIDDEN)


@dataclass(frozen=True, kw_only=True)
class MadeLayer:
    """The members of `IntegerLayer`."""

    qkv: Projection
    attention_output: Projection
    gate_up: Projection
    down: Projection
    v_fraction: int
    qkv_command: Command
    gate_up_command: Command


def _rotary(positions: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Angles of zero: the rows of the caches have been turned already."""
    cos = np.full((len(positions), 64), 1 << ROTARY_FRACTION_BITS, np.int64)
    return cos, np.zeros_like(cos)


class ShapeMaker:
    """Makes batches of a layer of that shape, as `BatchMaker` does of a model's.

    Parameters
    ----------
    config : of the accelerator, whose heads have twice the model's channels
    model : whose heads are paired
    pairs : which two of all its KV heads, neighbours in their order, each KV head of the layer is
    ffn : of the layer

    Texts take turns; a context beyond the model's own is made of several texts, one behind the other.
    """

    def __init__(
        self, config: AcceleratorConfig, model: Model, pairs: Sequence[int], *, ffn: int = FFN, progress: bool = False
    ) -> None:
        c = model.config
        if config.dsq.head_dim != 2 * c.head_dim or config.mha.q_heads != 1:
            raise UserError(f"heads of {c.name} in pairs are {2 * c.head_dim} channels and one query, not the preset's")
        self.config, self.model, self.pairs, self.progress = config, model, list(pairs), progress
        self.shape = shape(2 * c.head_dim, len(self.pairs), ffn)
        self.settings = settings_for(config)
        self.calibration = self._calibrate()
        self._loaded: dict[tuple[str, int, int, int], HeadState] = {}
        self._queries: dict[tuple[str, int, int], NDArray[np.float32]] = {}

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, new ones included."""
        return self.model.config.context_length * (len(texts.names()) + 1)

    def _members(self, h: int) -> list[tuple[int, int]]:
        """Layer and KV head of both that make up KV head h."""
        heads = self.model.config.kv_heads
        return [divmod(2 * self.pairs[h] + i, heads) for i in range(2)]

    def _calibrate(self) -> ModelCalibration:
        """Tables of every KV head, from the calibration text."""
        own = calibration_for(self.model, self.settings, progress=self.progress)
        sample = prefill(self.model, texts.CALIBRATION, _CALIBRATION_TOKENS, progress=self.progress)
        count, s = len(self.pairs), self.settings
        numbers = {f"{n}_fraction": np.zeros((1, count), np.int64) for n in "qkv"}
        numbers |= {f"{n}_norm": np.zeros((1, count), np.int64) for n in "kv"}
        rows = {n: np.zeros((1, count, self.shape.head_dim), np.int64) for n in ("k_shape", "v_shape", "v_mean")}
        made = ModelCalibration(**numbers, **rows, delta_bits=s.delta_bits)
        parts = []
        for name in ("k", "v", "block_mass"):
            every = getattr(sample, name)
            pairs = [[np.asarray(every[m], np.float32) for m in self._members(h)] for h in range(count)]
            joined = [sum(p) / 2 if name == "block_mass" else np.concatenate(p, axis=1) for p in pairs]
            parts.append(np.stack(joined)[None])
        paired = Prefill(tokens=sample.tokens, k=parts[0], v=parts[1], hidden=sample.hidden, block_mass=parts[2])
        for h in range(count):
            fraction = min(int(own.q_fraction[m]) for m in self._members(h))
            calibrate_head(made, (0, h), paired, s, 32767 / HEADROOM * 2.0**-fraction)
        return made

    def samples(self, name: str, tokens: int) -> list[Prefill]:
        """Prefills that have so many tokens together, that of the named text last."""
        longest = self.model.config.context_length
        if tokens > self.longest:
            raise UserError(f"a context must be at most {self.longest} tokens, new ones included, not {tokens}")
        names = [texts.CALIBRATION, *(other for other in texts.names() if other != name), name]
        needed = -(-tokens // longest)
        return [prefill(self.model, n, longest, progress=self.progress) for n in names[len(names) - needed :]]

    def head(
        self, name: str, samples: Sequence[Prefill], first: int, context: int, h: int, *, dense: bool
    ) -> HeadState:
        """The cache of KV head h with so many tokens of the samples from the ``first`` on."""
        n = self.settings.group_tokens
        whole = 0 if dense else context // n * n
        key = (name, first, whole, h)
        span = slice(first, first + context)
        k_rows, v_rows = self._rows(samples, h, span)
        if key not in self._loaded:
            state = HeadState(self.settings, self.calibration.head(0, h))
            if whole:
                votes = sum(joined_votes(samples, *m, first, whole) for m in self._members(h)) / 2
                state.load(k_rows[:whole], v_rows[:whole], votes.reshape(whole // n, -1, whole).sum(axis=1))
            self._loaded[key] = state
        state = self._loaded[key].copy()
        state.append(k_rows[whole:], v_rows[whole:])
        return state

    def first(self, samples: Sequence[Prefill], tokens: int) -> int:
        """The first of so many tokens of samples: of one text the first, else such that groups begin where votes do."""
        total, n = sum(s.k.shape[2] for s in samples), self.settings.group_tokens
        return 0 if len(samples) == 1 else (total - tokens) // n * n

    def _rows(self, samples: Sequence[Prefill], h: int, span: slice) -> Any:
        """INT16 rows of K and V of a KV head."""
        parts = [
            np.concatenate([joined_rows([getattr(s, n) for s in samples], *m)[span] for m in self._members(h)], axis=1)
            for n in "kv"
        ]
        return fixed_rows(self.calibration, 0, h, *parts)

    def queries(self, name: str, samples: Sequence[Prefill], context: int, steps: int) -> NDArray[np.int16]:
        """INT16 query rows ``[heads, steps, head_dim]`` of the tokens behind a context."""
        before = sum(s.k.shape[2] for s in samples[:-1])
        end = self.first(samples, context + steps) + context + steps - before
        key = (name, end, steps)
        if key not in self._queries:
            c = self.model.config
            every = np.stack(list(query_rows(self.model, samples[-1], end, steps)))
            self._queries[key] = every[:, :: c.q_heads // c.kv_heads]
        every, rows = self._queries[key], []
        scale = np.float32(LOG2E / np.sqrt(self.shape.head_dim))
        for h in range(len(self.pairs)):
            q = np.concatenate([every[m] for m in self._members(h)], axis=1)
            rows.append(to_fixed(q * scale, int(self.calibration.q_fraction[0, h])))
        return np.stack(rows)

    def query(self, name: str, context: int, h: int) -> tuple[HeadState, NDArray[np.int16]]:
        """The cache of KV head h in which the token behind a context is, too, and that token's query ``[head_dim]``."""
        samples = self.samples(name, context + 1)
        first = self.first(samples, context + 1)
        state = self.head(name, samples, first, context, h, dense=False)
        self._loaded.clear()
        state.append(*self._rows(samples, h, slice(first + context, first + context + 1)))
        return state, self.queries(name, samples, context, 1)[h, 0]

    def make(self, contexts: Sequence[int], steps: int, *, kv: str, fused: bool) -> Batch:
        """A batch with a sequence for each of the ``contexts``, in tokens that are cached before the first step."""
        names = texts.names()
        heads, targets = [], []
        for i, context in enumerate(contexts):
            name = names[i % len(names)]
            samples = self.samples(name, context + steps)
            first, dense, every = self.first(samples, context + steps), kv == "dense", range(len(self.pairs))
            heads.append([self.head(name, samples, first, context, h, dense=dense) for h in every])
            new = [self._rows(samples, h, slice(first + context, first + context + steps)) for h in every]
            parts = [self.queries(name, samples, context, steps), *(np.stack(rows) for rows in zip(*new, strict=True))]
            targets.append(np.concatenate([part.transpose(1, 0, 2).reshape(steps, -1) for part in parts], axis=1))
        draw = np.random.default_rng(len(contexts))
        rows = np.stack(targets, axis=1).reshape(steps * len(contexts), -1)
        x = patterns(len(rows), draw)
        decoder = DecoderLayer(
            self.shape,
            self._layer(rows, x, draw),  # type: ignore[arg-type]
            self.calibration,
            0,
            self.settings,
            rotary=_rotary,
            kv=kv,
            fused=fused,
        )
        for states in heads:
            decoder.open(states)
        residuals = (x << RESIDUAL_FRACTION_BITS).reshape(steps, len(contexts), HIDDEN)
        positions = np.array(contexts) + np.arange(steps)[:, None]
        return Batch(decoder=decoder, x=residuals, positions=positions)

    def _layer(self, rows: NDArray[np.int16], x: NDArray[np.int32], draw: np.random.Generator) -> MadeLayer:
        """Projections of which QKV turns normalized ``x[n, HIDDEN]`` into ``rows[n, columns]``."""
        c = self.shape
        width = c.q_heads * c.head_dim
        v_fraction = int(self.calibration.v_fraction.min())
        epsilon = epsilon_code(c.norm_eps, HIDDEN, RESIDUAL_FRACTION_BITS)

        def random(columns: int, k: int, unit: Any, input_unit: float) -> Projection:
            weight = draw.standard_normal((columns, k), np.float32) / np.float32(np.sqrt(k))
            return quantize_projection(weight, unit=unit, input_unit=input_unit)

        gate_units = np.tile([2.0**-GATE_FRACTION_BITS, _UNIT], c.ffn)
        qkv = rows.T.astype(np.float32) @ x.astype(np.float32) / HIDDEN
        return MadeLayer(
            qkv=quantize_projection(qkv, unit=1.0, input_unit=HIDDEN),
            attention_output=random(HIDDEN, width, _UNIT, 2.0**-v_fraction),
            gate_up=random(2 * c.ffn, HIDDEN, gate_units, HIDDEN),
            down=random(HIDDEN, c.ffn, _UNIT, _UNIT),
            v_fraction=v_fraction,
            qkv_command=Command(
                norm=Norm.RMS,
                epsilon=epsilon,
                function=Function.ROTARY,
                rotary_columns=2 * width,
                head_dim=c.head_dim,
                narrow=True,
            ),
            gate_up_command=Command(norm=Norm.RMS, epsilon=epsilon, function=Function.SWIGLU),
        )
