"""Figures of one solve, of its conditions of optimality and of a resolution report, from numbers alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from continua.core.checks import has_shape
from continua.core.errors import reject
from continua.report.scales import format_number
from continua.runs import AbstractFigure, Lines, Note, Paths, Scale, Series, Stairs, Steps

_DEPTH = Scale("depth z")


@final
@dataclasses.dataclass(frozen=True)
class SolveRecord:
    """One sequence along depth, the steps that its solve took, and the costates of the way back.

    - `depths`, `tokens`: the states x_i(z) at increasing depths; `times`: the token times t_i;
    - `grid`, `errors`: the accepted depths, and the error estimate of each step in units of the tolerance (empty where
      a grid was given);
    - `costate_depths`, `costates`: the norms |a_i(z)| of the tokens' costates, at depths in any order;
    - `breaks`: depths where the parameters jump.
    """

    depths: Sequence[float]
    tokens: Float[np.ndarray, "depths tokens width"]
    times: Sequence[float]
    grid: Sequence[float]
    errors: Sequence[float]
    costate_depths: Sequence[float]
    costates: Float[np.ndarray, "costates tokens"]
    breaks: Sequence[float] = ()

    def __post_init__(self) -> None:
        count = len(self.times)
        has_shape((len(self.depths), count, None), "Pass one state for each depth and token.", tokens=self.tokens)
        has_shape((len(self.costate_depths), count), "Pass one norm for each depth and token.", costates=self.costates)
        if len(self.grid) < 2 or len(self.errors) not in (0, len(self.grid) - 1):
            cure = "Pass stats.grid and stats.errors of one solve."
            reject("errors", len(self.errors), f"a grid of {len(self.grid)} depths was given", cure)


def solve_figures(record: SolveRecord) -> tuple[AbstractFigure, ...]:
    """The tokens in the plane of their two principal directions, the accepted steps, their errors, the costates."""
    jumps = tuple(Note(z, "jump") for z in record.breaks)
    count, none = len(record.grid) - 1, ", none across a jump" if len(record.breaks) > 0 else ""
    tokens = Paths(
        title=f"{len(record.times)} tokens along depth",
        x=Scale("first principal direction of X(z)"),
        y=Scale("second principal direction"),
        depths=np.asarray(record.depths),
        points=_principal_plane(record.tokens),
        tokens=np.asarray(record.times, dtype=np.float64),
        hue="token time t",
    )
    steps = Steps(
        title=f"{count} accepted steps{none}",
        x=_DEPTH,
        y=Scale("step Δz"),
        stairs=(Stairs.of("step", record.grid, np.diff(record.grid)),),
        notes=jumps,
    )
    return (tokens, _costates(record, jumps), steps, *(_errors(record, jumps) if len(record.errors) > 0 else ()))


def _errors(record: SolveRecord, jumps: tuple[Note, ...]) -> tuple[Lines]:
    middles = 0.5 * (np.asarray(record.grid[1:]) + np.asarray(record.grid[:-1]))
    series = Series.of("error", middles, record.errors, mark="points")
    limit = Note(1.0, "tolerance", along="y")
    return (
        Lines(
            title="Error of each step", x=_DEPTH, y=Scale("error / tolerance"), series=(series,), notes=(limit, *jumps)
        ),
    )


def _costates(record: SolveRecord, jumps: tuple[Note, ...]) -> Lines:
    order = np.argsort(record.costate_depths)
    z, norms = np.asarray(record.costate_depths)[order], record.costates[order]
    low, middle, high = np.quantile(norms, [0.1, 0.5, 0.9], axis=1)
    series = (
        Series.of("all tokens, |a(z)|", z, np.sqrt((norms**2).sum(-1))),
        Series.of("one token, median and eight of ten", z, middle, low, high),
    )
    scale = Scale("norm of the costate", log=bool((low > 0.0).all()))
    return Lines(title="Costates, from the loss back to the input", x=_DEPTH, y=scale, series=series, notes=jumps)


def _principal_plane(tokens: Float[np.ndarray, "depths tokens width"]) -> Float[np.ndarray, "depths tokens 2"]:
    """The tokens of all depths in the plane that holds most of their variance."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((2, tokens.shape[-1]))
    plane[: len(directions[:2])] = directions[:2]  # a width of 1 has no second direction
    return (centred @ plane.T).reshape(*tokens.shape[:2], 2)


