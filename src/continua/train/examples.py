"""Examples of what a model answers: confusions, correct and wrong predictions, calibration; text that it reads and
writes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from continua.control import call_model
from continua.core.shapes import Float, Int, Tensor
from continua.data import AbstractTask, Split
from continua.model import ContinuousTransformer, Decoding, Window, generate
from continua.runs import AbstractFigure, Curve, Heat, Lines, Passage, Scale, Table
from continua.train.learner import place

_CLASSES = 20
"""Of more classes only those that are mistaken most are counted in a row of their own."""
_GROUPS, _LEAST = 10, 10
"""Answers are grouped by their confidence: in so many groups, of at least so many answers."""
_RIGHT, _WRONG = 2, 4
"""Examples that are shown of either."""
_ROW = 3
"""Pictures in a row."""
_WINDOWS, _READ = 64, 6
"""Windows of the test that calibration reads, and those that are shown letter by letter."""
_PROMPT, _WRITTEN, _TEMPERATURE = 32, 240, 0.8
"""Letters that a text begins with, letters that are written on, and how they are drawn."""

LABEL_PROSE = ("Every sequence of the test, counted by its label and by the prediction; then the first correct ones, "
               "and the most confident mistakes.",)  # fmt: skip
TEXT_PROSE = ("What the models foresee of the beginning of the test, and what they write when they go on from there.",)

Models = Mapping[str, ContinuousTransformer]


class Answers(NamedTuple):
    """The true class of every answer, and what a model believed of each class."""

    targets: Int[Tensor, " answers"]
    beliefs: Float[Tensor, "answers classes"]

    @property
    def prediction(self) -> Int[Tensor, " answers"]:
        """The class that it believed in most."""
        return self.beliefs.argmax(-1)

    @property
    def right(self) -> Tensor:
        """Whether that was true."""
        return self.prediction == self.targets


def label_figures(task: AbstractTask, models: Models, size: int) -> tuple[AbstractFigure, ...]:
    """Confusion matrices and calibration of all models, examples of the first one."""
    found = {name: _answers(task, model, size) for name, model in models.items()}
    first = next(iter(found))
    confusions = [_confusion(answers, task, name, len(found)) for name, answers in found.items()]
    return (*confusions, *_examples(task, found[first], first), calibration(found, "every sequence of the test"))


def text_figures(task: AbstractTask, models: Models) -> tuple[AbstractFigure, ...]:
    """For every model the first windows of the test by the probability of each letter, and what it writes itself."""
    batch = task.batch(Split.TEST, torch.arange(min(_WINDOWS, task.count(Split.TEST))))
    assert batch.targets is not None
    found, figures = dict[str, Answers](), list[AbstractFigure]()
    for name, model in models.items():
        placed = place(batch, model)
        beliefs = placed.logits(call_model(model, placed).output).softmax(-1).cpu()
        found[name] = Answers(batch.targets.flatten(), beliefs.flatten(0, 1))
        likely = beliefs[:_READ].gather(-1, batch.targets[:_READ, :, None]).flatten()
        figures.append(_foresight(task, name, batch.targets[:_READ].flatten(), likely))
        figures.append(_continuation(task, name, model, batch.inputs[0][0]))
    return (*figures, calibration(found, f"every letter of the first {len(batch.targets)} windows of the test"))


def _answers(task: AbstractTask, model: ContinuousTransformer, size: int) -> Answers:
    targets, beliefs = list[Tensor](), list[Tensor]()
    for batch in task.batches(Split.TEST, size):
        assert batch.targets is not None
        targets.append(batch.targets)
        placed = place(batch, model)
        beliefs.append(placed.logits(call_model(model, placed).output).softmax(-1).cpu())
    return Answers(torch.cat(targets), torch.cat(beliefs))


def _names(task: AbstractTask) -> tuple[str, ...]:
    return task.form.wording.names or tuple(str(k) for k in range(task.form.outputs))


def _confusion(answers: Answers, task: AbstractTask, name: str, models: int) -> Table:
    names, outputs = _names(task), len(_names(task))
    counts = torch.bincount(answers.targets * outputs + answers.prediction, minlength=outputs**2).view(outputs, outputs)
    totals, right = counts.sum(1).tolist(), counts.diagonal().tolist()
    worst = sorted(range(outputs), key=lambda i: right[i] - totals[i])[:_CLASSES]
    shown = sorted(worst)
    rows = tuple(
        (names[i], *(int(counts[i, j]) or None for j in shown), f"{right[i] / totals[i]:.0%}" if totals[i] else None)
        for i in shown
    )
    left = f" Only the {_CLASSES} classes of the most mistakes are shown." if len(shown) < outputs else ""
    return Table(
        title="Confusion matrix" + (f", {name}" if models > 1 else ""),
        caption="Row: the true label. Column: the prediction. An empty cell is zero; the last column is the fraction "
        f"of this label that was predicted correctly.{left}",
        measured=f"{sum(totals)} sequences, the whole test split",
        columns=("label", *(names[j] for j in shown), "correct"),
        rows=rows,
        shaded=True,
    )


def calibration(found: Mapping[str, Answers], measured: str) -> Lines:
    """How often answers were right, by how sure the model was; E = sum_g n_g/n |share right - confidence| over groups.

    Answers are ordered by their confidence, the probability of the predicted class, and cut into equal groups.
    """
    series = [Curve.of("perfect calibration", [0.0, 1.0], [0.0, 1.0], mark="faint", colour=7)]
    errors = []
    for colour, (name, answers) in enumerate(found.items()):
        sure, order = answers.beliefs.max(-1).values.double().sort()
        right, count = answers.right[order].double(), len(sure)
        groups = (
            [np.arange(count)] if count < 2 * _LEAST else np.array_split(range(count), min(_GROUPS, count // _LEAST))
        )
        x, y = ([float(each[group].mean()) for group in groups] for each in (sure, right))
        gaps = (len(g) / count * abs(a - b) for g, a, b in zip(groups, x, y, strict=True))
        errors.append(f"{name} {sum(gaps):.3f}")
        series.append(Curve.of(name, x, y, mark="both", colour=colour))
    return Lines(
        title="Calibration",
        caption="Answers in groups of one size, from the least to the most confident. Below the straight line a model "
        f"is overconfident. Expected calibration error: {', '.join(errors)}.",
        measured=measured,
        x=Scale("confidence"),
        y=Scale("accuracy"),
        curves=tuple(series),
    )


def _examples(task: AbstractTask, answers: Answers, name: str) -> list[AbstractFigure]:
    """The first correct predictions, and the mistakes that the model was most confident of."""
    sure, places = answers.beliefs.max(-1).values, torch.arange(len(answers.targets))
    wrong = places[~answers.right]
    wrong = wrong[sure[wrong].argsort(descending=True)][:_WRONG]
    chosen = torch.cat([places[answers.right][:_RIGHT], wrong])
    if not len(chosen):
        return []
    batch, names = task.batch(Split.TEST, chosen), _names(task)
    titles = [
        f"{names[answers.targets[i]]}, predicted {names[answers.prediction[i]]}: "
        f"{'correct' if answers.right[i] else 'wrong'} ({float(sure[i]):.0%} confident)"
        for i in chosen
    ]
    numbers = [str(int(i) + 1) for i in chosen]
    if task.form.wording.picture:
        about = {"measured": f"sequences {', '.join(numbers)} of the test, {name}"}
        return [_pictures(batch.inputs[0], task.form.wording.picture, titles, about)]
    return [
        _signal(task, [x[k] for x in batch.inputs], title, {"measured": f"sequence {number} of the test, {name}"})
        for k, (title, number) in enumerate(zip(titles, numbers, strict=True))
    ]


def _signal(task: AbstractTask, inputs: list[Tensor], title: str, about: dict[str, Any]) -> Lines:
    """The features of one sequence over its times, those of absent tokens left out."""
    values, times, *present = inputs
    there = present[0] if present else torch.ones_like(times, dtype=torch.bool)
    when, scale = times[there].double().numpy() * task.form.wording.duration, Scale("value")
    count = min(values.shape[-1], 4)
    series = tuple(
        Curve.of(f"feature {k + 1}" if count > 1 else "signal", when, values[there, k].double().numpy(), mark="both")
        for k in range(count)
    )
    return Lines(title=f"Label {title}", x=Scale(task.form.wording.time), y=scale, curves=series, **about)


def _pictures(values: Tensor, columns: int, titles: list[str], about: dict[str, Any]) -> Heat:
    """Pictures in rows of three, an empty line between neighbours."""
    pictures = values[..., 0].double().numpy().reshape(len(values), -1, columns)
    cells = np.full((-(-len(values) // _ROW) * _ROW, pictures.shape[1] + 1, columns + 1), np.nan)
    cells[: len(values), :-1, :-1] = pictures
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in cells.reshape(-1, _ROW, *cells.shape[1:])])
    sheet = sheet[-2::-1, :-1]  # rows of a figure are counted from below
    return Heat(
        title="Correct predictions, and the most confident mistakes",
        caption="Label, row by row: " + "; ".join(titles) + ".",
        x=Scale("column"),
        y=Scale("row"),
        columns=np.arange(1.0, sheet.shape[1] + 1.0),
        rows=np.arange(sheet.shape[0], 0.0, -1.0),
        values=sheet[None, None],
        value="brightness",
        **about,
    )


def _foresight(
    task: AbstractTask, name: str, letters: Int[Tensor, " tokens"], likely: Float[Tensor, " tokens"]
) -> Passage:
    names = _names(task)
    return Passage(
        title=f"What was foreseen, {name}",
        caption="The darker a letter's ground, the less likely the model held it, given those before it in "
        f"its window. The geometric mean of these probabilities is {float(likely.log().mean().exp()):.2f}.",
        measured=f"the first {_READ} windows of the test, evaluation mode",
        pieces=tuple(names[k] for k in letters),
        values=likely.double().numpy(),
    )


def _continuation(
    task: AbstractTask, name: str, model: ContinuousTransformer, window: Int[Tensor, " tokens"]
) -> Passage:
    names, prompt, context_length = _names(task), window[:_PROMPT], len(window)
    device = next(model.parameters()).device
    generator, show = (
        torch.Generator(device).manual_seed(0),
        Window(context_length=context_length, slide=max(1, context_length // 4)),
    )
    written = generate(model, prompt[None].to(device), _WRITTEN, Decoding(_TEMPERATURE), show, generator)[0].cpu()
    values = np.concatenate([np.full(len(prompt), np.nan), np.ones(len(written) - len(prompt))])
    return Passage(
        title=f"What it writes, {name}",
        caption=f"The first {len(prompt)} letters of the test, in bold, and {_WRITTEN} more, drawn at temperature "
        f"{_TEMPERATURE:g}.",
        measured="one draw, seed 0, not chosen",
        pieces=tuple(names[k] for k in written),
        values=values,
    )
