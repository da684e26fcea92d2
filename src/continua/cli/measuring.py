"""What is measured of the models of a run at its end, and how it is told."""

from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from continua.core.errors import SolveError
from continua.data import AbstractTask, Split
from continua.model import ContinuousTransformer
from continua.runs import Run
from continua.train import anytime, resolutions, solver_gap

Results = dict[str, dict[str, Any]]


def measured(run: Run, task: AbstractTask, models: Mapping[str, ContinuousTransformer]) -> Results:
    """The test, the test in other samplings, and the loss over depth steps, for every model; noted in the run."""
    results: Results = {}
    for name, model in models.items():
        jumps = any(part.field.breaks for part in model.flow.parts)  # pyright: ignore[reportAttributeAccessIssue]
        found: dict[str, Any] = {"samplings": resolutions(model, task)}
        if not jumps:  # a network of layers has one depth grid
            found["depth"] = {str(steps): measures for steps, measures in anytime(model, task).items()}
            found["gap to a tight solve"] = _gap(model, task)
        run.record("test", learner=name, **found)
        results[name] = found
    _keep_trajectory(run, task, next(iter(models.values())))
    curves = {"mark": "line", "records": "update", "x": "update", "y": "loss", "colour": "learner", "scale": "log"}
    run.keep_figure("loss", {"title": "loss", **curves})
    run.keep_figure("trajectory", {"title": "tokens along depth", "mark": "paths", "arrays": "trajectory"})
    return results


def _gap(model: ContinuousTransformer, task: AbstractTask) -> float | None:
    """The gap to a tight solve, or nothing where the flow is too wild for one: no reason to lose the other results."""
    try:
        return solver_gap(model, task)
    except SolveError:
        return None


@torch.no_grad()
def _keep_trajectory(run: Run, task: AbstractTask, model: ContinuousTransformer, sequences: int = 2) -> None:
    """The states of a few test sequences along depth."""
    before = model.training
    batch = task.batch(Split.TEST, torch.arange(min(sequences, task.count(Split.TEST))))
    model.eval()
    cloud = model.embedding(*batch.inputs)
    depths = [model.flow.depth * i / 16 for i in range(17)]
    solution = model.solve(cloud, at=depths)
    model.train(before)
    assert solution.trajectory is not None
    arrays = {"depths": torch.tensor(depths), "points": solution.trajectory.points}
    arrays |= {"grid": torch.tensor(solution.stats.grid)}
    if cloud.positions is not None:
        arrays["times"] = cloud.positions
    run.keep_arrays("trajectory", arrays)


def results_tables(results: Results) -> list[Table]:
    """The results as tables."""
    tables = [_table("test", "sampling", {name: found["samplings"] for name, found in results.items()})]
    depth = {name: found["depth"] for name, found in results.items() if "depth" in found}
    if depth:
        tables.append(_table("test by depth steps", "steps", depth))
    return tables


def _table(title: str, first: str, by_model: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    columns = [(model, measure) for model, rows in by_model.items() for measure in next(iter(rows.values()))]
    for model, measure in columns:
        table.add_column(measure if len(by_model) == 1 else f"{measure}, {model}", justify="right")
    for row in next(iter(by_model.values())):
        table.add_row(row, *(f"{by_model[model][row][measure]:.4f}" for model, measure in columns))
    return table
