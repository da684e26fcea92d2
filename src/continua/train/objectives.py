"""The objective of a task: its question as a loss, read at the tokens or at asked times."""

import dataclasses
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import nn

from continua.control import L2, CrossEntropy, KineticEnergy, MeanSquaredError, NextToken, Objective, RelativeL2, Terms
from continua.control.losses import AbstractLoss
from continua.core.batch import Batch
from continua.core.errors import expect
from continua.data import Form, Question
from continua.model import ContinuousTransformer

_LOSSES: dict[Question, AbstractLoss] = {
    Question.LABEL: CrossEntropy(),
    Question.TOKEN: NextToken(shifted=True),
    Question.VALUE: MeanSquaredError(),
    Question.FUNCTION: RelativeL2(),
}


@runtime_checkable
class Criterion(Protocol):
    """Whatever gives the terms of J for a model and a batch."""

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Terms: ...


@final
@dataclasses.dataclass(frozen=True)
class AskingObjective:
    """As `Objective`, where the targets stand at times of their own: `batch.positions` are asked, as by `model.ask`."""

    objective: Objective

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Terms:
        expect("model", model, ContinuousTransformer, "Pass a ContinuousTransformer.")
        assert isinstance(model, ContinuousTransformer) and batch.positions is not None
        cloud, where = model.embedding.ask(batch.positions, *batch.inputs)
        objective = self.objective
        setting = objective.setting(model, cloud, objective.seed(model, generator))
        solution = objective.solved(model, setting)
        output = model.readout(cloud.at(solution.points)).take_along_dim(where.unsqueeze(-1), 1)
        terminal = objective.loss(output, batch)
        named = zip(objective.names, objective.weights, solution.state.costs, strict=True)
        running, total = {}, terminal
        for name, weight, cost in named:
            running[name] = cost.mean()
            total = total + weight * running[name]
        return Terms(total, terminal, running, solution.stats, output)


def objective_of(form: Form, energy: float = 0.0) -> Criterion:
    """The objective that a task's question asks for, with `energy` times the tokens' mean kinetic energy added."""
    moved = energy != 0.0
    costs, weights = ((KineticEnergy(L2(mean=True)),), (energy,)) if moved else ((), ())
    objective = Objective(_LOSSES[form.question], costs, weights)
    return AskingObjective(objective) if form.asks else objective


def answers(model: Any, form: Form, batch: Batch) -> torch.Tensor:
    """The model's output on a batch: at its tokens, or at the asked times."""
    return model.ask(batch.positions, *batch.inputs) if form.asks else model(*batch.inputs)
