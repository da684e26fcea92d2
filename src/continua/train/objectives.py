"""The objective of a task: its question as a loss, and the running costs that training needs."""

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
)
from continua.data import Form, Question
from continua.model import ContinuousTransformer

_LOSSES: dict[Question, AbstractLoss] = {
    Question.LABEL: CrossEntropy(),
    Question.TOKEN: NextToken(shifted=True),
    Question.VALUE: MeanSquaredError(),
    Question.FUNCTION: RelativeL2(),
}


HEADS = 1e-3
"""The weight of `HeadNegentropy` wherever a density of heads is trained."""
STIFF = 1e-2
"""The weight of `JacobianSpectral`, at one random stretch of depth an update, where a flow is said to be stiff."""


def objective_of(
    form: Form, model: ContinuousTransformer | None = None, energy: float = 0.0, stiff: bool = False
) -> Objective:
    """The objective that a task's question asks for: its loss, and the running costs that training `model` needs.

    `energy` is the price of the tokens' mean kinetic energy. A trained density of heads pays its negentropy with the
    weight `HEADS`. With `stiff` the spectral norm of the Jacobian is paid with the weight `STIFF`; it needs second
    derivatives, so attention forms its kernel there. An evaluation reads the loss alone: `objective_of(form)`.
    """
    priced: list[tuple[AbstractRunningCost, float]] = []
    if energy != 0.0:
        priced.append((KineticEnergy(L2(mean=True)), energy))
    if model is not None and HeadNegentropy.applies(model.flow):
        priced.append((HeadNegentropy(), HEADS))
    if stiff:
        priced.append((AtRandomDepth(JacobianSpectral()), STIFF))
    return Objective(_LOSSES[form.question], tuple(c for c, _ in priced), tuple(w for _, w in priced))
