"""Plot of traffic against loss."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.errors import UserError

__all__ = ["check_plot", "pareto_front", "plot_pareto"]

FORMATS = (".png", ".svg", ".pdf")
KL_FLOOR = 1e-4
"""Divergence below which a point is drawn at the lower edge (FP16 has 1e-7, from rounding)."""


def check_plot(path: Path) -> None:
    """`UserError` when `path` cannot be plotted to: no known ending, or no matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"a plot's name must end in {', '.join(FORMATS)}, not {path.name!r}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError("plots need matplotlib: pip install 'kvo[plots]'") from None


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the points (traffic, loss) that no other point beats in both, by rising traffic."""
    front: list[str] = []
    for name in sorted(points, key=lambda name: points[name]):
        if not front or points[name][1] < points[front[-1]][1]:
            front.append(name)
    return front


def plot_pareto(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows' methods: bits fetched against FP16 (log) over KL divergence (log), means over the texts.

    Small dots are single texts; the line right of a point ends at the traffic in the largest bursts.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(8, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    burst = [key for key in rows[0] if key.startswith("read_fraction_")][-1]
    means: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        read, rounded = (math.fsum(row[key] for row in own) / len(own) for key in ("read_fraction", burst))
        loss = max(math.fsum(row["kl"] for row in own) / len(own), KL_FLOOR)
        means[name] = read, loss
        colour = "tab:red" if name.startswith("kvo") else "tab:blue"
        if len(own) > 1:
            losses = [max(row["kl"], KL_FLOOR) for row in own]
            axes.plot([row["read_fraction"] for row in own], losses, ".", color=colour, alpha=0.3, markersize=5)
        axes.plot([read, rounded], [loss, loss], "-", color=colour, linewidth=1.5)
        axes.plot(read, loss, "o", color=colour, markersize=8)
    front = pareto_front(means)
    axes.plot(*zip(*(means[name] for name in front), strict=True), "--", color="0.6", linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    least, most = min(read for read, _ in means.values()) / 1.35, max(read for read, _ in means.values()) * 1.45
    axes.set_xlim(least, most)
    axes.set_ylim(KL_FLOOR / 1.6, max(KL_FLOOR * 10, *(row["kl"] for row in rows)) * 1.8)
    ticks = [share for share in (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0) if least <= share <= most]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"KV cache traffic against FP16 (line: in bursts of {burst.rpartition('_')[2]} bytes)")
    axes.set_ylabel(f"KL divergence from the uncompressed model, nats (at least {KL_FLOOR:g})")
    names = list(dict.fromkeys(Path(row["text"]).name for row in rows))
    first = rows[0]
    axes.set_title(f"{first['model']}, {first['context']} tokens; {', '.join(names)}", fontsize=11)
    axes.grid(True, which="major", color="0.9")
    for name, shift in _label_places(means).items():
        axes.annotate(name, means[name], xytext=shift, textcoords="offset points", fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _label_places(points: Mapping[str, tuple[float, float]]) -> dict[str, tuple[int, int]]:
    """Offset of each name from its point, above it unless a lower neighbour is in the way, then below."""
    places = {}
    for name, (read, loss) in points.items():
        crowded = any(
            other != name and abs(math.log(read / x)) < 0.35 and 0 < math.log(y / loss) < 0.5
            for other, (x, y) in points.items()
        )
        places[name] = (6, -14) if crowded else (6, 7)
    return places
