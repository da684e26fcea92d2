"""The objective of a task: its question as a loss, read at the tokens or at query times."""

import dataclasses
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import nn

from continua.control import (
    L2,
    AbstractLoss,
    AbstractRunningCost,
    AtRandomDepth,
    CrossEntropy,
    HeadNegentropy,
    JacobianSpectral,
    KineticEnergy,
    MeanSquaredError,
    NextToken,
    Objective,
    RelativeL2,
    Terms,
    trains_heads,
)
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
class AnyObjective(Protocol):
    """Whatever gives the terms of J for a model and a batch."""

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Terms: ...


@final
@dataclasses.dataclass(frozen=True)
class AskingObjective:
    """As `Objective`, where the targets stand at times of their own: the query times `batch.positions`."""

    objective: Objective

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Terms:
        expect("model", model, ContinuousTransformer, "Pass a ContinuousTransformer.")
        assert isinstance(model, ContinuousTransformer) and batch.positions is not None
        cloud, where = model.embedding.ask(batch.positions, *batch.inputs)
        objective = self.objective
        setting = objective.setting(model, cloud, objective.seed(model, generator))
        solution = objective.solved(model, setting)
        output = model.readout(cloud.at(solution.x)).take_along_dim(where.unsqueeze(-1), 1)
        return objective.terms(output, batch, solution)


HEADS = 1e-3
"""The weight of `HeadNegentropy` wherever a density of heads is trained."""
STIFF = 1e-2
"""The weight of `JacobianSpectral`, at one random stretch of depth an update, where a flow is said to be stiff."""


def objective_of(
    form: Form, model: ContinuousTransformer | None = None, energy: float = 0.0, stiff: bool = False
) -> AnyObjective:
    """The objective that a task's question asks for: its loss, and the running costs that training `model` needs.

    `energy` is the price of the tokens' mean kinetic energy. A trained density of heads pays its negentropy with the
    weight `HEADS`. With `stiff` the spectral norm of the Jacobian is paid with the weight `STIFF`; it needs second
    derivatives, so attention forms its kernel there. An evaluation reads the loss alone: `objective_of(form)`.
    """
    priced: list[tuple[AbstractRunningCost, float]] = []
    if energy != 0.0:
        priced.append((KineticEnergy(L2(mean=True)), energy))
    if model is not None and trains_heads(model.flow):
        priced.append((HeadNegentropy(), HEADS))
    if stiff:
        priced.append((AtRandomDepth(JacobianSpectral()), STIFF))
    objective = Objective(_LOSSES[form.question], tuple(c for c, _ in priced), tuple(w for _, w in priced))
    return AskingObjective(objective) if form.queries else objective


def answers(model: Any, form: Form, batch: Batch) -> torch.Tensor:
    """The model's output on a batch: at its tokens, or at the query times."""
    return model.ask(batch.positions, *batch.inputs) if form.queries else model(*batch.inputs)
