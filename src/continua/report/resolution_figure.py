"""The figure of a resolution report: how output and loss change along each axis."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from continua.core.errors import reject
from continua.report.style import ACCENT, FAINT, INK, LOOK, TIMES, saved

_PANELS = {
    "tokens": ("token time $t$", "tokens"),
    "nodes": ("embedding $d$", "nodes"),
    "heads": ("heads $h$", "head nodes"),
    "steps": ("depth $z$, equal steps", "steps"),
    "rtol": ("depth $z$, adaptive", "relative tolerance"),
}
Frame: TypeAlias = Literal["data", "axes fraction"]
Number: TypeAlias = int | float
_LOSS = TIMES(0.45)
_NEEDED = ("rows", "own", "solver_invariance")


def resolution_figure(report: Mapping[str, Any], path: Path) -> list[Path]:
    """Draws a report, as `ResolutionReport.plain()` gives it, as SVG and PNG beside each other; returns both paths.

    One panel for each axis that was measured: the relative change of the output and the change of the loss against the
    resolution, finer to the right, the model's own resolution marked. In the panels of depth, the distance of the
    model's solver from the reference, if that could be solved.
    """
    missing = [name for name in _NEEDED if name not in report]
    if missing or not report["rows"]:
        cure = "Pass report.plain() of a resolution report that has rows."
        reject("report", sorted(report), f"there is nothing to draw; it lacks {missing or 'rows'}", cure)
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["unit"], []).append(row)
    units = [unit for unit in _PANELS if unit in rows]
    with matplotlib.rc_context(LOOK):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(1.6 + 2.7 * len(units), 3.6))
        grid = figure.subplots(1, len(units), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.12})
        figure.subplots_adjust(left=0.85 / figure.get_figwidth(), right=0.985, top=0.84, bottom=0.17)
        _limit(grid[0][0], report)
        for unit, axes in zip(units, grid[0], strict=True):
            _draw(axes, unit, rows[unit], report)
        grid[0][0].set_ylabel("change against the model as it is")
        return saved(figure, path)


def _draw(axes: Axes, unit: str, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
    title, label = _PANELS[unit]
    axes.set(xscale="log", xlabel=label)
    axes.set_title(title)
    own, at = report["own"].get(unit), [row["resolution"] for row in rows]
    ticks: list[Number] = sorted({*at} if own is None else {*at, own})
    margin = (ticks[-1] / ticks[0]) ** 0.06 if len(ticks) > 1 else 2.0  # before anything is drawn: zeros set no limits
    ends = (ticks[0] / margin, ticks[-1] * margin)
    axes.set_xlim(*(ends if unit != "rtol" else ends[::-1]))
    if own is not None:
        axes.axvline(own, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        _mark(axes, "own", (own, 1.0), ("data", "axes fraction"), FAINT)
    if unit in ("steps", "rtol") and report["solver_invariance"]:
        axes.axhline(report["solver_invariance"], color=ACCENT, linewidth=0.9, zorder=1)
        _mark(axes, "own solver to reference", (0.98, report["solver_invariance"]), ("axes fraction", "data"), ACCENT)
    _series(axes, at, [row["change"] for row in rows], own, INK, "output, relative")
    if all(row["loss_change"] is not None for row in rows):
        _series(axes, at, [abs(row["loss_change"]) for row in rows], own, _LOSS, "loss, absolute")
    axes.set_xticks(_spread(ticks), [f"{x:.0e}" if unit == "rtol" else f"{x:g}" for x in _spread(ticks)])
    axes.minorticks_off()
    if unit == next(unit for unit in _PANELS if any(row["unit"] == unit for row in report["rows"])):
        axes.legend(frameon=False, fontsize=9.0, loc="lower left", handlelength=1.4)


def _mark(axes: Axes, word: str, at: tuple[Number, Number], frames: tuple[Frame, Frame], colour: str) -> None:
    """A word beside a line: right of an upright one at the top, or above a level one at the right."""
    upright = frames[0] == "data"
    place = {"ha": "left" if upright else "right", "va": "top" if upright else "bottom"}
    look = {"textcoords": "offset points", "color": colour, "fontsize": 8.5, **place}
    axes.annotate(word, at, (3, -3) if upright else (0, 3), xycoords=frames, **look)


def _series(
    axes: Axes, at: Sequence[Number], values: Sequence[Number], own: Number | None, colour: Any, label: str
) -> None:
    """A line through the values, broken where the change is zero and has no logarithm: at the own resolution."""
    pairs = [(x, value if value > 0.0 else np.nan) for x, value in zip(at, values, strict=True)]
    if own is not None and own not in at:
        pairs = sorted([*pairs, (own, np.nan)])
    axes.plot(*zip(*pairs, strict=True), color=colour, linewidth=1.4, marker="o", markersize=4.5, label=label, zorder=3)


def _spread(ticks: Sequence[Number]) -> list[Number]:
    """Ticks that leave room for their labels: at most six, the finest among them."""
    return list(ticks) if len(ticks) <= 6 else [*ticks[:: -(-len(ticks) // 6)][:-1], ticks[-1]]


def _limit(axes: Axes, report: Mapping[str, Any]) -> None:
    """Whole decades around what is shown, none of them below rounding."""
    values = [abs(row[name]) for row in report["rows"] for name in ("change", "loss_change") if row[name]]
    values += [report["solver_invariance"]] if report["solver_invariance"] else []
    floor, top = (max(min(values), 1e-16), max(values)) if values else (1e-3, 1e-1)
    ends = (10.0 ** np.floor(np.log10(floor) - 0.1), 10.0 ** np.ceil(np.log10(top) + 0.3))
    axes.set(yscale="log", ylim=ends)
