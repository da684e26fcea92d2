"""What a trained model answers: its measures on a split, series and maps beside the truth."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from continua.control import Objective, call_model
from continua.control.norms import relative
from continua.core.batch import Batch
from continua.core.counts import say_count
from continua.core.errors import ArgumentError, SolveError
from continua.core.shapes import Float, Tensor
from continua.data import AbstractTask, Csv, Question, Split, Uea, Wording
from continua.model import ContinuousTransformer, resolutions_of, steps_about, time_call
from continua.runs import AbstractFigure, Curve, Heat, Lines, Note, Scale, Section, Table
from continua.solve import Adaptive, DormandPrince, Solver
from continua.train.examples import LABEL_PROSE, TEXT_PROSE, label_figures, text_figures
from continua.train.learner import place
from continua.train.models import objective_of
from continua.train.ranks import Ranks
from continua.train.series_answers import series_section

_CURVES = 6
"""Figures of curves in all: so many sequences of one number each, or as many numbers of fewer sequences."""
_MAPS = 6
"""Frames of a map in the plane."""
_TIMES = 101
"""Times at which a predicted series is read."""

_TIMED, _TOKENS = 64, 2**14
"""A call is timed on at most so many sequences, and on about so many tokens: longer sequences take fewer."""

Models = Mapping[str, ContinuousTransformer]
Tell = Callable[[str], None]
"""Told what is measured next: somebody waits."""


def _say_nothing(what: str) -> None: ...


@torch.no_grad()
def evaluate(
    model: ContinuousTransformer, task: AbstractTask, split: Split, size: int = 250, ranks: Ranks = Ranks()
) -> dict[str, float]:
    """The loss and every measure of the task, each a mean over the sequences of the split; no model state changes.

    Of several ranks each reads its part.
    """
    before, form = model.training, task.form
    model.eval()
    objective = _answer_objective(task) if split is Split.TEST else objective_of(form)
    totals, count = dict[str, float](), 0
    try:
        for batch in (place(each, model) for each in task.batches(split, size)):
            own, share = ranks.split(batch)
            terms = objective(model, own)
            rows, counted = len(terms.output), len(batch.inputs[0])
            weight = share * counted / rows  # 1, but where ranks read the same sequences
            found = {"loss": weight * (float(terms.terminal) * rows)}
            measures = task.metrics(terms.output, own)
            found |= {name: weight * float(each.sum()) for name, each in measures.items()}
            totals = {name: totals.get(name, 0.0) + value for name, value in found.items()}
            count += counted
    finally:
        model.train(before)
    added = zip(totals, ranks.add_up(list(totals.values())), strict=True)
    return {name: total / count for name, total in added}


def _answer_objective(task: AbstractTask) -> Objective:
    """What a test judges: the answer, and not how the network would answer alone."""
    return objective_of(dataclasses.replace(task.form, alone=False))


def evaluate_samplings(
    model: ContinuousTransformer, task: AbstractTask, size: int = 250, tell: Tell = _say_nothing
) -> dict[str, dict[str, float]]:
    """The test as it is, and in every other sampling that the task knows, without further training."""
    found = dict[str, dict[str, float]]()
    for name, test in {"as trained": task, **task.variants()}.items():
        tell(f"the test, {name}")
        found[name] = evaluate(model, test, Split.TEST, size)
    return found


def evaluate_depth_steps(
    model: ContinuousTransformer,
    task: AbstractTask,
    steps: Sequence[int] = (),
    size: int = 250,
    tell: Tell = _say_nothing,
) -> dict[int, dict[str, float]]:
    """The test with other numbers of depth steps: what a coarser solve costs, and whether a finer one agrees.

    Without `steps` from a quarter to eight times the model's own. A network of layers runs with multiples and divisors
    of the number of its layers.
    """
    found = dict[int, dict[str, float]]()
    for count in steps or steps_about(model):
        tell(f"the test with {say_count(count, 'depth step')}")
        with contextlib.suppress(ArgumentError):
            found[count] = evaluate(model.at(steps=count), task, Split.TEST, size)
    return found


def evaluate_resolutions(
    model: ContinuousTransformer, task: AbstractTask, size: int = 256, tell: Tell = _say_nothing
) -> dict[str, dict[str, float]]:
    """The first sequences of the test with other depth steps, tolerances, nodes and samplings, each with its cost.

    Beside the measures of the task: evaluations of the velocity, and milliseconds per sequence, the median of a few
    calls on some of the sequences. Other samplings are read at the model's own resolution.
    """
    found = dict[str, dict[str, float]]()
    readings = [(str(each), each.apply, task) for each in resolutions_of(model)]
    readings += [(name, lambda same: same, test) for name, test in task.variants().items()]
    for name, change, test in readings:
        tell(f"the first sequences of the test, {name}")
        with contextlib.suppress(ArgumentError, SolveError):
            found[name] = _measure_with_cost(change(model).in_eval_mode(), test, size)
    return found


@torch.no_grad()
def _measure_with_cost(model: ContinuousTransformer, task: AbstractTask, size: int) -> dict[str, float]:
    batch = place(next(iter(task.batches(Split.TEST, size))), model)
    terms = _answer_objective(task)(model, batch)  # before the timed calls: what is made once is made here
    few = batch.part(0, max(1, min(_TIMED, _TOKENS // batch.inputs[0].shape[1])))
    taken = time_call(lambda: call_model(model, few)) / len(few.inputs[0])
    metrics = {name: float(each.mean()) for name, each in task.metrics(terms.output, batch).items()}
    return {
        "evaluations": float(terms.stats.evaluations),
        "milliseconds": taken,
        "loss": float(terms.terminal),
    } | metrics


@torch.no_grad()
def solver_error(model: ContinuousTransformer, task: AbstractTask, size: int = 32, rtol: float = 1e-5) -> float:
    """|y0 - y| / |y|: the distance of the outputs y0 on a batch from those y of a tight adaptive solve."""
    tight = model.at(solver=Solver(DormandPrince(), Adaptive(rtol, rtol)))
    batch = place(next(iter(task.batches(Split.TEST, size))), model)
    own, exact = (call_model(each.in_eval_mode(), batch).output for each in (model, tight))
    return relative(own - exact, exact)


@torch.no_grad()
def prediction_section(task: AbstractTask, models: Models, size: int = 250) -> Section:
    """Confusions, calibration and examples of labels, text, curves of series and functions, pictures of maps.

    All models are called in evaluation mode, with the depth steps of training, and are left in their own mode.
    """
    seen = {name: model.in_eval_mode() for name, model in models.items()}
    if task.form.question is Question.LABEL:
        references = (_references_table(task),) if isinstance(task, Uea) else ()
        return Section("Predictions", LABEL_PROSE, figures=(*references, *label_figures(task, seen, size)))
    if task.form.question is Question.TOKEN:
        return Section("Predictions", TEXT_PROSE, figures=text_figures(task, seen))
    if task.form.wording.plane:
        prose = "The given map is not shown; what the models make of it stands beside the truth."
        return Section("Predictions", (prose,), figures=(_maps(task, seen),))
    if isinstance(task, Csv):
        return series_section(task, seen)
    prose = "The first sequences of the test, not chosen: what was given, the truth, and the answers."
    if task.form.queries:
        prose += " They are wanted between the observations and beyond the last of them."
    return Section("Predictions", (prose,), figures=tuple(_curves(task, seen)))


def _references_table(task: Uea) -> Table:
    caption = "The kernel-ridge reference is what the network adds to."
    return Table(title="Reference methods on the same series", caption=caption, measured="the whole test split",
                 columns=("reference", "accuracy"), rows=tuple(task.references().items()))  # fmt: skip


def _curves(task: AbstractTask, models: Models) -> list[AbstractFigure]:
    """Curves of the first sequences, one figure for each number of an answer."""
    outputs = min(task.form.outputs, _CURVES)
    sequences = min(max(1, _CURVES // outputs), task.count(Split.TEST))
    batch = task.batch(Split.TEST, torch.arange(sequences))
    query = _dense(batch) if task.form.queries else batch
    answered = {name: call_model(model, place(query, model)).output.cpu() for name, model in models.items()}
    places = itertools.product(range(sequences), range(outputs))
    return [_curve(task, batch, query, answered, sequence, output) for sequence, output in places]


def _dense(batch: Batch) -> Batch:
    """The same observations, with queries at equispaced times from its first time to its last."""
    assert batch.query_times is not None
    first = min(float(batch.query_times.min()), float(batch.inputs[1].min()))
    times = torch.linspace(first, float(batch.query_times.max()), _TIMES).expand(len(batch.query_times), -1)
    return Batch(batch.inputs, None, query_times=times)


def _curve(
    task: AbstractTask, batch: Batch, query: Batch, answered: Mapping[str, Tensor], sequence: int, output: int
) -> Lines:
    wording, queries = task.form.wording, task.form.queries
    name = wording.names[output] if wording.names else "value"
    given = _given_curve(task, batch, sequence, output)
    where, when = (_places(task, each)[sequence] for each in (batch, query))

    def series(word: str, times: np.ndarray, numbers: Tensor, **look: Any) -> Curve:
        return Curve.of(word, times, _units(numbers[sequence, :, output], wording, output), **look)

    assert batch.targets is not None
    predicted = [
        series(f"{model}, predicted", when, answer, mark="line" if queries else "dashed", colour=k)
        for k, (model, answer) in enumerate(answered.items())
    ]
    truth = series("true", where, batch.targets, mark="points" if queries else "line", colour=3)
    return Lines(
        title=f"{name}, test sequence {sequence + 1}",
        measured="one sequence of the test, evaluation mode",
        x=Scale(wording.time),
        y=Scale(name),
        curves=(*predicted, truth, given),
        notes=(Note(float(given.x.max()), "last observation"),) if queries and given.x.size else (),
    )


def _places(task: AbstractTask, batch: Batch) -> np.ndarray:
    """Where the answers of a batch stand, in the reader's units: the query times, or those of the tokens."""
    times = batch.query_times if task.form.queries else batch.inputs[1]
    assert times is not None
    return task.form.wording.duration * times.double().numpy()


