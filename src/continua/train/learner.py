"""A model in training: its optimiser, its objective, and one update."""

import dataclasses
import math
import time
from typing import Any, NamedTuple

import torch
from torch import nn

from continua.control import Objective, Terms, unwrap
from continua.core.batch import Batch
from continua.core.errors import ArgumentError, reject
from continua.core.seeds import branch_seed, generator_of
from continua.model import ContinuousTransformer
from continua.optim import Schedule, clip_gradients
from continua.solve import Fixed, Solver
from continua.train.presets import Plan


class TrainingError(RuntimeError):
    """A run that cannot go on: at which update, why, and what to try."""


class Row(NamedTuple):
    """What one update did."""

    loss: float
    terminal: float
    running: dict[str, float]
    lr: float
    evaluations: int
    steps: int
    tokens: int
    seconds: float
    grad_norm: float

    @property
    def tokens_per_second(self) -> float:
        """How many tokens were read, forwards and backwards, in a second."""
        return self.tokens / max(self.seconds, 1e-9)


@dataclasses.dataclass(eq=False)
class Learner:
    """A named model with the optimiser that moves it, and the schedule of its rates: that of the plan by default.

    The model may be wrapped (`DistributedDataParallel`, `fully_shard`, `torch.compile`): updates call what wraps it.
    """

    name: str
    wrapped: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        self.model: ContinuousTransformer = unwrap(self.wrapped)  # pyright: ignore[reportAttributeAccessIssue]

    def update(self, batch: Batch, number: int, plan: Plan) -> Row:
        """One update on a batch. All randomness comes from the seed and the number of the update."""
        start, seed = time.perf_counter(), branch_seed(branch_seed(plan.seed, -2), number)
        if self.schedule is None:  # the optimiser keeps its highest rates: a resumed run needs its number alone
            self.schedule = Schedule(self.optimiser, plan.curve, spent=number)
        lr, tokens = self.schedule.get_last_lr()[0], _tokens(batch)
        self.wrapped.train()
        self.optimiser.zero_grad(set_to_none=True)
        terms = self._terms(batch, number, plan, seed)
        if not math.isfinite(terms.total.item()):
            raise TrainingError(self._failure(number, "the loss", terms.total.item()))
        terms.total.backward()
        try:
            norm = float(clip_gradients(self.model, plan.clip))
        except ArgumentError as error:
            raise TrainingError(self._failure(number, "the gradient", math.nan)) from error
        self.optimiser.step()
        self.schedule.step(tokens)
        running = {name: cost.item() for name, cost in terms.running.items()}
        counts = (terms.stats.evaluations, terms.stats.accepted, tokens)
        return Row(terms.total.item(), terms.terminal.item(), running, lr, *counts, time.perf_counter() - start, norm)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        model, optimiser = dict(self.model.state_dict()), self.optimiser.state_dict()
        return {"model": model, "optimiser": optimiser, "schedule": self.schedule.state_dict() if self.schedule else {}}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            if self.schedule is not None:
                self.schedule.load_state_dict(state["schedule"])
        except (RuntimeError, ValueError, KeyError) as error:
            why = f"it is of another model ({error})"
            reject("checkpoint", self.name, why, "Go on with the configuration of the run itself.")

    def _terms(self, batch: Batch, number: int, plan: Plan, seed: int) -> Terms:
        """The objective; tokens that the weights made infinite are a training that is lost, and no bad input."""
        try:
            return self.objective(self.wrapped, batch, generator_of(seed), self._grid(plan, seed))
        except ArgumentError as error:
            if error.argument != "x0":
                raise
            raise TrainingError(self._failure(number, "a token's state", math.nan)) from error

    def _grid(self, plan: Plan, seed: int) -> list[float] | None:
        """The grid of this update, its inner depths moved at random; networks of layers have one grid only."""
        solver = self.model.solver
        if plan.jitter == 0.0 or self.model.flow.parts[0].field.breaks or not isinstance(solver, Solver):  # pyright: ignore[reportAttributeAccessIssue]
            return None
        if not isinstance(solver.controller, Fixed):
            return None
        steps, depth = solver.controller.steps, self.model.flow.depth
        moves = plan.jitter * (torch.rand(steps - 1, generator=generator_of(branch_seed(seed, 1))) - 0.5)
        inner = (torch.arange(1, steps) + moves) * (depth / steps)
        return [0.0, *inner.tolist(), depth]

    def _failure(self, number: int, what: str, value: float) -> str:
        advice = "Lower the learning rate, clip more, or look at the data of this batch"
        return f"update {number}: {what} of {self.name} is {value}. {advice}; the last checkpoint is whole."


def _tokens(batch: Batch) -> int:
    tokens = batch.inputs[0].shape[0] * batch.inputs[0].shape[1]
    return tokens if batch.query_times is None else tokens + batch.query_times.numel()
