"""One loss that sees all a solve gives, its gradients by any strategy, and what they are held against."""

from collections.abc import Sequence

import torch
from torch import Tensor

from continua.model import Flow
from continua.solve import (
    AbstractController,
    AbstractGradient,
    AbstractStepper,
    DormandPrince,
    Observer,
    Solution,
    integrate,
)
from problems import Inputs, energy

AT = (0.0, 0.2, 0.3, 0.45, 1.0)
"""The start, the end, a jump, and two depths inside steps."""


def loss_of(solution: Solution) -> Tensor:
    """Depends on the end, the running costs and the trajectory."""
    loss = solution.x.square().mean() + 0.1 * sum(cost.sum() for cost in solution.costs)
    if solution.xs is not None:
        weights = torch.linspace(1.0, 2.0, len(solution.depths), dtype=loss.dtype).view(-1, 1, 1, 1)
        loss = loss + (weights * solution.xs.sin()).mean()
    return loss


def solved(
    flow: Flow,
    inputs: Inputs,
    gradient: AbstractGradient,
    controller: AbstractController,
    stepper: AbstractStepper = DormandPrince(),
    save_at: Sequence[float] = (),
    observers: Sequence[Observer] = (),
) -> Solution:
    """A solve with an energy beside it; the same randomness at every call."""
    bound = inputs.bind(flow, rates=(energy,), second_derivatives=gradient.second_derivatives)
    return integrate(bound, bound.initial(), (0.0, 1.0), stepper, controller, gradient, save_at, observers)


def gradients_of(solution: Solution, flow: Flow, inputs: Inputs) -> list[Tensor]:
    """dJ/d(points, mass, encoded, parameters)."""
    wanted = [*inputs.tensors, *flow.parameters()]
    found = torch.autograd.grad(loss_of(solution), wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], atol: float) -> None:
    for g, e in zip(found, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=0.0, atol=atol)
