"""A running cost that is paid at a random stretch of depth alone, for costs that are dear to evaluate."""

import dataclasses
from typing import ClassVar, final

import torch

from continua.control.costs.cost import AbstractRunningCost
from continua.core.errors import expect, reject
from continua.core.seeds import branched, generator_of
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.model import Rate, Setting


@final
@dataclasses.dataclass(frozen=True)
class AtRandomDepth(AbstractRunningCost):
    """r~ = r 1{(z - u) mod Z < share Z} / share, the depth u drawn evenly from [0, Z) once for each solve.

    Every depth is met with probability `share`, so the integral of r~ is unbiased for that of r, and so is the solver's
    own quadrature of it on a grid that does not depend on u; at all other depths r is not evaluated. With `share` of
    the length of one step about one step pays: what `JacobianSpectral` asks of stiff flows, at the price of one depth.
    """

    cost: AbstractRunningCost
    share: float = 0.125

    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect("cost", self.cost, AbstractRunningCost, "Pass an object such as JacobianSpectral().")
        if self.cost.decays:
            cure = "Pass it to the objective as it is."
            reject("cost", self.cost, "an L2 term of the parameters is cheap at every depth", cure)
        if not 0.0 < self.share <= 1.0:
            reject("share", self.share, "it is a part of the depth", "Pass 0 < share <= 1.")

    def bind(self, setting: Setting, place: int) -> Rate:
        inner, depth = self.cost.bind(setting, place), setting.flow.depth
        generator = generator_of(branched(branched(setting.seed, 1 + place), 0))
        u = depth * float(torch.rand((), generator=generator, dtype=torch.float64))

        def rate(z: Depth, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            met = (z - u) % depth < self.share * depth
            if not bool(torch.as_tensor(met).any()):
                return points.new_zeros(points.shape[0])
            found = inner(z, points, velocity) / self.share
            return torch.where(met, found, 0.0) if isinstance(met, Tensor) else found

        return rate
