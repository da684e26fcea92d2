"""What records say, as sections: summary, course of training, depth steps, other samplings, other resolutions."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from continua.core.counts import say_count
from continua.report.scales import format_duration, format_number
from continua.runs import AbstractFigure, Bars, Cell, Curve, Lines, Note, Scale, Section, Table

_POINTS = 100
"""A curve of more updates is shown in so many groups: the mean of each, and a band of its 10 % and 90 % quantiles."""
_FEW = 4
"""So many learners fit beside each other."""
_STEPS = re.compile(r"\d+ steps?")
"""The name of a resolution that is a number of depth steps."""
_COURSES = (
    ("evaluations", "Evaluations of the velocity", Scale("evaluations per update"), "In one forward solve."),
    ("tokens_per_second", "Speed", Scale("tokens / s"), "Forwards and backwards; a busy machine makes it fall."),
    ("lr", "Learning rate", Scale("learning rate"), ""),
    ("grad_norm", "Gradient norm", Scale("|∇J|", log=True), "Before clipping."),
)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LearnerRecord:
    """What the records say of one learner of one run, under a name that no other in the report has."""

    name: str
    learner: str
    parameters: int | None
    updates: Sequence[dict[str, Any]]
    validations: Sequence[dict[str, Any]]
    test: dict[str, Any]
    optimiser: str | None = None
    memory: int | None = None
    """Bytes at the peak of an update, above the model."""
    validation: str = ""
    """What its validation reads, where it reads no samples of its own."""
    split: str = ""
    """How the data are parted."""

    @classmethod
    def of(cls, name: str, learner: str, rows: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> "LearnerRecord":
        """From the rows of a run and the facts of its manifest."""
        own = [row for row in rows if row.get("model") == learner]
        updates, validations, tests = ([r for r in own if r["kind"] == k] for k in ("update", "validation", "test"))
        size, memory, optimiser = (facts.get(key, {}).get(learner) for key in ("parameters", "memory", "optimisers"))
        task = facts.get("task", {})
        validation = str(task.get("validation", "")) if isinstance(task, dict) else ""
        split = str(task.get("split", "")) if isinstance(task, dict) else ""
        test = tests[-1] if tests else {}
        return cls(name, learner, size, updates, validations, test, optimiser, memory, validation, split)

    def clock(self, rows: Sequence[dict[str, Any]]) -> np.ndarray:
        """Seconds that this learner's own updates had taken at the update of every row; learners take turns."""
        done, seconds = _column(self.updates, "update"), np.nancumsum(_column(self.updates, "seconds"))
        at = _column(rows, "update")
        return np.interp(at, done, seconds) if len(done) else np.full_like(at, np.nan)

    def losses(self) -> np.ndarray:
        """The loss of every update, without the running costs, as validation reads it."""
        return _column(self.updates, "loss")

    def median(self, key: str) -> float | None:
        """The median of one number over the updates."""
        column = _column(self.updates, key)
        return float(np.nanmedian(column)) if np.isfinite(column).any() else None

    @property
    def seconds(self) -> float:
        """Training time: what its own updates took, without validations and without the turns of other learners."""
        return float(np.nansum(_column(self.updates, "seconds")))

    @property
    def metrics(self) -> list[str]:
        """The names of what was measured on the validation split, the loss first."""
        return list(dict.fromkeys(name for row in self.validations for name in row.get("metrics", {})))

    def metric(self, name: str) -> np.ndarray:
        """One metric of every validation."""
        return _column([row.get("metrics", {}) for row in self.validations], name)

    @property
    def tests(self) -> dict[str, Any]:
        """The measures of the test, sampled as in training."""
        return self.test.get("samplings", {}).get("as trained", {})


