"""Decoder layers of the tiny random model, with a calibration of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.tiny_model import HEAD_DIM, KV_HEADS, write_tiny_model
from golden.calibrate import ModelCalibration, calibrate, fixed_rows
from golden.decoder import DecoderLayer
from golden.integer_model import IntegerModel, fixed_angles
from golden.model import Model, load_model, prefill
from golden.settings import KvoSettings
from golden.state import HeadState

__all__ = ["TinyLayers", "tiny_layers"]


@dataclass(frozen=True)
class TinyLayers:
    """The model in float and in integers, its calibration, and the settings that this was made for."""

    model: Model
    integer: IntegerModel
    calibration: ModelCalibration
    settings: KvoSettings

    def decoder(self, layer: int = 0, **options: Any) -> DecoderLayer:
        """A layer without sequences."""
        rotary: Callable[..., Any] = partial(fixed_angles, self.model)
        given = self.model.config, self.integer.layers[layer], self.calibration, layer, self.settings
        return DecoderLayer(*given, rotary=rotary, **options)

    def rows(self, label: str, count: int) -> NDArray[np.int32]:
        """Residuals of random tokens ``[count, hidden]``."""
        return self.integer.embed(generator("rows", label).integers(0, 256, count))

    def heads(self, label: str, tokens: int, *, layer: int = 0, dense: bool = False) -> list[HeadState]:
        """Caches of all KV heads after random tokens under random attention; whole groups are closed, unless
        ``dense``."""
        draw, n = generator("heads", label), self.settings.group_tokens
        whole = 0 if dense else tokens // n * n
        made = []
        for h in range(KV_HEADS):
            state = HeadState(self.settings, self.calibration.head(layer, h))
            rows = fixed_rows(self.calibration, layer, h, *draw.normal(0, 1, (2, tokens, HEAD_DIM)))
            if whole:
                state.load(rows[0][:whole], rows[1][:whole], draw.gamma(0.3, 1, (whole // n, whole)))
            state.append(rows[0][whole:], rows[1][whole:])
            made.append(state)
        return made


def tiny_layers(folder: Path, **settings: Any) -> TinyLayers:
    """Writes the model to ``folder`` and calibrates it on random tokens."""
    made = KvoSettings(**settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVO_CACHE", str(folder / "cache"))
        model = load_model(write_tiny_model(folder / "tiny.gguf"))
        tokens = generator("tokens").integers(0, 256, 385)
        calibration = calibrate(model, prefill(model, tokens, 384, progress=False), made, progress=False)
    return TinyLayers(model, IntegerModel(model, calibration, tokens[:128]), calibration, made)