@final
@dataclasses.dataclass(frozen=True)
class PontryaginRecord:
    """The arrays of a Pontryagin report, and the numbers that are compared with them.

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
        count, cure = len(self.depths), "Pass one entry for each depth, and for defects one for each step."
        has_shape((count, None), cure, hamiltonian=self.hamiltonian)
        has_shape((count,), cure, costates=self.costates, gradients=self.gradients)
        has_shape((count - 1,), cure, defects=self.defects)


def pontryagin_figures(record: PontryaginRecord) -> tuple[AbstractFigure, ...]:
    """H of the sequences; |dH/dtheta(z)| and the projected |dJ/dphi|; the costate, and the defect of its equation."""
    z, jumps = record.depths, tuple(Note(at, "jump") for at in record.breaks)
    drift = float(np.abs(record.hamiltonian - record.hamiltonian[0]).max())
    low, high = record.hamiltonian.min(-1), record.hamiltonian.max(-1)
    projected = Note(record.projected, f"projected: |dJ/dφ| = {format_number(record.projected, 3)}", along="y")
    middles, positive = 0.5 * (z[1:] + z[:-1]), bool((record.defects > 0.0).any())
    drawn = (
        (f"Hamiltonian, drift {drift:.1e}", Scale("H, mean and range over sequences"),
         Series.of("H", z, record.hamiltonian.mean(-1), low, high), jumps),
        ("Stationarity: the field, and what it cannot follow", Scale("|∂H/∂θ(z)|"),
         Series.of("gradient", z, record.gradients), (projected, *jumps)),
        ("Costate", Scale("|a(z)|"), Series.of("costate", z, record.costates), jumps),
        ("Defect of the costate equation", Scale("defect", log=positive),
         Series.of("defect", middles, record.defects, mark="points"), jumps),
    )  # fmt: skip
    return tuple(Lines(title=title, x=_DEPTH, y=y, series=(s,), notes=notes) for title, y, s, notes in drawn)


_PANELS = {
    "tokens": ("Token time t", "tokens"),
    "nodes": ("Embedding d", "nodes"),
    "heads": ("Heads h", "head nodes"),
    "steps": ("Depth z, equal steps", "steps"),
    "rtol": ("Depth z, adaptive", "1 / relative tolerance"),
}


def resolution_figures(report: Mapping[str, Any]) -> tuple[AbstractFigure, ...]:
    """One figure for each axis that a resolution report has measured, from what `ResolutionReport.plain()` gives.

    The relative change of the output and the change of the loss against the resolution, finer to the right, the
    model's own resolution marked; along depth, the distance of the model's solver from the reference, if known.
    """
    missing = [name for name in ("rows", "own", "solver_invariance") if name not in report]
    if missing or not report["rows"]:
        cure = "Pass report.plain() of a resolution report that has rows."
        reject("report", sorted(report), f"there is nothing to draw; it lacks {missing or 'rows'}", cure)
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["unit"], []).append(row)
    return tuple(_resolution(unit, rows[unit], report) for unit in _PANELS if unit in rows)


def _resolution(unit: str, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> Lines:
    def fineness(value: int | float) -> float:
        return 1.0 / value if unit == "rtol" else float(value)

    own, gap = report["own"].get(unit), report["solver_invariance"]
    at = [fineness(row["resolution"]) for row in rows]
    notes = [] if own is None else [Note(fineness(own), "own")]
    notes += [Note(gap, "own solver to reference", along="y")] if unit in ("steps", "rtol") and gap else []
    values = {"output, relative": [row["change"] for row in rows]}
    if all(row["loss_change"] is not None for row in rows):
        values["loss, absolute"] = [abs(row["loss_change"]) for row in rows]
    # At the own resolution nothing changes, and zero has no logarithm: the line is broken there.
    gaps = [(fineness(own), np.nan)] if own is not None and fineness(own) not in at else []
    curves = {name: sorted([*zip(at, changes, strict=True), *gaps]) for name, changes in values.items()}
    series = tuple(Series.of(name, *zip(*pairs, strict=True), mark="both") for name, pairs in curves.items())
    title, label = _PANELS[unit]
    change = Scale("change against the model as it is", log=True)
    return Lines(title=title, x=Scale(label, log=True), y=change, series=series, notes=tuple(notes))