Learners = Sequence[LearnerRecord]


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One number of every row, NaN where a row has none."""
    found = (row.get(key) for row in rows)
    return np.array([x if isinstance(x, int | float) else np.nan for x in found], dtype=np.float64)


def _summary_section(learners: Learners) -> Section | None:
    """Size, test, validation and cost of every learner: a column for each, or a row where they are many."""
    if not learners:
        return None
    tests = list(dict.fromkeys(name for one in learners for name in one.tests))
    names = ("parameters", "memory of an update, MiB", "optimiser", *(f"test {name}" for name in tests),
             "best validation loss", "last validation loss", "updates", "evaluations / update", "tokens / s",
             "training time")  # fmt: skip
    found = [_facts(one, tests) for one in learners]
    if len(learners) <= _FEW:
        columns, rows = ("", *(one.name for one in learners)), tuple(zip(names, *found, strict=True))
    else:
        columns = ("model", *names)
        rows = tuple((one.name, *facts) for one, facts in zip(learners, found, strict=True))
    caption = "Evaluations and speed are medians over the updates. "
    caption += "Training time is that of a model's own updates; validations and other models are not in it."
    table = Table(title="Models", columns=columns, rows=rows, caption=caption)
    splits = dict.fromkeys(one.split for one in learners if one.split)
    prose = (*(f"Split: {split}." for split in splits), *_validation_sources(learners))
    return Section("Results", prose, figures=(table,))


def _facts(one: LearnerRecord, tests: Sequence[str]) -> tuple[Cell, ...]:
    losses = one.metric("loss")
    best, last = (float(np.nanmin(losses)), float(losses[-1])) if np.isfinite(losses).any() else (None, None)
    memory = one.memory and round(one.memory / 2**20, 1)
    return (one.parameters, memory, one.optimiser, *(one.tests.get(name) for name in tests), best, last,
            len(one.updates), one.median("evaluations"), one.median("tokens_per_second"),
            format_duration(one.seconds) if one.seconds > 0.0 else None)  # fmt: skip


def _validation_sources(learners: Learners) -> tuple[str, ...]:
    """One sentence for each kind of samples that validation borrows: a reader must not take it for an unseen split."""
    sentences = []
    for source in dict.fromkeys(one.validation for one in learners if one.validations and one.validation):
        those = [one.name for one in learners if one.validation == source]
        whose = "" if len(those) == len(learners) else f" of {', '.join(those)}"
        sentences.append(f"Validation{whose} reads {source}: this task keeps none apart for it. "
                         "Training chooses nothing by them.")  # fmt: skip
    return tuple(sentences)


def cards(learners: Learners) -> list[tuple[str, str]]:
    """The few numbers that a reader wants first."""
    found: list[tuple[str, str]] = []
    for one in learners[:3]:
        name = next((name for name in one.tests if name != "loss"), "loss")
        if name in one.tests:
            value = one.tests[name]
            words = f"{value:.1%}".replace("%", " %") if name == "accuracy" else format_number(value)
            found.append((words, f"test {name}, {one.name}"))
    for one in learners[:1]:
        if one.parameters is not None:
            found.append((format_number(one.parameters), f"parameters, {one.name}"))
        if one.updates:
            found.append((format_number(one.median("evaluations")), "evaluations of the velocity in one update"))
        if one.seconds > 0.0:
            found.append(
                (format_duration(one.seconds), f"training time, {say_count(len(one.updates), 'update')} of {one.name}")
            )
    return found


def _training_section(learners: Learners) -> Section | None:
    """Loss over updates and over time, every measure, evaluations, speed, learning rate and gradient norm."""
    known = [one for one in learners if one.updates or one.validations]
    if not known:
        return None
    timed = any("seconds" in row for one in known for row in one.updates)
    figures = [_losses(known, over_time) for over_time in ((False, True) if timed else (False,))]
    for name in dict.fromkeys(name for one in known for name in one.metrics if name != "loss"):
        sources = dict.fromkeys(one.validation or "the validation split" for one in known if name in one.metrics)
        about = {"title": f"Validation {name}", "measured": "; ".join(f"all of {source}" for source in sources)}
        curves = [(_column(one.validations, "update"), one.metric(name)) for one in known]
        figures += _curves(known, curves, x=Scale("update"), y=Scale(name), **about)
    for key, title, y, caption in _COURSES:
        curves = [group_means(_column(one.updates, "update"), _column(one.updates, key)) for one in known]
        figures += _curves(known, curves, mark="line", x=Scale("update"), y=y, title=title, caption=caption)
    prose = ("Models of one run see the same batches. Click a name to hide its curves; drag over a figure to look "
             "closer.", *_validation_sources(learners))  # fmt: skip
    return Section("Training", prose, figures=tuple(figures))


def _losses(learners: Learners, over_time: bool) -> Lines:
    def along(one: LearnerRecord, rows: Sequence[dict[str, Any]]) -> np.ndarray:
        return one.clock(rows) if over_time else _column(rows, "update")

    series: list[Curve] = []
    for place, one in enumerate(learners):
        if one.updates:
            groups = group_means(along(one, one.updates), one.losses())
            series.append(Curve.of(f"{one.name}, training", *groups, mark="faint", colour=place))
        if one.validations and "loss" in one.metrics:
            x, y = along(one, one.validations), one.metric("loss")
            series.append(Curve.of(f"{one.name}, validation", x, y, mark="both", colour=place))
    lowest = min((float(np.nanmin(s.y)) for s in series if np.isfinite(s.y).any()), default=0.0)
    return Lines(
        title="Loss over training time" if over_time else "Loss",
        caption="Training losses are means over neighbouring updates, without running costs; bands hold eight of ten.",
        x=Scale("training time in seconds" if over_time else "update"),
        y=Scale("loss", log=lowest > 0.0),
        curves=tuple(series),
    )


def _curves(learners: Learners, curves: Sequence[Sequence[Any]], mark: str = "both", **about: Any) -> list[Lines]:
    """One figure with the curve of every learner that has any number, each in its own colour; none without curves."""
    series = tuple(
        Curve.of(one.name, *curve, mark=mark, colour=place)
        for place, (one, curve) in enumerate(zip(learners, curves, strict=True))
        if np.isfinite(curve[1]).any()
    )
    return [Lines(curves=series, **about)] if series else []


def group_means(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """x and y as they are, or in groups of neighbours: means, and the quantiles of y at 10 % and 90 %."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= _POINTS:
        return x, y, None, None
    groups = np.array_split(np.arange(len(x)), _POINTS)
    low, high = (np.array([np.quantile(y[group], q) for group in groups]) for q in (0.1, 0.9))
    return np.array([x[group].mean() for group in groups]), np.array([y[group].mean() for group in groups]), low, high


