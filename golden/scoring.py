"""Scores a KV cache method on a text: decoding with its attention in every layer, against exact attention."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from golden.account import Account
from golden.errors import UserError
from golden.model import LanguageModel, Model, Prefill
from golden.model.attention import causal_attention
from golden.peers.protocol import BLOCK_TOKENS, CacheMethod, Float, elements_per_token

__all__ = ["Reference", "Score", "check_groups", "check_scored", "prompt_rows", "score", "steps"]


def check_scored(scored: int, context: int) -> None:
    """`UserError` when the last `scored` of `context` tokens cannot be scored."""
    if context < 1 or context % BLOCK_TOKENS:
        raise UserError(f"the context must be a multiple of {BLOCK_TOKENS} tokens, not {context}")
    if scored < 1 or scored % BLOCK_TOKENS:
        raise UserError(f"the number of scored tokens must be a multiple of {BLOCK_TOKENS}, not {scored}")
    if scored >= context:
        raise UserError(f"the number of scored tokens must be below the context of {context}, not {scored}")


def check_groups(group_tokens: int, scored: int, context: int) -> None:
    """`UserError` when the tokens before the scored ones cannot be groups of DSQ.

    A prefill has the attention mass from each block of queries, so a group is a block or two.
    """
    if group_tokens not in (BLOCK_TOKENS, 2 * BLOCK_TOKENS):
        sizes = f"{BLOCK_TOKENS} or {2 * BLOCK_TOKENS}"
        raise UserError(f"group_tokens must be {sizes} to score with a language model, not {group_tokens}")
    prompt = context - scored
    if prompt % group_tokens:
        raise UserError(f"context less scored tokens must be a multiple of group_tokens={group_tokens}, not {prompt}")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the uncompressed model says about the last `scored` tokens of a prefill.

    log_probs [scored, vocab] float32; nll [scored]: of the token that follows.
    """

    prefill: Prefill
    scored: int
    log_probs: Float
    nll: npt.NDArray[np.float64]

    @classmethod
    def of(cls, model: Model, prefill: Prefill, scored: int) -> "Reference":
        """From the prefill's last residuals."""
        context = len(prefill.tokens) - 1
        check_scored(scored, context)
        rows = np.asarray(prefill.hidden[context - scored :])
        log_probs = np.empty((scored, model.config.vocab), np.float32)
        for first in range(0, scored, BLOCK_TOKENS):
            block = slice(first, first + BLOCK_TOKENS)
            log_probs[block] = _log_softmax(model.logits(rows[block]))
        nll = -log_probs[np.arange(scored), prefill.tokens[context - scored + 1 :]].astype(np.float64)
        return cls(prefill=prefill, scored=scored, log_probs=log_probs, nll=nll)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Outcome of a method on one text.

    nll, reference_nll [scored]: negative log likelihood of each next token in nats. kl [scored]: divergence of the
    method's prediction from the reference's, sum p log(p / q). top1 [scored]: both predict the same token.
    """

    account: Account
    nll: npt.NDArray[np.float64]
    reference_nll: npt.NDArray[np.float64]
    kl: npt.NDArray[np.float64]
    top1: npt.NDArray[np.bool_]
    seconds: float

    @property
    def ppl(self) -> float:
        """Perplexity with the method."""
        return math.exp(self.nll.mean())

    @property
    def ppl_reference(self) -> float:
        """Perplexity of the uncompressed model."""
        return math.exp(self.reference_nll.mean())

    @property
    def ppl_change_error(self) -> float:
        """Standard error of the relative perplexity change over the scored tokens."""
        return float((self.nll - self.reference_nll).std(ddof=1)) / math.sqrt(len(self.nll))


def prompt_rows(
    model: LanguageModel, prefill: Prefill, prompt: int
) -> Iterator[tuple[Float, Float, npt.NDArray[np.floating]]]:
    """Layer by layer K and V of the first ``prompt`` tokens ``[kv_heads, prompt, head_dim]`` and their attention mass.

    Those of the prefill, which `Model` made; another model computes its own, with exact attention.
    """
    if isinstance(model, Model):
        for layer in range(model.config.layers):
            k, v = (rows[layer, :, :prompt].astype(np.float32) for rows in (prefill.k, prefill.v))
            mass = prefill.block_mass[layer, :, : prompt // BLOCK_TOKENS, :prompt]
            yield k, v, mass.astype(np.float32)
        return
    positions = np.arange(prompt)
    x = model.embed(prefill.tokens[:prompt])
    for layer in range(model.config.layers):
        q, k, v = model.qkv(layer, x, positions)
        own = np.empty((model.config.kv_heads, prompt // BLOCK_TOKENS, prompt), np.float32)
        x = model.finish(layer, x, causal_attention(q, k, v, mass=own))
        yield k, v, own


def score(
    model: LanguageModel,
    method: CacheMethod,
    reference: Reference,
    bursts: tuple[int, ...],
    advance: Callable[[], object] = lambda: None,
) -> Score:
    """Decode the scored tokens, teacher-forced in blocks of 64, with `method` in every layer.

    The prompt before them comes from exact attention (see `prompt_rows`); each layer's cache then sees its own layers'
    errors. `advance` is called `steps(model, reference.scored)` times.
    """
    start = time.perf_counter()
    prefill, config = reference.prefill, model.config
    prompt = len(prefill.tokens) - 1 - reference.scored
    account = Account(bursts=bursts)
    caches = []
    for layer, (k, v, mass) in enumerate(prompt_rows(model, prefill, prompt)):
        caches.append(method.open(config, layer, k, v, mass))
        advance()
    nll, kl, top1 = [], [], []
    for first in range(0, reference.scored, BLOCK_TOKENS):
        block = slice(first, first + BLOCK_TOKENS)
        positions = np.arange(prompt + first, prompt + first + BLOCK_TOKENS)
        x = model.embed(prefill.tokens[positions])
        for layer, cache in enumerate(caches):
            q, k, v = model.qkv(layer, x, positions)
            account.offer(prompt + first, BLOCK_TOKENS, elements_per_token(config))
            x = model.finish(layer, x, cache.attend(q, k, v, account))
            advance()
        expected, got = reference.log_probs[block], _log_softmax(model.logits(x))
        nll.append(-got[np.arange(BLOCK_TOKENS), prefill.tokens[positions + 1]].astype(np.float64))
        kl.append((np.exp(expected) * (expected - got)).sum(axis=1, dtype=np.float64))
        top1.append(expected.argmax(axis=1) == got.argmax(axis=1))
    for cache in caches:
        cache.stored(account)
    account.stored_elements = config.layers * elements_per_token(config) * (prompt + reference.scored)
    return Score(
        account=account,
        nll=np.concatenate(nll),
        reference_nll=reference.nll,
        kl=np.concatenate(kl),
        top1=np.concatenate(top1),
        seconds=time.perf_counter() - start,
    )


def steps(model: LanguageModel, scored: int) -> int:
    """How often `score` reports progress."""
    return model.config.layers * (1 + scored // BLOCK_TOKENS)


def _log_softmax(logits: Float) -> Float:
    """Logits [T, vocab] to log probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
