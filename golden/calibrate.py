"""Offline calibration: fixed-point formats, delta shapes and V means of every (layer, kv_head), from one text.

``python -m golden.calibrate`` writes them as one ``.npz`` file; the hardware takes them as tables.
"""

import argparse
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from golden.dsq.compressor import VALUE_BITS, Calibration, assign_nearest
from golden.dsq.row_quantizer import quantize_token_rows, reconstruct_rows
from golden.dsq.salient import pick_salient
from golden.errors import UserError, main_guard
from golden.model import Model, Prefill, load_model, prefill, texts
from golden.model.attention import causal_attention
from golden.model.prefill_cache import cache_folder
from golden.settings import LOG2E, KvoSettings, default_settings

__all__ = ["HEADROOM", "ModelCalibration", "calibrate", "calibrate_head", "calibration_for", "fixed_rows", "to_fixed"]

#: integer bits of headroom over the largest magnitude seen while calibrating
HEADROOM = 2.0
FORMAT = 3


def to_fixed(x: NDArray[np.floating], fraction_bits: int) -> NDArray[np.int16]:
    """Float to INT16 with ``fraction_bits`` fraction bits, half up, saturating."""
    scaled = np.floor(x.astype(np.float64) * 2.0**fraction_bits + 0.5)
    return np.clip(scaled, -32768, 32767).astype(np.int16)


@dataclass(frozen=True, kw_only=True)
class ModelCalibration:
    """Everything calibrated for a model: arrays ``[layers, kv_heads]``, shapes and means ``[layers, kv_heads,
    head_dim]``.

    ``*_fraction`` are the fraction bits of the INT16 rows (q with ``log2(e) / sqrt(head_dim)`` folded in).
    """

    q_fraction: NDArray[np.int64]
    k_fraction: NDArray[np.int64]
    v_fraction: NDArray[np.int64]
    k_shape: NDArray[np.int64]
    v_shape: NDArray[np.int64]
    v_mean: NDArray[np.int64]
    k_norm: NDArray[np.int64]
    v_norm: NDArray[np.int64]
    delta_bits: int

    def head(self, layer: int, kv_head: int) -> Calibration:
        """The tables of one (layer, kv_head)."""
        i = layer, kv_head
        return Calibration(
            k_shape=self.k_shape[i],
            v_shape=self.v_shape[i],
            v_mean=self.v_mean[i],
            k_norm=int(self.k_norm[i]),
            v_norm=int(self.v_norm[i]),
        )

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file, complete or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, format=FORMAT, **self.__dict__)
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> "ModelCalibration":
        """Read a file that ``save`` wrote; :class:`UserError` when it is something else."""
        try:
            with np.load(path) as data:
                if "format" not in data or int(data["format"]) != FORMAT:
                    raise UserError(f"'{path}' is no calibration of format {FORMAT}: make it again")
                names = ModelCalibration.__dataclass_fields__
                arrays = {n: data[n] for n in names if n != "delta_bits"}
                return ModelCalibration(**arrays, delta_bits=int(data["delta_bits"]))
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as e:
            raise UserError(f"cannot read calibration '{path}': {e}") from e


