"""Which parameters a run ends with, what reference methods reach beside them, and what should not be overlooked."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from continua.cli.measuring import Results, show_table
from continua.data import AbstractTask, Csv, Split, Uea
from continua.model import ContinuousTransformer, model_files
from continua.runs import Run, Table
from continua.train import (
    Learner,
    Training,
    evaluate,
    reference_errors,
    settle_outputs,
    transform_files,
    warnings_of,
)

_UNITS = " (errors in units of each column's variance in training)"
_BESIDE = ("references", "warnings")
"""Kinds of rows that stand beside the results."""


def choose_models(console: Console, run: Run, task: AbstractTask, training: Training) -> None:
    """The parameters of the lowest validation loss, and how much the network adds to its reference; both are noted."""
    taken = training.take_best()
    settled = {learner.name: settle_outputs(learner.model, task) for learner in training.learners}
    run.note(taken=taken, settled=settled)
    if stopped := run.manifest["facts"].get("stopped"):
        console.print(f"stopped after {stopped} updates: validation no longer falls", highlight=False)
    for name, update in taken.items():
        if update != (stopped or training.plan.updates):
            text = f"{name}: the parameters after {update} updates, the best by validation, are used"
            console.print(text, highlight=False, soft_wrap=True)


def files_of(task: AbstractTask, learners: Sequence[Learner]) -> dict[str, bytes]:
    """The models as `continua.save` writes them, by NAME/FILE, and the transform of their data."""
    held = {**{learner.name: model_files(learner.model) for learner in learners}, "transform": transform_files(task)}
    return {f"{name}/{file}": content for name, files in held.items() for file, content in files.items()}


def references_of(task: AbstractTask) -> dict[str, dict[str, float]]:
    """The measures of reference methods on the test, where the task knows such references."""
    if isinstance(task, Uea):
        return {reference: {"accuracy": right} for reference, right in task.references().items()}
    return reference_errors(task) if isinstance(task, Csv) else {}


def record_references(run: Run, task: AbstractTask, model: ContinuousTransformer, results: Results) -> None:
    """A row with the measures of reference methods, and one with what should not be overlooked in the first model."""
    errors = references_of(task)
    if not errors:
        return
    tested = next(iter(results.values()))["samplings"]["as trained"]
    if isinstance(task, Csv):
        found = warnings_of(task, tested, evaluate(model, task, Split.VALIDATION))
    else:
        better = {
            reference: right["accuracy"]
            for reference, right in errors.items()
            if right["accuracy"] > tested["accuracy"]
        }
        found = [
            f"a reference method tells more of the test: {reference}, {right:.1%} beside {tested['accuracy']:.1%}"
            for reference, right in better.items()
        ]
    run.record("references", split="test", errors=errors)
    run.record("warnings", texts=found)


def rows_beside(run: Run) -> dict[str, Any]:
    """The latest of these rows, by kind."""
    rows = [row for row in run.records() if row["kind"] in _BESIDE]
    return {row["kind"]: row.get("errors", row.get("texts")) for row in rows}


def remarks(results: Results, run: Run) -> list[Any]:
    """Reference methods beside the models, how much a network adds to its reference, and warnings; for a terminal."""
    beside = rows_beside(run)
    if not beside:
        return []
    errors = beside["references"]
    tested = {name: found["samplings"]["as trained"] for name, found in results.items()}
    measures = tuple(next(iter(errors.values())))
    cells = tuple(
        (reference, *(f"{found[name]:.5f}" for name in measures)) for reference, found in {**errors, **tested}.items()
    )
    title = "test beside reference methods" + (_UNITS if "mean squared error" in measures else "")
    table = show_table(Table(title=title, columns=("reference or model", *measures), rows=cells))
    counts = [
        f"{name}, {part}: the network counts {found['factor of the network']:.0%}"
        for name, parts in run.manifest["facts"].get("settled", {}).items()
        for part, found in parts.items()
    ]
    named = ("FILE.csv", "FILLED.csv") if run.manifest["facts"]["task"].get("columns") else ("FILE.ts", "TOLD.csv")
    use = f"to use it: continua predict {run.folder} --input {named[0]} --output {named[1]}"
    return [table, *counts, *(f"warning: {text}" for text in beside["warnings"]), escape(use)]
