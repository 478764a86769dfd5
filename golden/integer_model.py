"""A language model in the arithmetic of the GEMM cores; attention is anybody's, as with `Model`."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.calibrate import ModelCalibration, to_fixed
from golden.gemm.core import Command, project
from golden.gemm.epilogue import GATE_FRACTION_BITS, ROTARY_FRACTION_BITS, Function
from golden.gemm.prologue import Norm
from golden.gemm.weights import Inputs, Projection, epsilon_code, fold_norm, quantize_projection
from golden.model import Model, ModelTokenizer, texts
from golden.model.attention import causal_attention
from golden.model.llama import ModelConfig, Tokens, rms_norm
from golden.settings import LOG2E

__all__ = [
    "ACTIVATION_BITS",
    "RESIDUAL_FRACTION_BITS",
    "IntegerLayer",
    "IntegerModel",
    "LayerInputs",
    "fixed_angles",
    "fixed_residuals",
    "integer_model_for",
    "residual_basis",
    "text_inputs",
]

Float = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int32]
Rotary = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

ACTIVATION_BITS = 12
#: of the residual stream, of SwiGLU's output and of logits
RESIDUAL_FRACTION_BITS = 12
#: of the calibration text that weights are rounded for
INPUT_TOKENS = 1024
_UNIT = 2.0**-RESIDUAL_FRACTION_BITS


def residual_basis(hidden: int) -> Float:
    """The orthonormal basis that residuals are kept in, ``[hidden, hidden]``: a cosine transform (DCT-II).

    RMSNorm does not notice it, and weights take it in. No channel stands out then, neither of rows nor of weights
    (Ashkboos et al., "QuaRot", 2024, section 3).
    """
    places = np.arange(hidden)
    basis = np.sqrt(2 / hidden) * np.cos(np.pi / hidden * np.outer(places + 0.5, places))
    basis[:, 0] /= np.sqrt(2)
    return basis.astype(np.float32)


def fixed_residuals(x: Float) -> Rows:
    """Float residuals ``[T, hidden]`` as INT32 rows in that basis."""
    return np.floor((x @ residual_basis(x.shape[1])).astype(np.float64) / _UNIT + 0.5).astype(np.int32)


def fixed_angles(model: Model, positions: npt.NDArray[np.integer]) -> Rotary:
    """Cosines and sines [T, head_dim / 2] of ``positions``, 14 fraction bits."""
    one = 2.0**ROTARY_FRACTION_BITS
    cos, sin = (np.floor(table * one + 0.5).astype(np.int64) for table in model.rotary(positions))
    return cos, sin


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """What goes into the projections of a layer; into `qkv` and `gate_up` normalized rows, without the norm's gain.

    These are in the basis of `residual_basis`.
    """

    qkv: Inputs
    attention_output: Inputs
    gate_up: Inputs
    down: Inputs


def text_inputs(model: Model, tokens: Tokens) -> tuple[list[LayerInputs], Inputs]:
    """Inputs of the layers' projections, and of the last one, over the ``tokens`` of a text; in float.

    The first token stands apart from mean and variance: models park huge activations on it that all others attend to.
    """
    c, basis = model.config, residual_basis(model.config.hidden)
    layers = []
    x, positions, one = model.embed(tokens), np.arange(len(tokens)), np.ones(1, np.float32)

    def inputs(rows: Float) -> Inputs:
        return Inputs(mean=rows[1:].mean(axis=0), variance=rows[1:].var(axis=0), first=rows[0])

    for layer in range(c.layers):
        w = model.weights(layer)
        q, k, v = model.qkv(layer, x, positions)
        attention = causal_attention(q, k, v)
        rows = attention.transpose(1, 0, 2).reshape(len(x), -1)
        normalized = rms_norm(x + rows @ w.attention_output.T, one, c.norm_eps)
        gate, up = np.split((normalized * w.ffn_norm) @ w.gate_up.T, 2, axis=1)
        product = gate / (1 + np.exp(np.minimum(-gate, np.float32(80)))) * up
        layers.append(
            LayerInputs(
                qkv=inputs(rms_norm(x, one, c.norm_eps) @ basis),
                attention_output=inputs(rows),
                gate_up=inputs(normalized @ basis),
                down=inputs(product),
            )
        )
        x = model.finish(layer, x, attention)
    last = inputs(rms_norm(x, one, c.norm_eps) @ basis)
    return layers, replace(last, first=last.mean)


class IntegerLayer:
    """The four projections of a layer and their commands; all rows are integers.

    `qkv` gives INT16 rows with the fraction bits of ``calibration`` (q with ``log2(e) / sqrt(head_dim)`` in it),
    `attention_output` takes INT16 rows with ``v_fraction`` fraction bits, those of the layer's coarsest KV head.
    """

    def __init__(
        self, model: Model, calibration: ModelCalibration, layer: int, inputs: LayerInputs | None = None
    ) -> None:
        c, w, basis = model.config, model.weights(layer), residual_basis(model.config.hidden)
        fractions = (calibration.q_fraction, calibration.k_fraction, calibration.v_fraction)
        q_unit, k_unit, v_unit = (2.0 ** -fraction[layer].astype(np.float64) for fraction in fractions)
        q_unit = np.repeat(q_unit, c.q_heads // c.kv_heads) * np.sqrt(c.head_dim) / LOG2E
        units = np.repeat(np.concatenate([q_unit, k_unit, v_unit]), c.head_dim)
        self.v_fraction = int(calibration.v_fraction[layer].min())
        epsilon = epsilon_code(c.norm_eps, c.hidden, RESIDUAL_FRACTION_BITS)
        qkv = fold_norm(w.qkv, w.attention_norm)[0] @ basis
        gate_up = fold_norm(w.gate_up, w.ffn_norm)[0] @ basis
        gate_up = gate_up.reshape(2, c.ffn, c.hidden).transpose(1, 0, 2).reshape(2 * c.ffn, c.hidden)
        gate_units = np.tile([2.0**-GATE_FRACTION_BITS, _UNIT], c.ffn)
        given: dict[str, Inputs] = {} if inputs is None else vars(inputs)
        self.qkv = quantize_projection(qkv, unit=units, input_unit=c.hidden, inputs=given.get("qkv"))
        self.attention_output = quantize_projection(
            basis.T @ w.attention_output,
            unit=_UNIT,
            input_unit=2.0**-self.v_fraction,
            inputs=given.get("attention_output"),
        )
        self.gate_up = quantize_projection(gate_up, unit=gate_units, input_unit=c.hidden, inputs=given.get("gate_up"))
        self.down = quantize_projection(basis.T @ w.down, unit=_UNIT, input_unit=_UNIT, inputs=given.get("down"))
        self.qkv_command = Command(
            norm=Norm.RMS,
            epsilon=epsilon,
            function=Function.ROTARY,
            rotary_columns=(c.q_heads + c.kv_heads) * c.head_dim,
            head_dim=c.head_dim,
            narrow=True,
        )
        self.gate_up_command = Command(norm=Norm.RMS, epsilon=epsilon, function=Function.SWIGLU)


class IntegerModel:
    """``model`` with projections, norms, rotary embedding, SwiGLU and residual sums in integers, bit for bit as a core.

    A `LanguageModel`: residuals are INT32 rows with 12 fraction bits, in the basis of `residual_basis`. Attention gives
    and takes float32, as elsewhere; the numbers are those of the INT16 rows of ``calibration``. ``tokens``: of a text
    whose inputs weights are rounded for, see `quantize_projection`.
    """

    def __init__(
        self, model: Model, calibration: ModelCalibration, tokens: Tokens, *, act_bits: int = ACTIVATION_BITS
    ) -> None:
        self.config: ModelConfig = model.config
        self.act_bits = act_bits
        self._model, self._calibration = model, calibration
        inputs, last = text_inputs(model, tokens)
        self.layers = [IntegerLayer(model, calibration, layer, own) for layer, own in enumerate(inputs)]
        weight = fold_norm(model.output, model.output_norm)[0] @ residual_basis(self.config.hidden)
        self._head = quantize_projection(weight, unit=_UNIT, input_unit=self.config.hidden, inputs=last)
        epsilon = epsilon_code(self.config.norm_eps, self.config.hidden, RESIDUAL_FRACTION_BITS)
        self._head_command = Command(norm=Norm.RMS, epsilon=epsilon)

    def embed(self, tokens: Tokens) -> Rows:
        """Token ids [T] to residual rows [T, hidden]."""
        return fixed_residuals(self._model.embed(tokens))

    def rotary(self, positions: npt.NDArray[np.integer]) -> Rotary:
        """See `fixed_angles`."""
        return fixed_angles(self._model, positions)

    def qkv(self, layer: int, x: Rows, positions: npt.NDArray[np.integer]) -> tuple[Float, Float, Float]:
        """As `Model.qkv`."""
        c, own, table = self.config, self.layers[layer], self._calibration
        rows = self._project(x, own.qkv, own.qkv_command, rotary=self.rotary(positions))
        split = rows.reshape(len(x), c.q_heads + 2 * c.kv_heads, c.head_dim).transpose(1, 0, 2).astype(np.float32)
        q, k, v = np.split(split, [c.q_heads, c.q_heads + c.kv_heads])
        fractions = (table.q_fraction, table.k_fraction, table.v_fraction)
        q_unit, k_unit, v_unit = (np.exp2(-fraction[layer].astype(np.float32))[:, None, None] for fraction in fractions)
        q_unit = np.repeat(q_unit, c.q_heads // c.kv_heads, axis=0) * np.float32(np.sqrt(c.head_dim) / LOG2E)
        return q * q_unit, k * k_unit, v * v_unit

    def finish(self, layer: int, x: Rows, attention: Float) -> Rows:
        """As `Model.finish`; attention is rounded to INT16 rows."""
        own = self.layers[layer]
        rows = to_fixed(attention.transpose(1, 0, 2).reshape(len(x), -1), own.v_fraction)
        x = self._project(rows, own.attention_output, Command(), residual=x)
        middle = self._project(x, own.gate_up, own.gate_up_command)
        return self._project(middle, own.down, Command(), residual=x)

    def logits(self, x: Rows) -> Float:
        """As `Model.logits`."""
        return (self._project(x, self._head, self._head_command) * _UNIT).astype(np.float32)

    def _project(
        self,
        x: npt.NDArray[np.integer],
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


def integer_model_for(model: Model, calibration: ModelCalibration, *, progress: bool = True) -> IntegerModel:
    """``model`` in integers, its weights rounded for inputs of the calibration text; takes about half a minute."""
    tokens = ModelTokenizer(model.file).encode(texts.read(texts.CALIBRATION))[:INPUT_TOKENS]
    with tqdm(total=1, desc="weights to INT8", disable=not progress) as bar:
        made = IntegerModel(model, calibration, tokens)
        bar.update()
    return made
