"""Real data for the test of a board: KV rows, queries and weights of the embedded model, cut to any geometry."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import lcm

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import ModelCalibration, calibrate_head, fixed_rows, to_fixed
from golden.dsq.compressor import Calibration
from golden.errors import UserError
from golden.gemm.core import Command
from golden.gemm.epilogue import GATE_FRACTION_BITS, Function
from golden.gemm.prologue import Norm
from golden.gemm.weights import Projection, epsilon_code, fold_norm, quantize_projection
from golden.heads import query_rows
from golden.integer_model import RESIDUAL_FRACTION_BITS, fixed_angles, fixed_residuals, residual_basis
from golden.kvo_method import score_shift
from golden.model import Model, Prefill, load_model, prefill
from golden.model.attention import BLOCK_TOKENS
from golden.settings import LOG2E, KvoSettings, default_settings
from rtl.config import AcceleratorConfig

__all__ = ["RealHead", "RealProjection", "real_heads", "real_projections", "settings_for"]

TEXT = "legal"
#: of the prefill, from which calibration comes too
CONTEXT = 1024
#: of outputs of the projection to q, k and v
_QKV_FRACTION_BITS = 10


@dataclass(frozen=True, kw_only=True)
class RealHead:
    """A KV head of the model on a text, its INT16 rows as the accelerator gets them.

    ``mass[groups, tokens]`` is the attention that the queries of each group give to each token, in float.
    """

    name: str
    k_rows: NDArray[np.int16]  # [tokens, head_dim]
    v_rows: NDArray[np.int16]  # [tokens, head_dim]
    q_rows: NDArray[np.int16]  # [q_heads, tokens, head_dim]
    mass: NDArray[np.float64]
    calibration: Calibration
    shift: int


@dataclass(frozen=True, kw_only=True)
class RealProjection:
    """Columns of a projection of the model, and the rows ``x[M, K]`` that go into it."""

    name: str
    projection: Projection
    command: Command
    x: NDArray[np.int32]
    rotary: tuple[NDArray[np.int64], NDArray[np.int64]] | None


def settings_for(config: AcceleratorConfig) -> KvoSettings:
    """The settings of the repository in the layout of the hardware.

    Groups have no more salient tokens than a quarter, and half of the records are not scanned, so that a few records
    are enough for some to be left out.
    """
    d, base = config.dsq, default_settings()
    salient = min(base.salient_tokens, d.max_salient, d.group_tokens // 4)
    return replace(
        base,
        group_tokens=d.group_tokens,
        salient_tokens=salient,
        sink_tokens=min(base.sink_tokens, salient // 2),
        delta_bits=d.delta_bits,
        bus_bits=d.bus_bits,
        tile_groups=config.mha.tile_groups,
        history_drop=0.5,
    )


@cache
def _model() -> Model:
    return load_model()


def _channels(rows: NDArray[np.floating], kv_head: int, head_dim: int) -> NDArray[np.float32]:
    """``rows[kv_heads, ..., channels]`` as those of one head of ``head_dim`` channels: fewer of its own, or the next
    heads' beside them."""
    count = -(-head_dim // rows.shape[-1])
    return np.concatenate(np.roll(rows, -kv_head, axis=0)[:count], axis=-1)[..., :head_dim].astype(np.float32)


def _attention_mass(q: NDArray[np.float32], k: NDArray[np.float32], group_tokens: int) -> NDArray[np.float64]:
    """Causal attention of ``q[q_heads, T, head_dim]`` to ``k[T, head_dim]``, summed over heads and the queries of each
    group: ``[T / group_tokens, T]``."""
    score = (q @ k.T).astype(np.float64) / np.sqrt(k.shape[1])
    score[:, ~np.tri(len(k), dtype=bool)] = -np.inf
    weight = np.exp(score - score.max(axis=2, keepdims=True))
    weight /= weight.sum(axis=2, keepdims=True)
    return weight.sum(axis=0).reshape(-1, group_tokens, len(k)).sum(axis=1)


def real_heads(
    config: AcceleratorConfig, settings: KvoSettings, count: int, groups: int, steps: int, *, progress: bool = False
) -> list[RealHead]:
    """So many heads, from the first layer to the last, after ``groups`` groups and ``steps`` further tokens."""
    model = _model()
    c, n, dim = model.config, settings.group_tokens, config.dsq.head_dim
    tokens, prompt = groups * n + steps, groups * n
    context = max(CONTEXT, -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS)
    if context > c.context_length:
        raise UserError(f"--groups must be fewer, so that {tokens} tokens are at most {c.context_length}")
    sample = prefill(model, TEXT, context, progress=progress)
    shared = c.q_heads // c.kv_heads
    places = [(number * (c.layers - 1) // max(count - 1, 1), number % c.kv_heads) for number in range(count)]
    queries = list(islice(query_rows(model, sample, tokens, tokens), places[-1][0] + 1))
    made = []
    for layer, h in places:
        k, v = (_channels(np.asarray(part[layer], np.float32), h, dim) for part in (sample.k, sample.v))
        within = queries[layer].reshape(c.kv_heads, shared, tokens, c.head_dim)
        q = np.stack([_channels(within[:, i % shared], h, dim) for i in range(config.mha.q_heads)])
        scaled = q * np.float32(LOG2E / np.sqrt(dim))
        mass = np.asarray(sample.block_mass[layer, h])
        tables = _calibrate(sample, settings, k, v, mass, float(np.abs(scaled).max()))
        k_rows, v_rows = fixed_rows(tables, 0, 0, k[:tokens], v[:tokens])
        q_fraction = int(tables.q_fraction[0, 0])
        made.append(
            RealHead(
                name=f"{layer}.{h}",
                k_rows=k_rows,
                v_rows=v_rows,
                q_rows=to_fixed(scaled, q_fraction),
                mass=_attention_mass(q[:, :prompt], k[:prompt], n),
                calibration=tables.head(0, 0),
                shift=score_shift(q_fraction, int(tables.k_fraction[0, 0]), dim),
            )
        )
    return made


def _calibrate(
    sample: Prefill,
    settings: KvoSettings,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    mass: NDArray[np.float16],
    q_peak: float,
) -> ModelCalibration:
    """Tables of one head with rows ``k, v[context, head_dim]``."""
    dim = k.shape[1]
    made = ModelCalibration(
        **{name: np.zeros((1, 1), np.int64) for name in ("q_fraction", "k_fraction", "v_fraction", "k_norm", "v_norm")},
        **{name: np.zeros((1, 1, dim), np.int64) for name in ("k_shape", "v_shape", "v_mean")},
        delta_bits=settings.delta_bits,
    )
    one = replace(sample, k=k[None, None], v=v[None, None], block_mass=mass[None, None])
    calibrate_head(made, (0, 0), one, settings, q_peak)
    return made


def real_projections(config: AcceleratorConfig) -> Sequence[RealProjection]:
    """Columns of the first layer's projections for every core: with norm and rotary embedding, with norm and SwiGLU."""
    model = _model()
    c, g, dim = model.config, config.gemm, config.dsq.head_dim
    w, basis = model.weights(0), residual_basis(c.hidden)
    k = min(c.hidden, g.max_k, g.act_words) // g.row_lanes * g.row_lanes
    positions = np.arange(1, 1 + g.rows)
    x = fixed_residuals(model.embed(_tokens(model)[positions]))[:, :k]
    epsilon = epsilon_code(c.norm_eps, k, RESIDUAL_FRACTION_BITS)
    qkv = (fold_norm(w.qkv, w.attention_norm)[0] @ basis)[:, :k]
    heads = min(max(g.cores, 2), len(qkv) // dim)
    turned = Command(
        norm=Norm.RMS,
        epsilon=epsilon,
        function=Function.ROTARY,
        rotary_columns=(heads - 1) * dim,
        head_dim=dim,
        narrow=True,
    )
    gate_up = (fold_norm(w.gate_up, w.ffn_norm)[0] @ basis)[:, :k]
    gate_up = gate_up.reshape(2, c.ffn, k).transpose(1, 0, 2).reshape(2 * c.ffn, k)
    units = np.tile([2.0**-GATE_FRACTION_BITS, 2.0**-RESIDUAL_FRACTION_BITS], c.ffn)
    columns = g.cores * lcm(g.columns, 2 * g.row_lanes)
    return [
        RealProjection(
            name="qkv",
            projection=quantize_projection(qkv[: heads * dim], unit=2.0**-_QKV_FRACTION_BITS, input_unit=k),
            command=turned,
            x=x,
            rotary=_angles(model, positions, dim),
        ),
        RealProjection(
            name="gate_up",
            projection=quantize_projection(gate_up[:columns], unit=units[:columns], input_unit=k),
            command=Command(norm=Norm.RMS, epsilon=epsilon, function=Function.SWIGLU),
            x=x,
            rotary=None,
        ),
    ]


def _tokens(model: Model) -> NDArray[np.int32]:
    return prefill(model, TEXT, CONTEXT, progress=False).tokens


def _angles(model: Model, positions: NDArray[np.integer], head_dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cosines and sines ``[T, head_dim / 2]`` for heads of any size."""
    cos, sin = (np.tile(table, (1, 2))[:, : head_dim // 2] for table in fixed_angles(model, positions))
    return cos, sin
