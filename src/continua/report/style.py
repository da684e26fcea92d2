"""One look for all figures: ink on white, a few colours with a meaning each, no decoration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

INK = "#1f2933"
FAINT = "#9aa5b1"
GROUND = "#eef1f4"
ACCENT = "#c8553d"
"""Limits and jumps: what a reader must not overlook."""

TIMES = LinearSegmentedColormap.from_list("times", ["#1b3a5c", "#2f7f93", "#86b58c", "#e0b25b"])
"""Token time, from early to late."""

LOOK: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.0,
    "mathtext.fontset": "cm",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 11.0,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlepad": 9.0,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "svg.hashsalt": "continua",  # the same data give the same file
}


def mark_breaks(axes: Axes, breaks: Sequence[float]) -> None:
    """Thin lines where the parameters jump."""
    for z in breaks:
        axes.axvline(z, color=ACCENT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)


def saved(figure: Figure, path: Path) -> list[Path]:
    """Writes the figure as SVG and as PNG beside each other and returns both paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn, painted = path.with_suffix(".svg"), path.with_suffix(".png")
    figure.savefig(drawn, metadata={"Date": None})
    figure.savefig(painted, dpi=160)
    return [drawn, painted]