def _anytime_section(learners: Learners) -> Section | None:
    """Every test measure against the number of depth steps."""
    tests = [sorted((int(steps), row) for steps, row in one.test.get("depth_steps", {}).items()) for one in learners]
    names = dict.fromkeys(name for test in tests for _, row in test for name in row)
    if not names:
        return None
    figures: list[AbstractFigure] = []
    for name in names:
        curves = [([steps for steps, _ in test], _column([row for _, row in test], name)) for test in tests]
        y = _scale_of(name, [values for _, values in curves])
        about = {"title": f"Test {name} by depth steps", "measured": "the whole test split", "y": y}
        figures += _curves(learners, curves, x=Scale("depth steps", log=True), **about)
    figures += _cost_figures(learners)
    figures += [_resolutions_table(one) for one in learners if one.test.get("resolutions")]
    errors = [(one.name, one.test.get("solver error")) for one in learners if one.test.get("depth_steps")]
    prose = ("The same parameters, solved in fewer or more steps: a coarse answer early, a finer one later.",
             *(f"{name}: its solver error is {error:.1%} of the output."
               for name, error in errors if error is not None))  # fmt: skip
    return Section("Anytime depth", prose, figures=tuple(figures))


def _scale_of(name: str, curves: Sequence[np.ndarray]) -> Scale:
    """In equal ratios where one number, such as the loss at one step, would flatten all others."""
    known = np.concatenate([np.ravel(values) for values in curves])
    known = known[np.isfinite(known)]
    return Scale(name, log=bool(known.size and known.min() > 0.0 and known.max() > 5.0 * np.median(known)))


def _cost_figures(learners: Learners) -> list[AbstractFigure]:
    """The loss against evaluations and against time: numbers of depth steps as a curve, all else as named points."""
    found = [one.test.get("resolutions", {}) for one in learners]
    y = _scale_of("loss", [_column([*rows.values()], "loss") for rows in found])
    caption = f"Lines: numbers of depth steps.{_name_others(learners)} A name without room is shown under the pointer."
    timed = "; the median of a few calls"
    figures: list[AbstractFigure] = []
    for cost, label, how in (
        ("evaluations", "evaluations of the velocity", ""),
        ("milliseconds", "milliseconds per sequence", timed),
    ):
        curves = tuple(each for place, one in enumerate(learners) for each in _cost_curves(one, cost, place))
        about = {"caption": caption, "measured": f"the first sequences of the test{how}", "y": y, "curves": curves}
        figures += [Lines(title=f"Loss against {cost}", x=Scale(label, log=True), **about)] if curves else []
    return figures


