"""KV heads of a language model in the middle of a text: their compressed caches and the queries of the next tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from golden.calibrate import ModelCalibration, fixed_rows, to_fixed
from golden.errors import UserError
from golden.kvo_method import score_shift
from golden.model import Model, Prefill
from golden.model.attention import BLOCK_TOKENS, causal_attention
from golden.settings import LOG2E, KvoSettings
from golden.state import HeadState

__all__ = ["Head", "build_head", "model_heads", "query_rows"]

Float = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Head:
    """One (layer, kv_head) after ``state.tokens`` tokens; ``q_rows[G, n, head_dim]`` are the newest n tokens' queries.

    The rows are INT16 as :func:`golden.mha.core.attend` takes them, with its ``shift``; ``k_rows, v_rows[tokens,
    head_dim]`` are those of all tokens as the cache got them, those of V with ``v_fraction`` fraction bits; ``k, v``
    and ``q[G, n, head_dim]`` the model's own, float32.
    """

    layer: int
    kv_head: int
    state: HeadState
    q_rows: npt.NDArray[np.int16]
    shift: int
    k_rows: npt.NDArray[np.int16]
    v_rows: npt.NDArray[np.int16]
    v_fraction: int
    q: Float
    k: Float
    v: Float

    def error(self, out: npt.NDArray[np.int16]) -> float:
        """Root mean square of what ``out[G, n, head_dim]``, in V units, differs by from float attention on ``k, v``.

        In shares of the root mean square of the latter.
        """
        exact = causal_attention(self.q, self.k[None], self.v[None]).astype(np.float64)
        difference = out * 2.0**-self.v_fraction - exact
        return float(np.sqrt((difference**2).sum() / (exact**2).sum()))


def query_rows(model: Model, sample: Prefill, context: int, count: int) -> Iterator[Float]:
    """Layer by layer the queries ``[q_heads, count, head_dim]`` of the last ``count`` of ``context`` tokens.

    Exact attention on the prefill's K and V, rotary embedding applied.
    """
    positions = np.arange(context - count, context)
    x = model.embed(sample.tokens[positions])
    for layer in range(model.config.layers):
        q, _, _ = model.qkv(layer, x, positions)
        yield q
        k, v = (rows[layer, :, :context].astype(np.float32) for rows in (sample.k, sample.v))
        x = model.finish(layer, x, causal_attention(q, k, v))


def build_head(
    calibration: ModelCalibration,
    settings: KvoSettings,
    layer: int,
    kv_head: int,
    *,
    k: Float,
    v: Float,
    votes: Float,
    q: Float,
) -> Head:
    """A head whose cache holds ``k, v[tokens, head_dim]``, and the queries ``q[G, n, head_dim]`` of the newest tokens.

    ``votes[blocks, prompt]`` is the attention mass of the groups that are full before the newest token, from each block
    of 64 queries.
    """
    n, prompt, head_dim = settings.group_tokens, votes.shape[1], k.shape[1]
    state = HeadState(settings, calibration.head(layer, kv_head))
    k_rows, v_rows = fixed_rows(calibration, layer, kv_head, k, v)
    state.load(k_rows[:prompt], v_rows[:prompt], votes.reshape(prompt // n, -1, prompt).sum(axis=1))
    state.append(k_rows[prompt:], v_rows[prompt:])
    q_fraction = int(calibration.q_fraction[layer, kv_head])
    return Head(
        layer=layer,
        kv_head=kv_head,
        state=state,
        q_rows=to_fixed(q * np.float32(LOG2E / np.sqrt(head_dim)), q_fraction),
        shift=score_shift(q_fraction, int(calibration.k_fraction[layer, kv_head]), head_dim),
        k_rows=k_rows,
        v_rows=v_rows,
        v_fraction=int(calibration.v_fraction[layer, kv_head]),
        q=q,
        k=k,
        v=v,
    )


def model_heads(
    model: Model,
    sample: Prefill,
    calibration: ModelCalibration,
    settings: KvoSettings,
    heads: Sequence[tuple[int, int]],
    *,
    context: int,
    count: int,
) -> Iterator[Head]:
    """The ``heads`` (layer, kv_head) of a model after ``context`` tokens, with the queries of the newest ``count``.

    All groups that are full before the newest one are compressed or wait; the rest is open, so ``count`` must fit into
    it. Raises :class:`UserError` when it does not, or the prefill is shorter.
    """
    c, n = model.config, settings.group_tokens
    prompt = (context - 1) // n * n
    if context > len(sample.tokens) - 1:
        raise UserError(f"the prefill has {len(sample.tokens) - 1} tokens, {context} are needed")
    if not 1 <= count <= context - prompt:
        raise UserError(f"queries must be from 1 to {context - prompt} with a context of {context}, not {count}")
    wanted = {layer for layer, _ in heads}
    queries = {layer: q for layer, q in enumerate(query_rows(model, sample, context, count)) if layer in wanted}
    shared = c.q_heads // c.kv_heads
    for layer, h in heads:
        k, v = (np.asarray(rows[layer, h, :context], np.float32) for rows in (sample.k, sample.v))
        votes = np.asarray(sample.block_mass[layer, h, : prompt // BLOCK_TOKENS, :prompt], np.float32)
        q = queries[layer][h * shared : (h + 1) * shared]
        yield build_head(calibration, settings, layer, h, k=k, v=v, votes=votes, q=q)
