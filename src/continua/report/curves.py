"""The course of training as figures: losses, measures, cost and speed, several learners on common axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from continua.report.reading import Learned, borrowed_validation
from continua.runs import AbstractFigure, Lines, Scale, Section, Series

_POINTS = 100
"""A curve of more updates is shown in so many groups: the mean of each, and a band of its 10 % and 90 % quantiles."""


def training_section(learned: Sequence[Learned]) -> Section | None:
    """Loss over updates and over time, every measure, evaluations, speed, learning rate and gradient norm."""
    with_rows = [one for one in learned if one.updates or one.evaluations]
    if not with_rows:
        return None
    figures: list[AbstractFigure] = [_losses(with_rows, "update", "update")]
    if any("seconds" in row for one in with_rows for row in one.updates):
        figures.append(_losses(with_rows, "seconds", "training time in seconds"))
    names = dict.fromkeys(name for one in with_rows for name in one.measures if name != "loss")
    figures += [_measure(with_rows, name) for name in names]
    figures += [figure for make in _COURSES if (figure := make(with_rows)) is not None]
    prose = (
        "Learners of one run see the same batches. Click a name to hide its curves.",
        *borrowed_validation(learned),
    )
    return Section("Training", prose, figures=tuple(figures))


def _losses(learned: Sequence[Learned], key: str, label: str) -> Lines:
    series: list[Series] = []
    for place, one in enumerate(learned):
        if one.updates:
            groups = grouped(_along(one, one.updates, key), _judged(one))
            series.append(Series.of(f"{one.name}, training", *groups, mark="faint", colour=place))
        if one.evaluations and "loss" in one.measures:
            x, y = _along(one, one.evaluations, key), one.measured("loss")
            series.append(Series.of(f"{one.name}, validation", x, y, mark="both", colour=place))
    lowest = min((float(np.nanmin(s.y)) for s in series if np.isfinite(s.y).any()), default=0.0)
    return Lines(
        title="Loss" if key == "update" else "Loss over training time",
        caption="Training losses are means over neighbouring updates, without running costs; bands hold eight of ten.",
        x=Scale(label),
        y=Scale("loss", log=lowest > 0.0),
        series=tuple(series),
    )


def _judged(one: Learned) -> np.ndarray:
    """The loss of every update without the running costs, as validation reads it; older runs know only both."""
    terminal = one.column(one.updates, "terminal")
    return np.where(np.isfinite(terminal), terminal, one.column(one.updates, "loss"))


def _along(one: Learned, rows: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    return one.spent(rows) if key == "seconds" else one.column(rows, key)


def _measure(learned: Sequence[Learned], name: str) -> Lines:
    sources = dict.fromkeys(one.validated or "the validation split" for one in learned if name in one.measures)
    series = tuple(
        Series.of(one.name, one.column(one.evaluations, "update"), one.measured(name), mark="both", colour=place)
        for place, one in enumerate(learned)
        if name in one.measures
    )
    return Lines(
        title=f"Validation {name}",
        measured="; ".join(f"all of {source}" for source in sources),
        x=Scale("update"),
        y=Scale(name),
        series=series,
    )


def _course(key: str, title: str, label: str, caption: str = "", log: bool = False) -> Callable[..., Lines | None]:
    def make(learned: Sequence[Learned]) -> Lines | None:
        columns = [(place, one, one.column(one.updates, key)) for place, one in enumerate(learned)]
        series = tuple(
            Series.of(one.name, *grouped(one.column(one.updates, "update"), y), colour=place)
            for place, one, y in columns
            if np.isfinite(y).any()
        )
        if not series:
            return None
        return Lines(title=title, caption=caption, x=Scale("update"), y=Scale(label, log=log), series=series)

    return make


_COURSES = (
    _course("evaluations", "Evaluations of the velocity", "evaluations of one update", "In one forward solve."),
    _course("tokens_per_second", "Speed", "tokens / s", "Forwards and backwards; a busy machine makes it fall."),
    _course("lr", "Learning rate", "learning rate"),
    _course("grad_norm", "Gradient norm", "|∇J|", "Before clipping.", log=True),
)


def grouped(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """x and y as they are, or in groups of neighbours: means, and the quantiles of y at 10 % and 90 %."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= _POINTS:
        return x, y, None, None
    groups = [(x[part], y[part]) for part in np.array_split(np.arange(len(x)), _POINTS)]
    means = [(float(a.mean()), float(b.mean())) for a, b in groups]
    low, high = (np.array([np.quantile(b, q) for _, b in groups]) for q in (0.1, 0.9))
    return np.array([a for a, _ in means]), np.array([b for _, b in means]), low, high
