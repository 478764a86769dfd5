"""Real decoding work for the whole accelerator: sequences in the middle of texts, and the tokens that follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import ModelCalibration, calibration_for, fixed_rows
from golden.decoder import DecoderLayer
from golden.integer_model import IntegerLayer, fixed_angles, fixed_residuals
from golden.model import Model, Prefill, prefill, texts
from golden.model.attention import BLOCK_TOKENS, causal_attention
from golden.settings import KvoSettings, default_settings
from golden.state import HeadState
from rtl.config import AcceleratorConfig
from sim.workloads import joined_rows, joined_votes

__all__ = ["Batch", "BatchMaker", "longest_context", "settings_for"]


def settings_for(config: AcceleratorConfig) -> KvoSettings:
    """The settings of the repository in the layout of the hardware."""
    d = config.dsq
    sizes = {"bus_bits": d.bus_bits, "delta_bits": d.delta_bits, "group_tokens": d.group_tokens}
    return replace(default_settings(), **sizes, tile_groups=config.mha.tile_groups)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A decoder whose sequences are open, the residuals ``x[steps, n, hidden]`` of the tokens that come, and their
    positions ``[steps, n]``."""

    decoder: DecoderLayer
    x: NDArray[np.int32]
    positions: NDArray[np.int64]


def longest_context(model: Model) -> int:
    """Tokens that a sequence has at most, new ones included: a text of each kind, one behind the other."""
    return model.config.context_length * (len(texts.names()) + 1)


class BatchMaker:
    """Makes batches of one layer of a model; texts take turns, and every further turn is one token shorter.

    A context beyond the model's own is made of the caches of several texts, one behind the other: the new tokens are
    those of the last text, the traffic that of a long cache.
    """

    def __init__(self, config: AcceleratorConfig, model: Model, layer: int, *, progress: bool = False) -> None:
        self.config, self.model, self.layer, self.progress = config, model, layer, progress
        self.settings = settings_for(config)
        self.calibration: ModelCalibration = calibration_for(model, self.settings, progress=progress)
        self.projections = IntegerLayer(model, self.calibration, layer)
        self._loaded: dict[tuple[str, int, bool], list[HeadState]] = {}

    def make(self, contexts: Sequence[int], steps: int, *, kv: str, fused: bool) -> Batch:
        """A batch with a sequence for each of the ``contexts``, in tokens that are cached before the first step."""
        decoder = DecoderLayer(
            self.model.config,
            self.projections,
            self.calibration,
            self.layer,
            self.settings,
            rotary=partial(fixed_angles, self.model),
            kv=kv,
            fused=fused,
        )
        names = texts.names()
        rows, places = [], []
        for i, context in enumerate(contexts):
            name = names[i % len(names)]
            samples = self._samples(name, context + steps)
            decoder.open(self._heads(name, samples, context, steps, dense=kv == "dense"))
            end = min(context + steps, samples[-1].k.shape[2]) if len(samples) == 1 else samples[-1].k.shape[2]
            positions = np.arange(end - steps, end)
            rows.append(fixed_residuals(self._residuals(samples[-1], positions)))
            places.append(positions)
        return Batch(decoder=decoder, x=np.stack(rows, axis=1), positions=np.stack(places, axis=1))

    def _samples(self, name: str, tokens: int) -> list[Prefill]:
        """Prefills that have so many tokens together, that of the named text last."""
        longest = self.model.config.context_length
        if tokens <= longest:
            size = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
            return [prefill(self.model, name, size, progress=self.progress)]
        names = [texts.CALIBRATION, *(other for other in texts.names() if other != name), name]
        parts = -(-tokens // longest)
        return [prefill(self.model, other, longest, progress=self.progress) for other in names[len(names) - parts :]]

    def _heads(self, name: str, samples: list[Prefill], context: int, steps: int, *, dense: bool) -> list[HeadState]:
        """Caches of the KV heads after ``context`` tokens."""
        n = self.settings.group_tokens
        first = sum(sample.k.shape[2] for sample in samples) - context - steps if len(samples) > 1 else 0
        span = slice(first, first + context)
        whole = 0 if dense else context // n * n
        made = []
        for h in range(self.model.config.kv_heads):
            k, v = (joined_rows([getattr(s, part) for s in samples], self.layer, h)[span] for part in "kv")
            k_rows, v_rows = fixed_rows(self.calibration, self.layer, h, k, v)
            key = (f"{name} {first} {h}", whole, dense)
            if key not in self._loaded:
                state = HeadState(self.settings, self.calibration.head(self.layer, h))
                if whole:
                    votes = joined_votes(samples, self.layer, h, first, whole)
                    state.load(k_rows[:whole], v_rows[:whole], votes.reshape(whole // n, -1, whole).sum(axis=1))
                self._loaded[key] = [state]
            state = self._loaded[key][0].copy()
            state.append(k_rows[whole:], v_rows[whole:])
            made.append(state)
        return made

    def _residuals(self, sample: Prefill, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The layer's inputs at ``positions``, in float, by exact attention on the prefill."""
        x = self.model.embed(sample.tokens[positions])
        end = int(positions[-1]) + 1
        for layer in range(self.layer):
            q, _, _ = self.model.qkv(layer, x, positions)
            k, v = (rows[layer, :, :end].astype(np.float32) for rows in (sample.k, sample.v))
            x = self.model.finish(layer, x, causal_attention(q, k, v))
        return x
