"""Pictures of the demonstration: what is fetched, and one group before and after."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import ModelCalibration
from golden.dsq.compressor import compress
from golden.dsq.rotation import rotate, rotation_block, rotation_shift
from golden.dsq.row_quantizer import quantize_token_rows
from golden.dsq.salient import pick_salient
from golden.errors import UserError
from golden.evaluate import Row
from golden.settings import KvoSettings
from sim.demo_groups import Group
from sim.demo_parts import PARTS

__all__ = ["plot_group", "plot_traffic", "rebuilt_values"]

COLOURS = {
    "scan": "#1b4f72",
    "k_lower": "#2e86c1",
    "k_delta": "#85c1e9",
    "k_fine": "#d4e6f1",
    "v_salient": "#b03a2e",
    "v_delta": "#e6a49c",
    "int8": "#9a9a9a",
}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def plot_traffic(rows: Sequence[Row], path: Path) -> None:
    """Bars of the bytes fetched per token: FP16 and every method above, the kinds of the last method's bytes below."""
    figure = _figure(9, 3.2 + 0.4 * len(rows))
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": [len(rows) + 1, 1.6]})
    own, full = rows[-1], rows[-1]["full_bytes_per_token"]
    names, shares = ["FP16", *(row["method"] for row in rows)], [1.0, *(row["read_fraction"] for row in rows)]
    colours = ["0.6"] * (len(names) - 1) + ["tab:red"]
    above.barh(names, shares, color=colours)
    for place, share in enumerate(shares):
        label = f"{100 * share:.3g}%  ({share * full / 1e6:.2f} MB)"
        inside = share > 0.8
        above.text(share + (-0.01 if inside else 0.01), place, label, va="center", ha="right" if inside else "left")
    above.invert_yaxis()
    above.set_xlim(0, 1)
    above.set_xticks([])
    source = f"{own['model']}, {own['context']} tokens of {Path(own['text']).name}"
    above.set_title(f"KV cache bytes fetched per token: {source}")
    left = 0.0
    for name, share in own["parts"].items():
        label = f"{PARTS[name]}: {100 * share:.2f}%"
        below.barh([own["method"]], [100 * share], left=100 * left, color=COLOURS[name], label=label)
        left += share
    below.set_xlim(0, 100 * own["read_fraction"])
    below.set_xlabel("share of FP16 traffic, %")
    below.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.55), frameon=False, fontsize=9)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def rebuilt_values(
    rows: NDArray[np.int16], group: Group, calibration: ModelCalibration, settings: KvoSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The model's K and V ``[group_tokens, head_dim]`` from rebuilt ``rows[2, group_tokens, head_dim]``.

    Puts the record's order back to that of the tokens, and undoes rotation and fixed point.
    """
    salient = pick_salient(
        group.mass, group.number == 0, salient_tokens=settings.salient_tokens, sink_tokens=settings.sink_tokens
    )
    codes = quantize_token_rows(group.k_rows, group.v_rows)
    order = compress(*codes, salient, group.calibration, delta_bits=settings.delta_bits).order
    k_rows, v_rows = np.empty_like(rows[0]), np.empty_like(rows[1])
    k_rows[order], v_rows[order] = rows
    dim = rows.shape[2]
    gain = rotation_block(dim) / 4 ** rotation_shift(dim)  # of two rotations
    i = group.layer, group.kv_head
    k = rotate(k_rows) / gain / 2.0 ** int(calibration.k_fraction[i])
    return k, v_rows / 2.0 ** int(calibration.v_fraction[i])


def plot_group(
    group: Group, rows: NDArray[np.int16], calibration: ModelCalibration, settings: KvoSettings, path: Path
) -> None:
    """Pictures of a group's K and V: the model's values, what the Dequantizer rebuilt, and the difference."""
    i = group.layer, group.kv_head
    exact = (
        group.k_rows / 2.0 ** int(calibration.k_fraction[i]),
        group.v_rows / 2.0 ** int(calibration.v_fraction[i]),
    )
    figure = _figure(10, 6.6)
    grid = figure.subplots(2, 3, sharex=True, sharey=True)
    figure.suptitle(f"One group through quantizer and dequantizer: {group}")
    pairs = zip("KV", exact, rebuilt_values(rows, group, calibration, settings), grid, strict=True)
    for name, before, after, line in pairs:
        limit = float(np.quantile(np.abs(before), 0.995))
        error = float(np.linalg.norm(after - before) / np.linalg.norm(before))
        titles = (f"{name} of the model", f"{name} rebuilt", f"difference (RMS {100 * error:.0f}% of {name})")
        for axes, values, title in zip(line, (before, after, after - before), titles, strict=True):
            image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
            axes.set_title(title, fontsize=10)
        line[0].set_ylabel("token of the group")
        figure.colorbar(image, ax=line, shrink=0.9)
    for axes in grid[1]:
        axes.set_xlabel("channel")
    _save(figure, path)
