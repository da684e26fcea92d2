"""Series with reference methods beside them: what these reach, what should not be overlooked, and curves of all."""

from collections.abc import Mapping

import numpy as np
import torch

from continua.control import call_model
from continua.core.batch import Batch, PredictedInterval
from continua.core.shapes import Float, Tensor
from continua.data import Csv, Split, Wording, series_errors
from continua.model import ContinuousTransformer
from continua.runs import Curve, Lines, Note, Scale, Section, Table
from continua.train.learner import place

_TIMES = 101
_CLEARLY = 0.01
"""A reference does better where its error is less by this fraction."""
_NARROW = 0.75
"""Intervals that hold less of the test than this are told of."""
_FAR_APART = 3.0
"""Test and validation errors are far apart where one is so many times the other."""


def reference_errors(task: Csv, split: Split = Split.TEST) -> dict[str, dict[str, float]]:
    """The errors of the reference methods on the windows of a split, as the model's are measured."""
    references = task.references(split)
    return {name: {k: float(v.mean()) for k, v in series_errors(*pair).items()} for name, pair in references.items()}


def warnings_of(task: Csv, tested: Mapping[str, float], validated: Mapping[str, float]) -> list[str]:
    """What a user should not overlook: a test far from validation, a better reference method, narrow intervals."""
    found = []
    for part in ("between", "ahead"):
        name, where = f"squared error {part}", f"{part}{' of' if part == 'ahead' else ''} the observations"
        ratio = tested[name] / max(validated[name], 1e-30)
        if not 1.0 / _FAR_APART <= ratio <= _FAR_APART:
            what = f"{where} the test error is {ratio:.2g} times that of validation"
            found.append(f"{what}: the parts of this file differ, and the next rows may differ again")
        references = {
            reference: errors[name]
            for reference, errors in reference_errors(task).items()
            if reference != "linear reference, network off"
        }
        best = min(references, key=lambda reference: references[reference])
        if references[best] < tested[name] * (1.0 - _CLEARLY):
            word = best.split(", ")[-1 if part == "ahead" else 0]
            what = f"{where} a reference method does better on the test"
            found.append(f"{what}: {word}, {references[best]:.4g} beside {tested[name]:.4g}")
    if tested.get("coverage", 1.0) < _NARROW:
        what = f"the intervals hold {tested['coverage']:.0%} of the values of the test, and are made to hold 80%"
        found.append(f"{what}: the test moves more than training and validation did, so take them for too narrow")
    return found


def series_section(task: Csv, models: Mapping[str, ContinuousTransformer], figures: int = 6) -> Section:
    """References beside the models in a table, and curves of windows all over the test with their intervals."""
    columns, count = min(task.form.channels, figures), task.count(Split.TEST)
    chosen = torch.linspace(0, count - 1, min(max(1, figures // columns), count)).round().long()
    batch = task.batch(Split.TEST, chosen)
    curves = []
    for row, window in enumerate(chosen.tolist()):
        dense = task.series.dense(Split.TEST, window, _TIMES)
        answers = {name: _answer(model, dense) for name, model in models.items()}
        curves += [_curve(task, batch, dense, answers, (row, window), channel) for channel in range(columns)]
    prose = (
        "Windows spread over the test, not chosen: what was given, the truth, what the linear reference says, and "
        "the answers with the band that is said to hold eight of ten values. They are wanted between the observations "
        "and ahead."
    )
    return Section("Predictions", (prose,), figures=(_references_table(task, models), *curves))


def _references_table(task: Csv, models: Mapping[str, ContinuousTransformer]) -> Table:
    errors = reference_errors(task)
    measures = tuple(next(iter(errors.values())))
    errors |= {name: _errors(model, task) for name, model in models.items()}
    rows = tuple((reference, *(found[name] for name in measures)) for reference, found in errors.items())
    caption = "In units of each column's variance in training. The linear reference is what the network adds to."
    return Table(title="Reference methods and models on the same windows", caption=caption,
                 measured="the whole test split",
                 columns=("reference or model", *measures), rows=rows)  # fmt: skip


def _errors(model: ContinuousTransformer, task: Csv) -> dict[str, float]:
    """The errors of a model on the test."""
    batches = list(task.batches(Split.TEST, 250))
    means, targets = (
        torch.cat([_answer(model, batch).mean for batch in batches]),
        torch.cat([batch.targets for batch in batches if batch.targets is not None]),
    )
    return {name: float(each.mean()) for name, each in series_errors(means, targets).items()}


@torch.no_grad()
def _answer(model: ContinuousTransformer, batch: Batch) -> PredictedInterval:
    batch = place(batch, model)
    assert batch.reference is not None
    found = batch.reference.answer(call_model(model, batch).output)
    return PredictedInterval(*(each.cpu() for each in found))


def _curve(
    task: Csv,
    batch: Batch,
    dense: Batch,
    answers: Mapping[str, PredictedInterval],
    which: tuple[int, int],
    channel: int,
) -> Lines:
    """One column of a window, which has a row in the batch and a number in the test."""
    window, number = which
    wording, channels = task.form.wording, task.form.channels
    values, times, present = (each[window] for each in batch.inputs)
    own = present & (values[:, 1 + channel] > 0.5)
    asked = ~batch.targets[window, :, channel].isnan()  # pyright: ignore[reportOptionalSubscript]
    assert batch.targets is not None and batch.query_times is not None and dense.query_times is not None
    assert dense.reference is not None and channels > channel
    when = wording.duration * dense.query_times[0].double().numpy()
    given = task.series.token_values(Split.TEST, number)[own.nonzero()[:, 0].numpy()]
    predicted = [
        Curve.of(f"{name}, predicted", when, *(_units(each[0, :, channel], wording, channel) for each in answer),
                  mark="line", colour=colour)
        for colour, (name, answer) in enumerate(answers.items())
    ]  # fmt: skip
    reference = Curve.of("linear reference", when, _units(dense.reference.values[0, :, channel], wording, channel),
                          mark="dashed", colour=5)  # fmt: skip
    truth = Curve.of("true", wording.duration * batch.query_times[window][asked].double().numpy(),
                      _units(batch.targets[window, asked, channel], wording, channel), mark="points",
                      colour=3)  # fmt: skip
    observed = Curve.of("observed", wording.duration * times[own].double().numpy(),
                         _units(torch.from_numpy(given), wording, channel), mark="points", colour=7)  # fmt: skip
    notes = (Note(float(observed.x.max()), "last observation"),) if observed.x.size else ()
    return Lines(
        title=f"{wording.names[channel]}, test window {number + 1}",
        measured="one window of the test, evaluation mode",
        x=Scale(wording.time),
        y=Scale(wording.names[channel]),
        curves=(*predicted, reference, truth, observed),
        notes=notes,
    )


def _units(numbers: Float[Tensor, " some"], wording: Wording, channel: int) -> np.ndarray:
    return wording.offset[channel] + wording.scale[channel] * numbers.double().numpy()
