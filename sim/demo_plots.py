"""Pictures of the demonstration: what is fetched in all and by single queries, and one group before and after."""

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
from golden.heads import Head
from golden.settings import KvoSettings
from sim.demo_attention import KINDS, attention_of_newest, fetched_by_newest, kinds_of_tokens
from sim.demo_groups import Group
from sim.demo_parts import PARTS

__all__ = ["plot_attention", "plot_group", "plot_traffic", "rebuilt_values"]

COLOURS = {
    "scan": "#1b4f72",
    "k_lower": "#2e86c1",
    "k_delta": "#85c1e9",
    "k_fine": "#d4e6f1",
    "v_salient": "#b03a2e",
    "v_delta": "#e6a49c",
    "int8": "#9a9a9a",
}
#: of `KINDS`, in their order
KIND_COLOURS = (
    "#ffffff",
    "#e4e4e4",
    "#aed6f1",
    "#2e86c1",
    "#1b2f72",
    "#f8c471",
    "#c0392b",
    "#b7c9a8",
    "#4d7c2f",
)
#: attention below this has the colour of this
LEAST_ATTENTION = 1e-5


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


def _by_group(values: NDArray[Any], group_tokens: int) -> NDArray[np.float64]:
    """``values[tokens]`` as a picture: a column a group, a row a token of it; NaN where there is no token."""
    picture = np.full((-(-len(values) // group_tokens), group_tokens), np.nan)
    picture.reshape(-1)[: len(values)] = values
    return picture.T


def plot_attention(heads: Sequence[Head], title: str, path: Path) -> None:
    """Pictures of each head's tokens: the model's attention to them, and what the core fetches of them."""
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.patches import Patch

    figure = _figure(11, 1.4 + 2.7 * len(heads))
    grid = figure.subplots(len(heads), 2, sharex=True, sharey=True, squeeze=False)
    figure.suptitle(title)
    for head, (left, right) in zip(heads, grid, strict=True):
        n, fetch = head.state.settings.group_tokens, fetched_by_newest(head)
        weights = np.maximum(attention_of_newest(head), LEAST_ATTENTION)
        norm = LogNorm(LEAST_ATTENTION, 1)
        image = left.imshow(_by_group(weights, n), norm=norm, cmap="magma", aspect="auto", interpolation="nearest")
        kinds = _by_group(kinds_of_tokens(head, fetch), n)
        limits = {"vmin": -0.5, "vmax": len(KINDS) - 0.5}
        right.imshow(kinds, cmap=ListedColormap(KIND_COLOURS), aspect="auto", interpolation="nearest", **limits)
        name = f"layer {head.layer}, KV head {head.kv_head}"
        scanned = f"{fetch.scanned.sum()} of {len(fetch.scanned)}"
        shared = f", largest of {len(head.q)} query heads" if len(head.q) > 1 else ""
        left.set_title(f"{name}: attention{shared}", fontsize=10)
        right.set_title(f"{name}: what is read ({scanned} groups scanned)", fontsize=10)
        left.set_ylabel("token of the group")
    bar = figure.colorbar(image, ax=grid[:, 0].tolist(), aspect=40, pad=0.02)
    bar.ax.set_title("share", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("group of the cache")
    handles = [
        Patch(facecolor=colour, edgecolor="0.5", label=name) for name, colour in zip(KINDS, KIND_COLOURS, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    _save(figure, path)
