"""The figure of one solve: tokens along depth, the steps that were taken, the costates of the way back."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from continua.report.record import SolveRecord
from continua.report.style import ACCENT, FAINT, GROUND, INK, LOOK, TIMES, mark_breaks, saved


def solve_figure(record: SolveRecord, path: Path) -> list[Path]:
    """Draws the record as SVG and PNG beside each other, at `path` with these suffixes, and returns both paths.

    Left: the tokens in the plane of their two principal directions, one curve over token time at the start and one at
    the end, with the path of each token between. Middle: length and error of the accepted steps. Right: costates.
    """
    with matplotlib.rc_context(LOOK):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(12.6, 4.3))
        frame = {"left": 0.05, "right": 0.985, "top": 0.88, "bottom": 0.13, "wspace": 0.32}
        columns = figure.add_gridspec(1, 3, width_ratios=(1.15, 1.0, 1.0), **frame)
        _draw_tokens(figure.add_subplot(columns[0]), record)
        rows = columns[1].subgridspec(2, 1, hspace=0.16)
        _draw_lengths(upper := figure.add_subplot(rows[0]), record)
        _draw_errors(figure.add_subplot(rows[1], sharex=upper), record)
        _draw_costates(figure.add_subplot(columns[2]), record)
        return saved(figure, path)


def _draw_tokens(axes: Axes, record: SolveRecord) -> None:
    plane, shares = _principal_plane(record.tokens), _shares(record.times)
    for path, share in zip(plane.transpose(1, 2, 0), shares, strict=True):
        axes.plot(*path, color=TIMES(share), linewidth=0.9, alpha=0.5)
    axes.plot(*plane[0].T, color=FAINT, linewidth=1.0, zorder=3)
    start = axes.scatter(*plane[0].T, s=15, facecolor="white", edgecolor=FAINT, linewidth=1.0, zorder=4)
    segments, middles = np.stack([plane[-1, :-1], plane[-1, 1:]], axis=1), (shares[:-1] + shares[1:]) / 2
    axes.add_collection(LineCollection(list(segments), colors=TIMES(middles), linewidths=1.6, zorder=5))
    axes.scatter(*plane[-1].T, s=20, color=TIMES(shares), zorder=6)
    end = axes.scatter([], [], s=20, color=TIMES(0.4))
    axes.legend([start, end], ["$z = 0$", f"$z = {record.grid[-1]:g}$"], frameon=False, handletextpad=0.1)
    axes.set_title(f"{len(record.times)} tokens along depth", y=1.0)  # the key beside it must not lift it
    axes.set(xlabel="first principal direction of $X(z)$", ylabel="second principal direction")
    axes.margins(0.06)
    _draw_key(axes.inset_axes((0.76, 1.045, 0.16, 0.025)), record)


def _draw_key(axes: Axes, record: SolveRecord) -> None:
    """The colours of token time, beside the title."""
    axes.imshow(np.linspace(0.0, 1.0, 128)[None, :], cmap=TIMES, aspect="auto")
    axes.set_axis_off()
    words = {"transform": axes.transAxes, "va": "center", "fontsize": 9.0}
    axes.text(-0.07, 0.4, f"$t = {min(record.times):.1g}$", ha="right", **words)
    axes.text(1.07, 0.4, f"${max(record.times):.1g}$", ha="left", **words)


def _draw_lengths(axes: Axes, record: SolveRecord) -> None:
    grid = np.asarray(record.grid)
    lengths, middles = np.diff(grid), (grid[1:] + grid[:-1]) / 2
    mark_breaks(axes, record.breaks)
    axes.bar(middles, lengths, width=lengths, color=GROUND, edgecolor="white", linewidth=0.8)
    axes.hlines(lengths, grid[:-1], grid[1:], color=INK, linewidth=1.6)
    axes.set_title(f"{len(lengths)} accepted steps" + (", none across a jump" if len(record.breaks) > 0 else ""))
    axes.set(ylabel=r"step $\Delta z$", ylim=(0.0, 1.22 * lengths.max()))
    for z in record.breaks:
        axes.annotate("jump", (z, axes.get_ylim()[1]), (4, -4), textcoords="offset points", va="top", color=ACCENT)
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_label_coords(-0.14, 0.5)


def _draw_errors(axes: Axes, record: SolveRecord) -> None:
    grid = np.asarray(record.grid)
    mark_breaks(axes, record.breaks)
    if len(record.errors) > 0:
        middles = (grid[1:] + grid[:-1]) / 2
        axes.axhline(1.0, color=ACCENT, linewidth=0.9)
        axes.vlines(middles, 0.0, record.errors, color=FAINT, linewidth=1.0)
        axes.scatter(middles, record.errors, s=18, color=INK, zorder=3)
    axes.set(xlim=(grid[0], grid[-1]), ylim=(0.0, 1.15), yticks=[0.0, 0.5, 1.0])
    axes.set(xlabel="depth $z$", ylabel="error / tolerance")
    axes.yaxis.set_label_coords(-0.14, 0.5)


def _draw_costates(axes: Axes, record: SolveRecord) -> None:
    order = np.argsort(record.costate_depths)
    depths, norms = np.asarray(record.costate_depths)[order], record.costates[order]
    whole = np.sqrt((norms**2).sum(-1))
    mark_breaks(axes, record.breaks)
    for norm, share in zip(norms.T, _shares(record.times), strict=True):
        axes.plot(depths, norm, color=TIMES(share), linewidth=0.9, alpha=0.8)
    axes.plot(depths, whole, color=INK, linewidth=2.0)
    label = len(depths) // 4
    axes.annotate("$|a(z)|$", (depths[label], whole[label]), (2, 6), textcoords="offset points")
    axes.set_title("costates, from the loss back to the input")
    axes.set(xlabel="depth $z$", ylabel="$|a_i(z)|$ of each token", xlim=(depths[0], depths[-1]))
    floor = float(np.quantile(norms, 0.02))
    if floor > 0.0:  # below it a single token that nobody heeds would squeeze all others
        axes.set(yscale="log", ylim=(0.6 * floor, None))


def _principal_plane(tokens: Float[np.ndarray, "depths tokens width"]) -> Float[np.ndarray, "depths tokens 2"]:
    """The tokens of all depths in the plane that holds most of their variance."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((2, tokens.shape[-1]))
    plane[: len(directions[:2])] = directions[:2]  # a width of 1 has no second direction
    return (centred @ plane.T).reshape(*tokens.shape[:2], 2)


def _shares(times: Sequence[float]) -> Float[np.ndarray, " tokens"]:
    """Times from 0 to 1."""
    array = np.asarray(times, dtype=float)
    return (array - array.min()) / max(float(np.ptp(array)), 1e-12)
