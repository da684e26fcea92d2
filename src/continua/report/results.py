"""What came out of a run: the summary, depth steps at test time, other samplings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from continua.report.axes import format_duration, format_number
from continua.report.reading import Learned, borrowed_validation
from continua.runs import AbstractFigure, Bars, Cell, Lines, Scale, Section, Series, Table

_OWN = "as trained"
_FEW = 4
"""So many learners fit beside each other."""


def summary_section(learned: Sequence[Learned]) -> Section | None:
    """Size, test, validation and cost of every learner: a column for each, or a row where they are many."""
    if not learned:
        return None
    tests = list(dict.fromkeys(name for one in learned for name in _test(one)))
    names = ("parameters", "optimiser", *(f"test {name}" for name in tests), "best validation loss",
             "last validation loss", "updates", "evaluations / update", "tokens / s", "training time")  # fmt: skip
    found = [_facts(one, tests) for one in learned]
    if len(learned) <= _FEW:
        columns, rows = ("", *(one.name for one in learned)), tuple(zip(names, *found, strict=True))
    else:
        columns = ("model", *names)
        rows = tuple((one.name, *facts) for one, facts in zip(learned, found, strict=True))
    caption = "Evaluations and speed are medians over the updates. "
    caption += "Training time is that of a model's own updates; evaluations and other models are not in it."
    table = Table(title="Models", columns=columns, rows=rows, caption=caption)
    return Section("Results", borrowed_validation(learned), figures=(table,))


def cards(learned: Sequence[Learned]) -> list[tuple[str, str]]:
    """The few numbers that a reader wants first."""
    found: list[tuple[str, str]] = []
    for one in learned[:3]:
        name = next((name for name in _test(one) if name != "loss"), "loss")
        if name in _test(one):
            found.append((_share(name, _test(one)[name]), f"test {name}, {one.name}"))
    for one in learned[:1]:
        if one.parameters is not None:
            found.append((format_number(one.parameters), f"parameters, {one.name}"))
        if one.updates:
            found.append((format_number(_median(one, "evaluations")), "evaluations of the velocity in one update"))
        if one.seconds > 0.0:
            found.append((format_duration(one.seconds), f"training time, {len(one.updates):,} updates of {one.name}"))
    return found


def anytime_section(learned: Sequence[Learned]) -> Section | None:
    """Every test measure against the number of depth steps."""
    solved = [(place, one) for place, one in enumerate(learned) if one.test.get("depth")]
    if not solved:
        return None
    names = list(dict.fromkeys(n for _, one in solved for measures in one.test["depth"].values() for n in measures))
    figures: list[AbstractFigure] = []
    for name in names:
        series = tuple(_by_steps(one, name, place) for place, one in solved)
        figures.append(
            Lines(
                title=f"Test {name} by depth steps",
                measured="the whole test split",
                x=Scale("depth steps", log=True),
                y=Scale(name),
                series=series,
            )
        )
    gaps = [(one.name, one.test["gap to a tight solve"]) for _, one in solved if "gap to a tight solve" in one.test]
    told = tuple(
        f"{name}: at most {gap:.1%} of the largest output away from a tight adaptive solve." for name, gap in gaps
    )
    prose = ("The same weights, solved in fewer or more steps: a coarse answer early, a finer one later.", *told)
    return Section("Anytime depth", prose, figures=tuple(figures))


def samplings_section(learned: Sequence[Learned]) -> Section | None:
    """The test in other samplings of token time, without further training."""
    sampled = [one for one in learned if len(one.test.get("samplings", {})) > 1]
    if not sampled:
        return None
    rows = list(dict.fromkeys(name for one in sampled for name in one.test["samplings"]))
    names = [name for name in _test(sampled[0]) if name != "loss"] or ["loss"]
    figures: list[AbstractFigure] = []
    for name in names:
        values = [[_number(one.test["samplings"].get(row, {}).get(name)) for row in rows] for one in sampled]
        figures.append(
            Bars(
                title=f"Test {name} in other samplings",
                measured="the whole test split",
                y=Scale(name),
                categories=tuple(rows),
                names=tuple(one.name for one in sampled),
                values=np.array(values),
            )
        )
        cells = tuple((row, *(one.test["samplings"].get(row, {}).get(name) for one in sampled)) for row in rows)
        columns = ("sampling", *(one.name for one in sampled))
        figures.append(Table(title=f"Test {name}", columns=columns, rows=cells))
    prose = ("The test sampled otherwise than in training. Nothing was trained further.",)
    return Section("Resolution", prose, figures=tuple(figures))


def _by_steps(one: Learned, name: str, place: int) -> Series:
    known = sorted((int(steps), measures) for steps, measures in one.test["depth"].items())
    x, y = [steps for steps, _ in known], [_number(measures.get(name)) for _, measures in known]
    return Series.of(one.name, x, y, mark="both", colour=place)


def _facts(one: Learned, tests: Sequence[str]) -> tuple[Cell, ...]:
    losses = one.measured("loss")
    best, last = (float(np.nanmin(losses)), float(losses[-1])) if np.isfinite(losses).any() else (None, None)
    return (one.parameters, one.optimiser, *(_test(one).get(name) for name in tests), best, last, len(one.updates),
            _median(one, "evaluations"), _median(one, "tokens_per_second"),
            format_duration(one.seconds) if one.seconds > 0.0 else None)  # fmt: skip


def _test(one: Learned) -> dict[str, Any]:
    return one.test.get("samplings", {}).get(_OWN, {})


def _median(one: Learned, key: str) -> float | None:
    column = one.column(one.updates, key)
    return float(np.nanmedian(column)) if np.isfinite(column).any() else None


def _share(name: str, value: float) -> str:
    return f"{value:.1%}".replace("%", " %") if name == "accuracy" else format_number(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
