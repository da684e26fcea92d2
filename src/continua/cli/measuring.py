"""What is measured of the models of a run at its end, and how it is told."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table
import torch
import torch.nn.functional as F
from rich.console import Console

from continua.control import resolution_report
from continua.core.errors import SolveError
from continua.data import AbstractTask, Csv, Question, Split, Uea
from continua.model import ContinuousTransformer, citation, model_files
from continua.report import format_number
from continua.runs import Run, Table
from continua.train import (
    Learner,
    Training,
    diagnose,
    evaluate,
    evaluate_depth_steps,
    evaluate_readings,
    evaluate_samplings,
    keep_diagnostics,
    place,
    prediction_section,
    reference_errors,
    settle_outputs,
    solver_gap,
    transform_files,
    warnings_of,
)

Results = dict[str, dict[str, Any]]
BEGUN = "measuring the test, in other samplings and with other depth steps (some moments)"
"""What is said before, since it takes time."""
RULES = "test beside simple rules (errors in units of each column's variance in training)"
BESIDE = ("references", "warnings")
"""Kinds of rows that stand beside the results."""


def measure_models(task: AbstractTask, models: Mapping[str, ContinuousTransformer]) -> Results:
    """The test, the test in other samplings, and the loss over depth steps, for every model."""
    results: Results = {}
    for name, model in models.items():
        jumps = any(field.breaks for field in model.flow.fields)
        found: dict[str, Any] = {"samplings": evaluate_samplings(model, task)}
        found["depth_steps"] = {str(steps): metrics for steps, metrics in evaluate_depth_steps(model, task).items()}
        found["readings"] = evaluate_readings(model, task)
        if isinstance(task, Csv):
            found["validation"] = evaluate(model, task, Split.VALIDATION)
        if not jumps:
            with contextlib.suppress(SolveError):  # a flow too wild for it is no reason to lose the other results
                found["gap to a tight solve"] = solver_gap(model, task)
        results[name] = found
    return results


def choose_models(console: Console, run: Run, task: AbstractTask, training: Training) -> None:
    """The weights of the lowest validation loss, with the outputs of series settled by validation; both are noted."""
    taken = training.take_best()
    settled = {learner.name: settle_outputs(learner.model, task) for learner in training.learners}
    run.note(taken=taken, settled=settled)
    if stopped := run.manifest["facts"].get("stopped"):
        console.print(f"stopped after {stopped} updates: validation no longer falls", highlight=False)
    for name, update in taken.items():
        if update != (stopped or training.plan.updates):
            console.print(
                f"{name}: the weights after {update} updates, the best by validation, are used", highlight=False
            )


def files_of(task: AbstractTask, learners: Sequence[Learner]) -> dict[str, bytes]:
    """The models as `continua.save` writes them, by NAME/FILE, and the transform of their data."""
    models = {learner.name: model_files(learner.model) for learner in learners}
    held = {**models, "transform": transform_files(task)}
    return {f"{name}/{file}": content for name, files in held.items() for file, content in files.items()}


def remarks(task: AbstractTask, results: Results, run: Run) -> list[Any]:
    """Simple rules on the same test, how much the network counts beside its rule, and what should not be overlooked."""
    errors = references_of(task)
    if not errors:
        return []
    tested = {name: found["samplings"]["as trained"] for name, found in results.items()}
    measures = tuple(next(iter(errors.values())))
    cells = tuple((rule, *(f"{found[name]:.5f}" for name in measures)) for rule, found in {**errors, **tested}.items())
    table = show_table(Table(title=RULES, columns=("rule or model", *measures), rows=cells))
    counts = [
        f"{name}, {part}: the network counts {found['share of the network']:.0%}"
        for name, parts in run.manifest["facts"].get("settled", {}).items()
        for part, found in parts.items()
    ]
    return [table, *counts, *(f"warning: {text}" for text in find_warnings(task, results))]


def references_of(task: AbstractTask) -> dict[str, dict[str, float]]:
    """The measures of simple rules on the test, where the task knows such rules."""
    if isinstance(task, Uea):
        return {rule: {"accuracy": right} for rule, right in task.references().items()}
    return reference_errors(task) if isinstance(task, Csv) else {}


def find_warnings(task: AbstractTask, results: Results) -> list[str]:
    """What should not be overlooked in the results of the first model."""
    first = next(iter(results.values()))
    tested = first["samplings"]["as trained"]
    if isinstance(task, Csv):
        return warnings_of(task, tested, first["validation"])
    better = {rule: found["accuracy"] for rule, found in references_of(task).items()}
    return [
        f"a simple rule tells more of the test: {rule}, {right:.1%} beside {tested['accuracy']:.1%}"
        for rule, right in better.items()
        if right > tested["accuracy"]
    ]


def record_results(run: Run, task: AbstractTask, results: Results) -> None:
    """A row for every model; of series, one with the errors of simple rules and one with what should not be missed."""
    for name, found in results.items():
        run.record("test", learner=name, **found)
    if errors := references_of(task):
        run.record("references", split="test", errors=errors)
        run.record("warnings", texts=find_warnings(task, results))


def keep_results(run: Run, task: AbstractTask, learners: Sequence[Learner], sequences: int = 32) -> None:
    """What the models answer, what a reader wants to see of each on a few sequences of the test, and their papers."""
    answers = prediction_section(task, {learner.name: learner.model for learner in learners})
    if answers is not None:
        run.keep_section("answers", answers)
    shown = task.batch(Split.TEST, torch.arange(min(sequences, task.count(Split.TEST))))
    for learner in learners:
        batch = place(shown, learner.model)
        resolution = None
        if not task.form.queries:  # answers at query times are compared in the samplings of the test
            labels = task.form.question in (Question.LABEL, Question.TOKEN)
            loss = F.cross_entropy if labels else lambda output, targets: (output - targets).norm() / targets.norm()
            resolution = resolution_report(learner.model, batch.inputs, batch.targets, loss).plain()
        keep_diagnostics(run, learner.name, diagnose(learner.model, batch, learner.objective, resolution, learner.name))
    used = [part for learner in learners for part in (learner.model, learner.optimiser, learner.objective)]
    run.note(references=[reference.plain() for reference in citation(*used)])


def results_tables(task: AbstractTask, results: Results) -> list[rich.table.Table]:
    """The results as tables, which say whether validation has read the same samples."""
    same = " (validation read the same samples)" if "validation" in task.facts() else ""
    titles = {"samplings": (f"test{same}", "sampling"), "depth_steps": (f"test by depth steps{same}", "steps"),
              "readings": ("first sequences of the test, milliseconds per sequence", "reading")}  # fmt: skip
    by = {key: {name: found[key] for name, found in results.items() if found.get(key)} for key in titles}
    return [show_table(_table(*titles[key], found)) for key, found in by.items() if found]


def _table(title: str, first: str, by_model: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """A row for each sampling or number of steps, of one model after the other; a column for each measure."""
    every = dict.fromkeys(row for found in by_model.values() for row in found)
    named = ("model",) if len(by_model) > 1 else ()
    rows = tuple(
        (row, *(model for _ in named), *(f"{value:.4f}" for value in found[row].values()))
        for row in every
        for model, found in by_model.items()
        if row in found
    )
    measures = next(iter(next(iter(by_model.values())).values()))
    return Table(title=title, columns=(first, *named, *measures), rows=rows)


def show_table(table: Table) -> rich.table.Table:
    """A table of a report for the terminal."""
    shown = rich.table.Table(title=table.title or None, title_justify="left")
    for column, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if column else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(format_number(cell, 3) for cell in row))
    return shown
