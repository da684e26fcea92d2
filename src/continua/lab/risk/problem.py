"""A small population with a control: tokens on the sphere, labels, and attention whose depth profile is the control."""

import dataclasses
import functools
from typing import final

import torch
import torch.nn.functional as F

from continua.core.seeds import generator_of
from continua.core.shapes import Float, Points, Tensor
from continua.fields import Constant
from continua.lab.clusters.particles import random_tokens
from continua.lab.flows import identity_theta, solve_flow
from continua.model import BasisProfile, Flow, Part
from continua.operators import Attention
from continua.solve import RK4, Euler, Fixed, Projected
from continua.spaces import AbstractBasis, Cloud, Sphere

RANGE = 3.0
"""The largest logit, and with two classes the length of the interval in which losses lie."""
FINE = 16
"""Steps of RK4 that stand for the flow: their error is below 1e-6."""


@final
@dataclasses.dataclass(frozen=True)
class Population:
    """`size` sequences of three tokens on the sphere of R^3 with labels +-1: the law is uniform on them, J is exact.

        loss = log(1 + e^{-y s}) ,   s = RANGE <u, mean_i x_i(1)> ,   dx/dz = zeta(z) P A(x)

    The control is the profile zeta(z) = sum_k c_k b_k(z). Losses of two classes, |s| <= S, lie in an interval of
    length S. With `shift` every token is moved by that much along the sphere, in a fixed direction.
    """

    size: int
    shift: float = 0.0

    @functools.cached_property
    def start(self) -> Points:
        x, away = random_tokens(self.size, 3, 3, 81), random_tokens(1, 3, 3, 82)
        return Sphere().project(x + self.shift * away)

    @functools.cached_property
    def labels(self) -> Float[Tensor, " size"]:
        """Whether the mean token lies ahead, wrong for one in ten: the nearer tokens come, the surer the answer."""
        ahead = random_tokens(self.size, 3, 3, 81).mean(1)[:, 0] > 0
        wrong = torch.rand(self.size, generator=generator_of(83)) < 0.1
        return torch.where(ahead ^ wrong, 1.0, -1.0).double()


@final
class ControlledLosses:
    """The losses of a population under a control, the coefficients `c` of a basis of profiles."""

    def __init__(self, population: Population, basis: AbstractBasis) -> None:
        operator = Attention(1, 3, beta=1.0, biased=False)
        field = Constant(operator.spec(3)).double().fill(identity_theta(3)).requires_grad_(False)
        profile = BasisProfile(basis)
        self.population, self.flow = population, Flow([Part(operator, field)], 1.0, profile).double().eval()
        (self.c,) = profile.parameters()

    @torch.no_grad()
    def steer(self, c: Float[Tensor, " modes"]) -> None:
        """Sets the control."""
        self.c.copy_(c.view_as(self.c))

    def losses(self, layers: int | None) -> Float[Tensor, " size"]:
        """The loss of every sequence, differentiable in c: `layers` projected Euler steps, or the flow itself."""
        stepper = Projected(Euler(), Sphere()) if layers else Projected(RK4(), Sphere(), tangent=True)
        x = solve_flow(self.flow, Cloud(self.population.start), stepper, Fixed(layers or FINE)).x
        return F.softplus(-self.population.labels * RANGE * x.mean(1)[:, 0])
