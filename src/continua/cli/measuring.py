"""The end of a run: which parameters are used, what is measured, what reference methods reach, and how it is told."""

import contextlib
import dataclasses
import json
import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.table
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape

from continua.control import resolution_report
from continua.core.batch import Batch
from continua.core.counts import say_count
from continua.core.errors import SolveError
from continua.core.shapes import Tensor
from continua.data import AbstractTask, Csv, Question, Split, Uea
from continua.model import ContinuousTransformer, citation, load, model_files
from continua.report import format_number, pareto_front, write_report
from continua.runs import Run, Table, finite
from continua.train import (
    Learner,
    Ranks,
    Training,
    diagnose,
    evaluate,
    evaluate_depth_steps,
    evaluate_resolutions,
    evaluate_samplings,
    keep_diagnostics,
    measures_shown,
    place,
    prediction_section,
    reference_errors,
    settle_outputs,
    solver_error,
    transform_files,
    warnings_of,
)

Results = dict[str, dict[str, Any]]
_LOWER = 0.99
"""A validation loss is called lower than another if it is below so much of it."""
_PAUSE = 10.0
"""Where there is no terminal, a line of progress comes no sooner than so many seconds after the line before."""


def end_run(console: Console, training: Training, resolutions: bool) -> tuple[Results, Path]:
    """What comes after the last update: parameters are chosen, measured and kept. The results, and the report."""
    run, task = training.run, training.task
    learners = [_take_from_ranks(run, learner) for learner in training.learners]
    choose_models(console, run, task, dataclasses.replace(training, learners=learners))
    models = {learner.name: learner.model for learner in learners}
    results = measure_models(task, models, console, models_off(run), resolutions)
    record_results(run, results)
    record_references(run, task, learners[0].model, results)
    keep_results(run, task, learners, resolutions)
    run.keep_models(files_of(task, learners))
    run.end("finished")
    return results, write_report([run.folder])


def _take_from_ranks(run: Run, learner: Learner) -> Learner:
    """The learner of one process, with the model of the last checkpoint, where ranks have trained it."""
    last = run.last_checkpoint() if learner.ranks.size > 1 else None
    if last is None:
        return learner
    like, model = next(learner.model.parameters()), load(last.folder / learner.name)
    return dataclasses.replace(learner, wrapped=model.to(like.device, like.dtype), ranks=Ranks())


def print_results(run: Run, results: Results, page: Path) -> None:
    """One line of JSON."""
    found = {"kind": "test", "run": str(run.folder), "results": results, "report": str(page),
             "costs": training_costs(run), **rows_beside(run)}  # fmt: skip
    print(json.dumps(finite(found), allow_nan=False))


def show_results(
    console: Console, run: Run, task: AbstractTask, results: Results, page: Path | None, more: Sequence[str] = ()
) -> None:
    """Tables for a terminal, what is to be said of them, and where the report is."""
    tables = [*costs_table(training_costs(run)), *results_tables(task, results, models_off(run))]
    where = [] if page is None else [f"report: [bold]{escape(str(page))}[/bold]"]
    console.print(*off_lines(run), *tables, *remarks(results, run), *more, *where, sep="\n", soft_wrap=True)


def measure_models(
    task: AbstractTask,
    models: Mapping[str, ContinuousTransformer],
    console: Console | None = None,
    off: Sequence[str] = (),
    resolutions: bool = True,
) -> Results:
    """The test, the test in other samplings, at other resolutions, and the solver error, for every model.

    It takes a while: the console shows what is being measured. Models whose network is `off` have one set of numbers at
    all resolutions, and only the samplings are measured. Without `resolutions` the test is read as trained alone.
    """
    results: Results = {}
    with _progress(console) as say:
        for name, model in models.items():

            def tell(what: str, name: str = name) -> None:
                say(f"measuring {name}: {what}")

            if not resolutions:
                tell("the test")
                results[name] = {"samplings": {"as trained": evaluate(model, task, Split.TEST)}}
                continue
            found: dict[str, Any] = {"samplings": evaluate_samplings(model, task, tell=tell)}
            results[name] = found
            if name in off:
                continue
            by_steps = evaluate_depth_steps(model, task, tell=tell)
            found["depth_steps"] = {str(steps): metrics for steps, metrics in by_steps.items()}
            found["resolutions"] = evaluate_resolutions(model, task, tell=tell)
            if not any(field.breaks for field in model.flow.fields):
                tell("the solver error")
                with contextlib.suppress(SolveError):  # a flow too wild for it is no reason to lose the other results
                    found["solver error"] = solver_error(model, task)
    return results


