"""A model in training: its optimiser, its objective, and one update."""

import math
import time
from typing import Any, NamedTuple

import torch

from continua.control import Terms
from continua.core.batch import Batch
from continua.core.errors import ArgumentError, reject
from continua.core.seeds import branched, generator_of
from continua.model import ContinuousTransformer
from continua.solve import Fixed, Solver
from continua.train.objectives import AnyObjective
from continua.train.plan import Plan


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


class Learner:
    """A named model with the optimiser that moves it; learning rates are shares of those it was built with."""

    def __init__(
        self, name: str, model: ContinuousTransformer, objective: AnyObjective, optimiser: torch.optim.Optimizer
    ) -> None:
        self.name, self.model, self.objective, self.optimiser = name, model, objective, optimiser
        self.highest = [float(group["lr"]) for group in optimiser.param_groups]

    def update(self, batch: Batch, number: int, plan: Plan) -> Row:
        """One step of the optimiser on a batch. All randomness comes from the seed and the number of the update."""
        start = time.perf_counter()
        share, seed = plan.rate(number), branched(branched(plan.seed, -2), number)
        for group, highest in zip(self.optimiser.param_groups, self.highest, strict=True):
            group["lr"] = highest * share
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        terms = self._terms(batch, number, plan, seed)
        if not math.isfinite(terms.total.item()):
            raise TrainingError(self._failure(number, "the loss", terms.total.item()))
        terms.total.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), plan.clip))
        if not math.isfinite(norm):
            raise TrainingError(self._failure(number, "the gradient", norm))
        self.optimiser.step()
        running = {name: cost.item() for name, cost in terms.running.items()}
        counts = (terms.stats.evaluations, terms.stats.accepted, _tokens(batch))
        lr, seconds = self.highest[0] * share, time.perf_counter() - start
        return Row(terms.total.item(), terms.terminal.item(), running, lr, *counts, seconds, norm)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"model": dict(self.model.state_dict()), "optimiser": self.optimiser.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        try:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
        except (RuntimeError, ValueError, KeyError) as error:
            why = f"it is of another model ({error})"
            reject("checkpoint", self.name, why, "Go on with the configuration of the run itself.")

    def _terms(self, batch: Batch, number: int, plan: Plan, seed: int) -> Terms:
        """The objective; tokens that the weights made infinite are a training that is lost, and no bad input."""
        try:
            return self.objective(self._on_grid(plan, seed), batch, generator_of(seed))
        except ArgumentError as error:
            if error.argument != "state":
                raise
            raise TrainingError(self._failure(number, "a token's state", math.nan)) from error

    def _on_grid(self, plan: Plan, seed: int) -> ContinuousTransformer:
        """The model on the grid of this update; networks of layers have one grid only."""
        solver = self.model.solver
        if plan.jitter == 0.0 or self.model.flow.parts[0].field.breaks or not isinstance(solver, Solver):  # pyright: ignore[reportAttributeAccessIssue]
            return self.model
        if not isinstance(solver.controller, Fixed):
            return self.model
        steps, depth = solver.controller.steps, self.model.flow.depth
        moves = plan.jitter * (torch.rand(steps - 1, generator=generator_of(branched(seed, 1))) - 0.5)
        inner = (torch.arange(1, steps) + moves) * (depth / steps)
        return self.model.at(grid=(0.0, *inner.tolist(), depth))

    def _failure(self, number: int, what: str, value: float) -> str:
        advice = "Lower the learning rate, clip more, or look at the data of this batch"
        return f"update {number}: {what} of {self.name} is {value}. {advice}; the last checkpoint is whole."


def _tokens(batch: Batch) -> int:
    tokens = batch.inputs[0].shape[0] * batch.inputs[0].shape[1]
    return tokens if batch.positions is None else tokens + batch.positions.numel()
