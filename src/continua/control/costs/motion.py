"""Costs of motion: the kinetic energy and the length of the tokens' path."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch

from continua.control.costs.cost import AbstractRunningCost
from continua.control.norms import L2, AbstractStateNorm
from continua.core.errors import expect
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.model import Rate, Setting


@final
@dataclasses.dataclass(frozen=True)
class KineticEnergy(AbstractRunningCost):
    """r = |f|^2. Under splitting and projection a step from x to x + dx costs |dx|^2 / dz.

    Of all flows that bring the tokens to the same end it prefers those with straight paths at even speed, which take
    few steps to solve. C. Finlay, J.-H. Jacobsen, L. Nurbekyan, A. Oberman, How to train your neural ODE, ICML 2020.
    """

    norm: AbstractStateNorm = L2()

    def __post_init__(self) -> None:
        expect("norm", self.norm, AbstractStateNorm, _CURE)

    def bind(self, setting: Setting, place: int) -> Rate:
        squared = _squared(self.norm, setting)

        def rate(z: Depth, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            return squared(velocity)

        return rate


@final
@dataclasses.dataclass(frozen=True)
class Length(AbstractRunningCost):
    """r = |f|: the length of the path, whatever the speed along it. Zero velocity has the subgradient zero."""

    norm: AbstractStateNorm = L2()

    def __post_init__(self) -> None:
        expect("norm", self.norm, AbstractStateNorm, _CURE)

    def bind(self, setting: Setting, place: int) -> Rate:
        squared = _squared(self.norm, setting)

        def rate(z: Depth, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            return root(squared(velocity))

        return rate


def _squared(norm: AbstractStateNorm, setting: Setting) -> Callable[[Points], Float[Tensor, " batch"]]:
    """|v|^2 on the measure of a solve and along the axis of its model."""
    measure, norm = setting.cloud.measure, norm.along(setting.axis)
    norm.check(measure, setting.cloud.points)
    return lambda velocity: norm.squared(velocity, measure)


_CURE = "Pass an object such as L2() or Sobolev(time=1)."


def root(squared: Tensor) -> Tensor:
    """The square root with the subgradient zero at zero."""
    moving = squared > 0
    return torch.where(moving, torch.where(moving, squared, 1.0).sqrt(), 0.0)