@contextlib.contextmanager
def _progress(console: Console | None) -> Iterator[Callable[[str], None]]:
    """What shows a line of progress: in place on a terminal, elsewhere one now and then, nowhere without a console."""
    if console is None or console.quiet:
        yield lambda what: None
    elif console.is_terminal:
        with console.status("") as status:
            yield lambda what: status.update(what)
    else:
        last = -math.inf

        def say(what: str) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= _PAUSE:
                console.print(what, highlight=False, markup=False, soft_wrap=True)
                last = now

        yield say


def record_results(run: Run, results: Results) -> None:
    """A row for every model."""
    for name, found in results.items():
        run.record("test", model=name, **found)


def keep_results(
    run: Run, task: AbstractTask, learners: Sequence[Learner], resolutions: bool = True, sequences: int = 32
) -> None:
    """What the models answer, what a reader wants to see of each on a few sequences of the test, and their papers."""
    answers = prediction_section(task, {learner.name: learner.model for learner in learners})
    run.keep_section("answers", answers)
    shown = task.batch(Split.TEST, torch.arange(min(sequences, task.count(Split.TEST))))
    for learner in learners:
        batch = place(shown, learner.model)
        resolution = None
        # answers at query times are compared in the samplings of the test
        if resolutions and not task.form.queries and learner.name not in models_off(run):
            loss = _loss_of_rows(task, batch)
            resolution = resolution_report(learner.model, batch.inputs, batch.targets, loss).plain()
        keep_diagnostics(run, learner.name, diagnose(learner.model, batch, learner.objective, resolution, learner.name))
    used = [part for learner in learners for part in (learner.model, learner.optimiser, learner.objective)]
    run.note(papers=[paper.plain() for paper in citation(*used)])


def _loss_of_rows(task: AbstractTask, batch: Batch) -> Callable[[Tensor, Tensor], Tensor]:
    """What a report on resolutions compares: of labels the cross-entropy of the answer, the reference in it."""
    if task.form.question in (Question.LABEL, Question.TOKEN):
        return lambda output, targets: F.cross_entropy(batch.logits(output), targets)
    return lambda output, targets: (output - targets).norm() / targets.norm()


def results_tables(task: AbstractTask, results: Results, off: Sequence[str] = ()) -> list[rich.table.Table | str]:
    """The results as tables, which say whether validation has read the same samples.

    Models whose network is `off` (it adds nothing to its reference) have one set of numbers at all resolutions.
    """
    same = " (validation read the same samples)" if "validation" in task.facts() else ""
    titles = {"samplings": (f"test{same}", "sampling"), "depth_steps": (f"test by depth steps{same}", "steps"),
              "resolutions": ("first sequences of the test, milliseconds per sequence", "resolution")}  # fmt: skip
    by = {key: {name: found[key] for name, found in results.items() if found.get(key)} for key in titles}
    fronts = {name: pareto_front(found) for name, found in results.items()}
    tables: list[rich.table.Table | str] = [
        show_table(_table(*titles[key], found, fronts if key == "resolutions" else {}))
        for key, found in by.items()
        if found
    ]
    tables += ["*: no other resolution of this model is faster at no more loss"] if any(fronts.values()) else []
    notes = [f"{name}: its network is off, so its numbers hold at any depth steps and resolution" for name in off]
    return [*tables, *notes]


