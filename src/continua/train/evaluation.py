"""Measures of a trained model on a split."""

from collections.abc import Sequence

import torch

from continua.control import call_model
from continua.data import AbstractTask, Split
from continua.model import ContinuousTransformer
from continua.solve import Adaptive, DormandPrince, Solver
from continua.train.objectives import objective_of


@torch.no_grad()
def evaluated(model: ContinuousTransformer, task: AbstractTask, split: Split, size: int = 250) -> dict[str, float]:
    """The loss and every measure of the task, each a mean over the sequences of the split; no model state changes."""
    before, form = model.training, task.form
    model.eval()
    objective, totals, count = objective_of(form), dict[str, float](), 0
    try:
        for batch in task.batches(split, size):
            terms = objective(model, batch)
            assert batch.targets is not None
            rows = len(terms.output)
            found = {"loss": float(terms.terminal) * rows}
            found |= {name: float(each.sum()) for name, each in task.measures(terms.output, batch.targets).items()}
            totals = {name: totals.get(name, 0.0) + value for name, value in found.items()}
            count += rows
    finally:
        model.train(before)
    return {name: total / count for name, total in totals.items()}


def resolutions(model: ContinuousTransformer, task: AbstractTask, size: int = 250) -> dict[str, dict[str, float]]:
    """The test as it is, and in every other sampling that the task knows, without further training."""
    tests = {"as trained": task, **task.variants()}
    return {name: evaluated(model, test, Split.TEST, size) for name, test in tests.items()}


def anytime(
    model: ContinuousTransformer, task: AbstractTask, steps: Sequence[int] = (1, 2, 3, 4, 6, 8, 16), size: int = 250
) -> dict[int, dict[str, float]]:
    """The test with other numbers of depth steps: what a coarser solve costs, and whether a finer one agrees."""
    return {count: evaluated(model.at(steps=count), task, Split.TEST, size) for count in steps}


@torch.no_grad()
def solver_gap(model: ContinuousTransformer, task: AbstractTask, size: int = 32, rtol: float = 1e-5) -> float:
    """The largest difference of an output to that of a tight adaptive solve, relative to the largest output."""
    tight = Solver(DormandPrince(), Adaptive(rtol, rtol))
    before = model.training
    batch = next(iter(task.batches(Split.TEST, size)))
    model.eval()
    try:
        own, exact = call_model(model, batch).output, call_model(model.at(solver=tight), batch).output
    finally:
        model.train(before)
    return float((own - exact).abs().max() / exact.abs().max())