def _cost_curves(one: LearnerRecord, cost: str, colour: int) -> list[Curve]:
    """The loss of one learner against a cost, where this was measured."""
    rows = {name: row for name, row in one.test.get("resolutions", {}).items() if row.get(cost) is not None}
    steps = {name.split()[0]: row for name, row in rows.items() if _STEPS.fullmatch(name)}
    steps = dict(sorted(steps.items(), key=lambda item: int(item[0])))
    others = {name: row for name, row in rows.items() if not _STEPS.fullmatch(name)}
    kinds = (("depth steps", "both", steps), ("other resolutions", "hollow", others))
    return [
        Curve.of(f"{one.name}, {kind}", _column([*held.values()], cost), _column([*held.values()], "loss"),
                 mark=mark, colour=colour, labels=tuple(held))
        for kind, mark, held in kinds if held
    ]  # fmt: skip


def _name_others(learners: Learners) -> str:
    """What the other resolutions of some learners change."""
    found = dict.fromkeys(name for one in learners for name in one.test.get("resolutions", {}))
    words = ["tolerances"] if any(name.startswith("rtol") for name in found) else []
    words += [end for end in ("head nodes", "axis nodes") if any(name.endswith(end) for name in found)]
    words += ["samplings"] if any(name in one.test.get("samplings", {}) for one in learners for name in found) else []
    return f" Hollow points: other {', '.join(words)}." if words else ""


def pareto_front(test: Mapping[str, Any]) -> list[str]:
    """The resolutions of a tested model than which no other is faster at no more loss.

    Other samplings are no choice: they read other data.
    """
    rows = {name: row for name, row in test.get("resolutions", {}).items() if name not in test.get("samplings", {})}
    times, losses = (_column([*rows.values()], key) for key in ("milliseconds", "loss"))
    return [
        name
        for name, time, loss in zip(rows, times, losses, strict=True)
        if np.isfinite(time + loss) and not ((times < time) & (losses <= loss)).any()
    ]


def _resolutions_table(one: LearnerRecord) -> Table:
    rows, front = one.test["resolutions"], pareto_front(one.test)
    names = tuple(dict.fromkeys(name for row in rows.values() for name in row))
    cells = tuple(
        (f"{resolution} *" if resolution in front else resolution, *(row.get(name) for name in names))
        for resolution, row in rows.items()
    )
    caption = "Milliseconds per sequence: the median of a few calls on the first sequences of the test."
    caption += " *: no other is faster at no more loss." if front else ""
    return Table(title=f"{one.name} at other resolutions", columns=("resolution", *names), rows=cells, caption=caption)


def _samplings_section(learners: Learners) -> Section | None:
    """The test in other samplings of token time, without further training."""
    known = [one for one in learners if len(one.test.get("samplings", {})) > 1]
    if not known:
        return None
    rows = tuple(dict.fromkeys(row for one in known for row in one.test["samplings"]))
    names = tuple(one.name for one in known)
    figures: list[AbstractFigure] = []
    for measure in [name for name in known[0].tests if name != "loss"] or ["loss"]:
        found = np.array([_column([one.test["samplings"].get(r, {}) for r in rows], measure) for one in known])
        title, whole = f"Test {measure} in other samplings", "the whole test split"
        bars = Bars(title=title, measured=whole, y=Scale(measure), categories=rows, names=names, values=found)
        cells = tuple((row, *values) for row, values in zip(rows, found.T.tolist(), strict=True))
        figures += [bars, Table(title=f"Test {measure}", columns=("sampling", *names), rows=cells)]
    prose = ("The test sampled otherwise than in training. Nothing was trained further.",)
    return Section("Other samplings", prose, figures=tuple(figures))


def learner_sections(learners: Learners) -> list[Section]:
    """Everything that the records of some learners tell."""
    makers = (_summary_section, _training_section, _anytime_section, _samplings_section)
    return [section for make in makers if (section := make(learners)) is not None]


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
    series = tuple(Curve.of(name, *zip(*pairs, strict=True), mark="both") for name, pairs in curves.items())
    title, label = _PANELS[unit]
    change = Scale("change against the model as it is", log=True)
    return Lines(title=title, x=Scale(label, log=True), y=change, curves=series, notes=tuple(notes))
