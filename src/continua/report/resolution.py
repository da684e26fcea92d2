"""Figures of a resolution report, from numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from continua.runs import AbstractFigure, Lines, Note, Scale, Series

_PANELS = {
    "tokens": ("Token time t", "tokens"),
    "axis_nodes": ("Embedding d", "axis nodes"),
    "head_nodes": ("Heads h", "head nodes"),
    "steps": ("Depth z, equal steps", "steps"),
    "rtol": ("Depth z, adaptive", "1 / relative tolerance"),
}


def resolution_figures(report: Mapping[str, Any]) -> tuple[AbstractFigure, ...]:
    """One figure for each continuum that a resolution report has measured, from what `ResolutionReport.plain()` gives.

    The relative change of the output and the change of the loss against the resolution, finer to the right, the
    model's own resolution marked; along depth, the distance of the model's solver from the reference solver, if known.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["unit"], []).append(row)
    return tuple(_resolution(unit, rows[unit], report) for unit in _PANELS if unit in rows)


def _resolution(unit: str, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> Lines:
    def fineness(value: int | float) -> float:
        return 1.0 / value if unit == "rtol" else float(value)

    own, gap = report["own"].get(unit), report["solver_error"]
    at = [fineness(row["resolution"]) for row in rows]
    notes = [] if own is None else [Note(fineness(own), "own")]
    notes += [Note(gap, "own solver to reference solver", along="y")] if unit in ("steps", "rtol") and gap else []
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
