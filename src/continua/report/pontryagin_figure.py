"""The figure of a Pontryagin report: the Hamiltonian, the gradient by parameters and the costate along depth."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from continua.core.errors import reject
from continua.report.style import ACCENT, FAINT, GROUND, INK, LOOK, mark_breaks, saved


@final
@dataclasses.dataclass(frozen=True)
class PontryaginRecord:
    """What the figure is drawn from: the arrays of a report, and the numbers that are compared with them.

    - `depths`: the grid; `hamiltonian`: H_b(z) for each sequence; `costates`: |a(z)|; `gradients`: |dH/dtheta(z)|;
    - `defects`: the residual of the costate equation in each step;
    - `projected`: |dJ/dphi|, which training drives to zero; `breaks`: depths where the parameters jump.
    """

    depths: Float[np.ndarray, " depths"]
    hamiltonian: Float[np.ndarray, "depths batch"]
    costates: Float[np.ndarray, " depths"]
    gradients: Float[np.ndarray, " depths"]
    defects: Float[np.ndarray, " steps"]
    projected: float
    breaks: Sequence[float] = ()

    def __post_init__(self) -> None:
        count = len(self.depths)
        for name, size in (("hamiltonian", count), ("costates", count), ("gradients", count), ("defects", count - 1)):
            if len(getattr(self, name)) != size:
                cure = f"Pass {size} entries: one a depth, and for defects one a step."
                reject(name, len(getattr(self, name)), f"there are {count} depths", cure)


def pontryagin_figure(record: PontryaginRecord, path: Path) -> list[Path]:
    """Draws the record as SVG and PNG beside each other, at `path` with these suffixes, and returns both paths.

    Left: H of every sequence and their mean. Middle: |dH/dtheta(z)|, against the projected |dJ/dphi|. Right: the
    costate, and below it how far each step misses its equation.
    """
    with matplotlib.rc_context(LOOK):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=(12.6, 4.3))
        frame = {"left": 0.06, "right": 0.985, "top": 0.88, "bottom": 0.13, "wspace": 0.3}
        columns = figure.add_gridspec(1, 3, **frame)
        _draw_hamiltonian(figure.add_subplot(columns[0]), record)
        _draw_gradients(figure.add_subplot(columns[1]), record)
        rows = columns[2].subgridspec(2, 1, hspace=0.16)
        _draw_costates(upper := figure.add_subplot(rows[0]), record)
        _draw_defects(figure.add_subplot(rows[1], sharex=upper), record)
        return saved(figure, path)


def _draw_hamiltonian(axes: Axes, record: PontryaginRecord) -> None:
    mark_breaks(axes, record.breaks)
    axes.plot(record.depths, record.hamiltonian, color=FAINT, linewidth=0.8, alpha=0.7)
    axes.plot(record.depths, record.hamiltonian.mean(-1), color=INK, linewidth=2.0)
    drift = float(np.abs(record.hamiltonian - record.hamiltonian[0]).max())
    axes.set_title(f"Hamiltonian, drift {drift:.1e}")
    axes.set(xlabel="depth $z$", ylabel="$H$ of each sequence, and the mean", xlim=_ends(record))
    axes.margins(y=0.15)
    axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 4))


def _draw_gradients(axes: Axes, record: PontryaginRecord) -> None:
    mark_breaks(axes, record.breaks)
    axes.fill_between(record.depths, 0.0, record.gradients, color=GROUND)
    axes.plot(record.depths, record.gradients, color=INK, linewidth=2.0)
    axes.axhline(record.projected, color=ACCENT, linewidth=1.1)
    words = {"transform": axes.transAxes, "color": ACCENT, "ha": "right", "va": "top"}
    axes.text(0.99, 0.98, rf"projected: $|dJ/d\varphi| = {_power(record.projected)}$", **words)
    axes.set_title("stationarity: the field, and what it cannot follow")
    axes.set(xlabel="depth $z$", ylabel=r"$|\partial H/\partial\theta(z)|$", xlim=_ends(record))
    axes.set_ylim(0.0, 1.2 * max(float(record.gradients.max()), record.projected, 1e-300))


def _draw_costates(axes: Axes, record: PontryaginRecord) -> None:
    mark_breaks(axes, record.breaks)
    axes.plot(record.depths, record.costates, color=INK, linewidth=2.0)
    axes.set_title("costate, and the defect of its equation")
    axes.set(ylabel="$|a(z)|$", ylim=(0.0, 1.2 * max(float(record.costates.max()), 1e-300)))
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_label_coords(-0.14, 0.5)


def _draw_defects(axes: Axes, record: PontryaginRecord) -> None:
    mark_breaks(axes, record.breaks)
    middles = 0.5 * (record.depths[1:] + record.depths[:-1])
    axes.scatter(middles, record.defects, s=18, color=INK, zorder=3)
    if float(record.defects.max()) > 0.0:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="depth $z$", ylabel="defect", xlim=_ends(record))
    axes.margins(y=0.25)
    axes.yaxis.set_label_coords(-0.14, 0.5)


def _ends(record: PontryaginRecord) -> tuple[float, float]:
    return float(record.depths[0]), float(record.depths[-1])


def _power(value: float) -> str:
    if value == 0.0:
        return "0"
    exponent = int(np.floor(np.log10(value)))
    return rf"{value / 10.0**exponent:.1f} \cdot 10^{{{exponent}}}"
