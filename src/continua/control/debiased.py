"""An unbiased objective from solves over subsets of the tokens."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import nn

from continua.control.objective import Terms
from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.seeds import branch_seed, fresh_seed, generator_of
from continua.core.shapes import Float, Tensor
from continua.model import Part
from continua.operators import AbstractTokenIntegral, Exact, Subset, draw_level, with_integral

Model = TypeVar("Model", bound=nn.Module)

Criterion = Callable[[Any, Any, torch.Generator], Tensor | Terms]
"""(model, batch, generator) -> J: an `Objective`, or a function that gives a scalar.

All randomness must come from the generator: `model(..., generator=...)`.
"""


@final
@dataclasses.dataclass(frozen=True)
class DebiasedObjective:
    """J = J_m + (J_{2^l m} - (J' + J'')/2) / P(l), with one level l of 1, ..., `levels` drawn at random.

    J_n is the objective with n nodes in every token integral, J' and J'' those of the two halves of the nodes of
    J_{2^l m}; at the last level the finer side is exact. All share nodes and every other seed, so the difference is
    small, and sum_l E Delta_l = J - E J_m: value and gradient are unbiased, through any nonlinearity of flow and loss.
    An unbiased attention alone (`Debiased`) is not enough. C.-H. Rhee and P. W. Glynn, Unbiased estimation with square
    root convergence for SDE models, Oper. Res. 63 (2015); docs/mathematics.md, section 6.

    A call costs four solves (three at level 1) with at most 2^l m nodes, and an exact one with probability P(levels) ~
    2^(-1.5 levels). log2(T/m) levels reach from m nodes to T tokens; fewer pay the exact solve more often, more are of
    no use. Unbiased on a fixed depth grid: adaptive steps would choose a grid for each of the solves, within their
    tolerance.
    """

    objective: Criterion
    m: int
    levels: int = 3

    def __post_init__(self) -> None:
        at_least(1, m=self.m, levels=self.levels)

    def __call__(self, model: nn.Module, batch: Any, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """One unbiased sample of J; its gradient is one of the gradient."""
        if not model.training:
            cure = "Call model.train(); to evaluate, call the objective itself with an exact token integral."
            reject("model", "in evaluation mode", "nothing is drawn at random there, so no mean is unbiased", cure)
        seed = fresh_seed(generator)
        level, probability = draw_level(self.levels, branch_seed(seed, 0))
        size = self.m * 2**level

        def value(integral: AbstractTokenIntegral) -> Tensor:
            # The same generator for all: nodes and dropout masks agree, else the difference would have the variance of
            # J itself, divided by a small probability.
            J = self.objective(with_token_integral(model, integral), batch, generator_of(branch_seed(seed, 1)))
            return J.total if isinstance(J, Terms) else J

        # The last level ends the telescope: with the exact integral on its finer side nothing is left to add.
        fine = value(Exact() if level == self.levels else Subset(size))
        # Both halves, antithetic, not the first alone: E Delta_l is the same, and terms linear in the subset cancel.
        first, second = (value(Subset(size, kept=kept)) for kept in ((0, size // 2), (size // 2, size)))
        coarse = first if level == 1 else value(Subset(size, kept=(0, self.m)))
        return coarse + (fine - 0.5 * (first + second)) / probability


def with_token_integral(model: Model, integral: AbstractTokenIntegral) -> Model:
    """The same model, parameters shared, with `integral` in every attention of its flows.

    Gradients through the copy arrive at the parameters of `model`. The copy starts in the mode of `model`; `train` and
    `eval` then act on one of the two alone.
    """
    other = copy.copy(model)
    children = {name: with_token_integral(child, integral) for name, child in model.named_children()}
    other._modules = {**model._modules, **children}
    if isinstance(other, Part):
        other.operator = with_integral(other.operator, integral)
    return other