def _given_curve(task: AbstractTask, batch: Batch, sequence: int, output: int) -> Curve:
    """The observations of one number of an answer.

    Without queries, the first feature of the tokens: the function that an operator is applied to.
    """
    values, times, *there = (x[sequence] for x in batch.inputs)
    if not task.form.queries:
        return Curve.of("given", _places(task, batch)[sequence], values[:, 0].double().numpy(), mark="faint", colour=7)
    seen = there[0]
    when, numbers = times[seen].double().numpy(), _units(values[seen, output], task.form.wording, output)
    return Curve.of("observed", task.form.wording.duration * when, numbers, mark="points", colour=7)


def _units(numbers: Float[Tensor, " some"], wording: Wording, output: int) -> np.ndarray:
    """Numbers of an answer in the reader's units."""
    offset, scale = (wording.offset[output], wording.scale[output]) if wording.scale else (0.0, 1.0)
    return offset + scale * numbers.double().numpy()


def _maps(task: AbstractTask, models: Models) -> Heat:
    """True, answered and error of a map in the plane, side by side; a model is a panel, a sequence is a frame."""
    count = min(_MAPS, task.count(Split.TEST))
    batch = task.batch(Split.TEST, torch.arange(count))
    assert batch.targets is not None
    points = batch.inputs[0][0, :, 1:3].double().numpy()
    (xs, column), (ys, row) = (np.unique(points[:, k].round(6), return_inverse=True) for k in (0, 1))

    def to_grid(values: Float[Tensor, "size tokens outputs"]) -> np.ndarray:
        grid = np.full((count, len(ys), len(xs)), np.nan)
        grid[:, row, column] = values[..., 0].double().numpy()
        return grid

    truth, gap = to_grid(batch.targets), np.full((count, len(ys), 1), np.nan)
    panels = [
        np.concatenate([truth, gap, answer, gap, np.abs(answer - truth)], axis=2)
        for answer in (to_grid(call_model(model, place(batch, model)).output.cpu()) for model in models.values())
    ]
    name = task.form.wording.names[0] if task.form.wording.names else "value"
    return Heat(
        title=f"{name}: true, predicted, and the size of the error",
        caption="Three squares side by side in one range of colours, each from x = -1 to 1. The slider chooses one of "
        f"the first {count} test sequences" + (", one list per model." if len(models) > 1 else "."),
        measured=f"{count} sequences of the test, evaluation mode",
        x=Scale("x, from -1 to 1 in each square"),
        y=Scale("y"),
        columns=np.concatenate([xs, [np.nan], xs, [np.nan], xs]),
        rows=ys,
        values=np.stack(panels),
        value=name,
        frames=np.arange(1.0, count + 1.0),
        slider="test sequence",
        panels=tuple(models),
    )