def fixed_rows(
    calibration: ModelCalibration, layer: int, kv_head: int, k: NDArray[np.floating], v: NDArray[np.floating]
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Float K and V rows ``[..., head_dim]`` of one head as the hardware gets them: INT16."""
    c, i = calibration, (layer, kv_head)
    k_rows = to_fixed(np.asarray(k, np.float32), int(c.k_fraction[i]))
    return k_rows, to_fixed(np.asarray(v, np.float32), int(c.v_fraction[i]))


def _fraction_bits(largest: float) -> int:
    return int(np.floor(np.log2(32767 / (HEADROOM * max(largest, 1e-6)))))


def _best_steps(unit: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Per channel of ``unit[n, head_dim]`` the step of the midpoint quantizer with the least squared error."""
    rms = np.sqrt((unit**2).mean(axis=0)) + 1e-6
    # The best uniform midpoint step of a Gaussian is 0.996 sigma for 2 bits and 0.335 sigma for 4 (Max, 1960).
    centre = {2: 0.996, 4: 0.335}[bits]
    top = (1 << (bits - 1)) - 0.5
    best, error = rms.copy(), np.full(rms.shape, np.inf)
    for factor in centre * np.geomspace(0.5, 1.8, 27):
        step = rms * factor
        level = np.minimum(np.floor(np.abs(unit) / step) + 0.5, top)
        e = ((np.abs(unit) - level * step) ** 2).mean(axis=0)
        better = e < error
        best[better], error[better] = step[better], e[better]
    return best


def _shape_and_norm(difference: list[NDArray[np.int64]], bits: int) -> tuple[NDArray[np.int64], int]:
    """Shape and norm from the groups' differences ``[T, head_dim]``; see :class:`Calibration`."""
    unit = np.concatenate([d / max(np.abs(d).mean(), 1e-9) for d in difference])
    step = _best_steps(unit, bits)
    shape = np.clip(np.floor(256 * step / step.mean() + 0.5), 1, 4095).astype(np.int64)
    return shape, int(np.clip(round(256 * len(step) / step.mean()), 1, (1 << 20) - 1))


def _query_peaks(model: Model, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """Largest |q| of each (layer, kv_head) over an exact run on ``tokens``, score constant folded in."""
    c = model.config
    x = model.embed(tokens)
    positions = np.arange(len(tokens))
    peak = np.empty((c.layers, c.kv_heads))
    for layer in range(c.layers):
        q, k, v = model.qkv(layer, x, positions)
        peak[layer] = np.abs(q).reshape(c.kv_heads, -1).max(axis=1) * (LOG2E / np.sqrt(c.head_dim))
        x = model.finish(layer, x, causal_attention(q, k, v))
    return peak


def calibrate(model: Model, sample: Prefill, settings: KvoSettings, *, progress: bool = True) -> ModelCalibration:
    """Calibrate ``model`` on a prefill: the first group and the newest two are left out of the statistics."""
    c, s = model.config, settings
    q_peak = _query_peaks(model, np.asarray(sample.tokens[:1024]))
    dim = (c.layers, c.kv_heads, c.head_dim)
    made = ModelCalibration(
        **{n: np.zeros(dim[:2], np.int64) for n in ("q_fraction", "k_fraction", "v_fraction", "k_norm", "v_norm")},
        **{n: np.zeros(dim, np.int64) for n in ("k_shape", "v_shape", "v_mean")},
        delta_bits=s.delta_bits,
    )
    for layer in tqdm(range(c.layers), desc="calibrate", unit="layer", disable=not progress):
        for h in range(c.kv_heads):
            calibrate_head(made, (layer, h), sample, s, float(q_peak[layer, h]))
    return made


def calibrate_head(
    made: ModelCalibration,
    i: tuple[int, int],
    sample: Prefill,
    s: KvoSettings,
    q_peak: float,
) -> None:
    """Fill in the entries of one (layer, kv_head)."""
    n = s.group_tokens
    k, v = np.asarray(sample.k[i], np.float64), np.asarray(sample.v[i], np.float64)
    spans = [slice(g * n, (g + 1) * n) for g in range(1, len(k) // n - 2)]
    if not spans:
        raise UserError(f"calibration needs at least {4 * n} tokens, the sample has {len(k)}")
    mass = np.asarray(sample.block_mass[i], np.float32)
    votes = [mass[a.start // 64 : (a.stop + n) // 64, a].sum(axis=0) for a in spans]
    fixed_votes = [np.floor(x * 65536).astype(np.uint32) for x in votes]
    salient = [pick_salient(x, False, salient_tokens=s.salient_tokens, sink_tokens=0) for x in fixed_votes]
    made.q_fraction[i] = _fraction_bits(q_peak)
    made.k_fraction[i] = _fraction_bits(float(np.abs(k).max()))
    made.v_fraction[i] = _fraction_bits(float(np.abs(v).max()))
    codes = quantize_token_rows(
        to_fixed(k, int(made.k_fraction[i])), to_fixed(v, int(made.v_fraction[i]))
    )
    k_rows, v_rows = reconstruct_rows(*codes[:2]), reconstruct_rows(*codes[2:])
    made.v_mean[i] = np.floor(v_rows[n:].mean(axis=0) + 0.5)
    k_diff, v_diff = [], []
    for span, chosen in zip(spans, salient, strict=True):
        rest = np.setdiff1d(np.arange(n), chosen)
        rows = k_rows[span]
        near = assign_nearest(rows[rest], rows[chosen])
        k_diff.append(rows[rest].astype(np.int64) - rows[chosen][near])
        v_diff.append(v_rows[span][rest].astype(np.int64) - made.v_mean[i])
    if s.salient_tokens < n:
        made.k_shape[i], made.k_norm[i] = _shape_and_norm(k_diff, s.delta_bits)
        made.v_shape[i], made.v_norm[i] = _shape_and_norm(v_diff, VALUE_BITS)


def calibration_for(
    model: Model, settings: KvoSettings, *, context: int = 4096, text: str | None = None, progress: bool = True
) -> ModelCalibration:
    """The calibration of a model on ``text`` (default: the calibration text), made once and kept in the user's
    cache."""
    sample = prefill(model, text or texts.CALIBRATION, context, progress=progress)
    digest = hashlib.sha256(sample.tokens.tobytes())
    digest.update(np.asarray(sample.k[-1, -1, -64:]).tobytes())
    digest.update(f"{FORMAT} {settings.group_tokens} {settings.salient_tokens} {settings.delta_bits}".encode())
    path = cache_folder() / "calibration" / f"{digest.hexdigest()[:24]}.npz"
    if path.exists():
        return ModelCalibration.load(path)
    made = calibrate(model, sample, settings, progress=progress)
    made.save(path)
    return made


@main_guard
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m golden.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="GGUF file of a Llama-type model (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--text", default=texts.CALIBRATION, help="text name or UTF-8 file (default: %(default)s)")
    parser.add_argument("--context", type=int, default=4096, help="tokens to calibrate on (default: %(default)s)")
    parser.add_argument("--settings", help="TOML file of DSQ settings (default: the tuned ones)")
    parser.add_argument("-o", "--output", required=True, help="file to write (.npz)")
    args = parser.parse_args()
    settings = KvoSettings.from_toml(args.settings) if args.settings else default_settings()
    model = load_model(args.model)
    made = calibrate(model, prefill(model, args.text, args.context), settings)
    output = Path(args.output).with_suffix(".npz")
    made.save(output)
    print(f"calibrated {model.config.layers} layers x {model.config.kv_heads} KV heads -> {output}")


if __name__ == "__main__":
    main()