def _table(
    title: str,
    first: str,
    by_model: Mapping[str, Mapping[str, Mapping[str, float]]],
    marked: Mapping[str, Sequence[str]] = {},
) -> Table:
    """A row for each sampling or number of steps, of one model after the other; a column for each measure.

    Rows that are `marked` of a model have a star.
    """
    every = dict.fromkeys(row for found in by_model.values() for row in found)
    shown = [(row, model, found[row]) for row in every for model, found in by_model.items() if row in found]
    measures = measures_shown([values for *_, values in shown])
    named = ("model",) if len(by_model) > 1 else ()
    rows = tuple(
        (
            f"{row} *" if row in marked.get(model, ()) else row,
            *(model for _ in named),
            *(_cell(name, values[name]) for name in measures),
        )
        for row, model, values in shown
    )
    titles = ("ms" if name == "milliseconds" else name for name in measures)
    return Table(title=title, columns=(first, *named, *titles), rows=rows)


def training_costs(run: Run) -> dict[str, dict[str, float]]:
    """The parameters of every model; of its updates the evaluations, the milliseconds and the peak memory.

    Evaluations and milliseconds are medians. Memory is not known of compiled models.
    """
    facts, updates = run.manifest["facts"], dict[str, list[dict[str, Any]]]()
    for row in run.records("update"):
        if not row.get("skipped"):
            updates.setdefault(row["model"], []).append(row)
    found = dict[str, dict[str, float]]()
    for name, rows in updates.items():
        taken, evaluations = (statistics.median(row[key] for row in rows) for key in ("seconds", "evaluations"))
        found[name] = {"parameters": facts["parameters"][name], "evaluations": evaluations, "ms": 1000.0 * taken}
        if memory := facts.get("memory", {}).get(name):
            found[name]["peak MiB"] = memory / 2**20
    return found


def costs_table(costs: Mapping[str, Mapping[str, float]]) -> list[rich.table.Table]:
    """What models that were trained side by side cost; of one alone there is nothing to compare."""
    if len(costs) < 2:
        return []
    columns = tuple(next(iter(costs.values())))
    rows = tuple((name, *(found.get(column) for column in columns)) for name, found in costs.items())
    return [show_table(Table(title="an update of each model", columns=("model", *columns), rows=rows))]


def _cell(name: str, value: float) -> str:
    """Measures with four digits behind the point, so that columns compare; counts and milliseconds as they are."""
    return format_number(value, 3) if name in ("evaluations", "milliseconds") else f"{value:.4f}"


def show_table(table: Table) -> rich.table.Table:
    """A table of a report for the terminal."""
    shown = rich.table.Table(title=table.title or None, title_justify="left")
    rows = [[format_number(cell, 3) for cell in row] for row in table.rows]
    for column, name in enumerate(table.columns):
        texts = [name, *(row[column] for row in rows)]
        widest = max(map(len, name.split()), default=None)
        whole = all(" " not in text for text in texts)  # a narrow terminal breaks lines between words alone
        justify = "right" if column else "left"
        shown.add_column(name, justify=justify, overflow="fold", min_width=widest, no_wrap=whole)
    for row in rows:
        shown.add_row(*row)
    return shown


_UNITS = " (errors in units of each column's variance in training)"
_BESIDE = ("references", "warnings")
"""Kinds of rows that stand beside the results."""


