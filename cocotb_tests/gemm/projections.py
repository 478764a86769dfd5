"""Projections of the embedded model as a GEMM core gets them: rows of a shipped text, INT8 weights, commands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import calibration_for, to_fixed
from golden.gemm.core import Command, project
from golden.gemm.weights import Projection
from golden.integer_model import ACTIVATION_BITS, IntegerLayer, fixed_residuals
from golden.model import load_model, prefill
from golden.model.attention import causal_attention
from golden.settings import default_settings

__all__ = ["RealProjection", "real_projections"]

Rows = NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class RealProjection:
    """A projection of one layer, what goes in ``[tokens, K]``, and what is added to what comes out."""

    layer: int
    x: Rows
    projection: Projection
    command: Command
    residual: Rows | None = None

    @property
    def out(self) -> Rows:
        """What golden makes of it, without rotary embedding."""
        own = self.projection
        options = {"act_bits": ACTIVATION_BITS, "residual": self.residual}
        return project(self.x, own.weights, own.columns, self.command, **options)[0]


def real_projections(layers: Sequence[int], tokens: int) -> Iterator[RealProjection]:
    """All four projections of some layers in their order: qkv, attention output, gate and up, down.

    The layers before, and attention, are computed in float.
    """
    model = load_model()
    calibration = calibration_for(model, default_settings(), progress=False)
    positions = np.arange(tokens)
    x = model.embed(prefill(model, "legal", 1024, progress=False).tokens[:tokens])
    for layer in range(max(layers) + 1):
        attention = causal_attention(*model.qkv(layer, x, positions))
        if layer in layers:
            own = IntegerLayer(model, calibration, layer)
            rows = fixed_residuals(x)
            heads = to_fixed(attention.transpose(1, 0, 2).reshape(tokens, -1), own.v_fraction)
            yield RealProjection(layer=layer, x=rows, projection=own.qkv, command=own.qkv_command)
            attended = RealProjection(
                layer=layer, x=heads, projection=own.attention_output, command=Command(), residual=rows
            )
            yield attended
            gated = RealProjection(layer=layer, x=attended.out, projection=own.gate_up, command=own.gate_up_command)
            yield gated
            yield RealProjection(
                layer=layer, x=gated.out, projection=own.down, command=Command(), residual=attended.out
            )
        x = model.finish(layer, x, attention)