def choose_models(console: Console, run: Run, task: AbstractTask, training: Training) -> None:
    """The parameters of the lowest validation loss, and how much the network adds to its reference; both are noted."""
    taken = training.take_best()
    settled = {learner.name: settle_outputs(learner.model, task) for learner in training.learners}
    off = {name: words for name, parts in settled.items() if (words := _off_words(task, parts))}
    run.note(taken=taken, settled=settled, off=off)
    if stopped := run.manifest["facts"].get("stopped"):
        console.print(f"stopped after {say_count(stopped, 'update')}: validation no longer falls", highlight=False)
    for name, update in taken.items():
        if update != (stopped or training.plan.updates):
            text = f"{name}: the parameters after {say_count(update, 'update')}, the best by validation, are used"
            console.print(text, highlight=False, soft_wrap=True)
    if training.plan.best and (read := task.facts().get("validation")):
        own = "; --validation-fraction 0.1 lets validation choose" if task.name == "text" else ""
        for text in _passed_over(run):
            told = f"{text}, and the last parameters are used, since validation reads {read}{own}"
            console.print(told, highlight=False, soft_wrap=True)


def _passed_over(run: Run) -> Iterator[str]:
    """What is said of parameters that validation found better, where it may not choose."""
    losses: dict[str, list[tuple[float, int]]] = {}
    for row in run.records("validation"):
        if (loss := row["metrics"]["loss"]) is not None:
            losses.setdefault(row["model"], []).append((loss, row["update"]))
    for name, known in losses.items():
        (lowest, update), (last, _) = min(known), known[-1]
        if lowest < _LOWER * last:
            yield f"{name}: validation was {lowest:.3f} after {say_count(update, 'update')} and is {last:.3f}"


def _off_words(task: AbstractTask, parts: Mapping[str, Mapping[str, float]]) -> str:
    """What is said of a model whose network has the factor 0 everywhere; nothing of others."""
    if not parts or any(part["factor of the network"] > 0.0 for part in parts.values()):
        return ""
    kind = "linear" if isinstance(task, Csv) else "kernel-ridge"
    wide = any(part.get("widths of the network", 0.0) > 0.0 for part in parts.values())
    but = " but for the widths of intervals" if wide else ""
    return f"the answer is the {kind} reference; the network has no gain on validation beyond its noise{but}"


def models_off(run: Run) -> list[str]:
    """Models of a run that are their references alone, in their intervals too."""
    settled = run.manifest["facts"].get("settled", {})
    return [
        name
        for name in run.manifest["facts"].get("off", {})
        if not any(part.get("widths of the network", 0.0) for part in settled[name].values())
    ]


def off_lines(run: Run) -> list[str]:
    """The first lines of the results: whose answer is that of the reference."""
    return [f"{name}: {words}" for name, words in run.manifest["facts"].get("off", {}).items()]


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
            f"a reference method is more accurate on the test: {reference}, {right:.1%} beside {tested['accuracy']:.1%}"
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
    beside, folder = rows_beside(run), shlex.quote(str(run.folder))
    if not beside:
        text = "alphabet" in run.manifest["facts"].get("task", {})
        return [escape(f'to use it: continua generate {folder} --prompt "..."')] if text else []
    errors = beside["references"]
    tested = {name: found["samplings"]["as trained"] for name, found in results.items()}
    measures = tuple(next(iter(errors.values())))
    cells = tuple(
        (reference, *(f"{found[name]:.5f}" for name in measures)) for reference, found in {**errors, **tested}.items()
    )
    title = "test beside reference methods" + (_UNITS if "mean squared error" in measures else "")
    table = show_table(Table(title=title, columns=("reference or model", *measures), rows=cells))
    counts = [
        f"{name}, {part}: what the network adds is multiplied by {found['factor of the network']:.2f}"
        + (f", the reference by {found['factor of the reference']:.2f}" if "factor of the reference" in found else "")
        for name, parts in run.manifest["facts"].get("settled", {}).items()
        if name not in run.manifest["facts"].get("off", {})
        for part, found in parts.items()
    ]
    named = ("FILE.csv", "FILLED.csv") if run.manifest["facts"]["task"].get("columns") else ("FILE.ts", "TOLD.csv")
    use = f"to use it: continua predict {folder} --input {named[0]} --output {named[1]}"
    return [table, *counts, *(f"warning: {text}" for text in beside["warnings"]), escape(use)]
