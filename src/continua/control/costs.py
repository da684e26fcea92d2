"""Running costs, integrated along depth (docs/mathematics.md, section 4); those of Jacobians are in `jacobian.py`."""

import abc
import dataclasses
import re
from collections.abc import Iterator
from typing import ClassVar, final

import torch

from continua.control.norms import L2, Sobolev, safe_sqrt
from continua.core.checks import fraction, is_a
from continua.core.errors import reject
from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import DepthValue, Float, Points, Tensor
from continua.fields import AbstractField, AbstractHeadField, head_masses
from continua.model import Flow, Rate, Setting
from continua.operators import Role, leaves
from continua.spaces import Measure


class AbstractRunningCost(abc.ABC):
    """int_0^Z r(z, X_b, theta) dz for each sequence b, one more component of the state of the solve.

    Costs never act back on the tokens and stay outside the error norm, unless the controller says `costs=True`. At
    every stage the rate sees the velocity of the flow; split and projected steps have only the mean velocity dx/dz of
    the whole step to show, and their costs are sums over steps.
    """

    random: ClassVar[bool] = False
    """Whether it draws something, once for each solve."""
    decays: ClassVar[bool] = False
    """Whether it is an L2 term of the parameters, which weight decay would repeat."""

    @abc.abstractmethod
    def bind(self, setting: Setting, place: int) -> Rate:
        """The rate for one solve, with all its randomness drawn; `place` tells several costs apart."""

    @final
    @property
    def name(self) -> str:
        """The words of the class, joined: `kinetic_energy`; at random depths, those of the cost that is met there."""
        kind = type(self.cost if isinstance(self, AtRandomDepth) else self)
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


@final
@dataclasses.dataclass(frozen=True)
class KineticEnergy(AbstractRunningCost):
    """r = |f|^2. Under splitting and projection a step from x to x + dx costs |dx|^2 / dz.

    Of all flows that bring the tokens to the same end it prefers those with straight paths at constant speed, which
    take few steps to solve. `KineticEnergy(L2(mean=True))` is a mean over tokens and channels, as `--energy-cost` has
    it; the default is a sum, larger by the number of channels and by the mass of a sequence.

    C. Finlay, J.-H. Jacobsen, L. Nurbekyan, A. Oberman, How to train your neural ODE, ICML 2020.
    """

    norm: Sobolev = L2()

    def __post_init__(self) -> None:
        is_a(Sobolev, "Pass an object such as L2() or Sobolev(time=1).", norm=self.norm)

    def bind(self, setting: Setting, place: int) -> Rate:
        """|f|^2 on the measure of a solve and along the axis of its model."""
        measure, norm = setting.cloud.measure, self.norm.along(setting.axis)
        norm.check(measure, setting.cloud.points)
        return _Energy(norm, measure)


@final
@dataclasses.dataclass(frozen=True)
class _Energy:
    """|f|^2 in one solve."""

    norm: Sobolev
    measure: Measure

    def __call__(self, z: DepthValue, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
        return self.norm.squared_norm(velocity, self.measure)

    def of_step(self, z: DepthValue, dz: float, before: Points, after: Points) -> Float[Tensor, " batch"]:
        return self.norm.squared_distance(after, before, self.measure) / dz


@final
@dataclasses.dataclass(frozen=True)
class PathLength(AbstractRunningCost):
    """r = |f|: the length of the path, whatever the speed along it. Zero velocity has the subgradient zero.

    `PathLength(L2(mean=True))`, as `--path-length-cost` has it, takes root mean squares over tokens and channels; the
    default is larger by the root of the number of channels times the mass of a sequence.
    """

    norm: Sobolev = L2()

    def __post_init__(self) -> None:
        KineticEnergy(self.norm)  # refuses what is no norm

    def bind(self, setting: Setting, place: int) -> Rate:
        energy = KineticEnergy(self.norm).bind(setting, place)
        return lambda z, points, velocity: safe_sqrt(energy(z, points, velocity))


@final
@dataclasses.dataclass(frozen=True)
class HeadNegentropy(AbstractRunningCost):
    """r = sum_k p_k log(p_k / om_k), summed over all parts whose heads are a measure.

    Zero for the uniform density and growing as heads die out, so that paying for it keeps heads alive; with the
    opposite sign it would reward collapse. The weights om_k are those of the rule of `ContinuousHeads`, and 1/H for
    other fields; of a flow with one such part and om_k = 1/H, exp(-r) H is the number of effective heads. A head of
    mass zero adds nothing, and its slope is taken as zero: a mirror step cannot bring it back.
    """

    @staticmethod
    def applies(flow: Flow) -> bool:
        """Whether a measure of heads of the flow has parameters that are trained."""
        with torch.enable_grad():  # of generated masses no parameter is by itself a mass: the masses are asked
            return any(p.requires_grad for field in flow.fields for p, _ in _head_masses(field, 0.0))

    def bind(self, setting: Setting, place: int) -> Rate:
        measures = [field for field in setting.flow.fields if field.has_masses]
        if not measures:
            cure = "Build the flow with Attention(..., head_masses=True) and a field such as ContinuousHeads."
            reject("flow", [type(f).__name__ for f in setting.flow.fields], "no head of this flow has a mass", cure)
        return _Negentropy(measures)


@final
@dataclasses.dataclass(frozen=True)
class _Negentropy:
    """sum_k p_k log(p_k / om_k) of all measures of heads at one depth, which hangs on no token."""

    measures: list[AbstractField]

    def __call__(self, z: DepthValue, points: Points, velocity: Points | None = None) -> Float[Tensor, " batch"]:
        total = points.new_zeros(points.shape[0])
        for p, om in [pair for field in self.measures for pair in _head_masses(field, z)]:
            alive = torch.where(p > 0, p, om)  # 0 log 0 = 0 = om log(om/om), and the slope is not -infinity
            total = total + (alive * torch.log(alive / om)).sum(-1)
        return total

    def of_step(self, z: DepthValue, dz: float, before: Points, after: Points) -> Float[Tensor, " batch"]:
        return dz * self(z, before)


@final
@dataclasses.dataclass(frozen=True)
class FieldSize(AbstractRunningCost):
    """r = |theta(z)|^2 over all parameters of all parts, the masses of heads apart.

    The L2 term of the control problem, in theta itself and so independent of the field's modes. Weight decay has
    the same effect in the optimiser; `Objective.check` refuses the two together.
    """

    decays: ClassVar[bool] = True

    def bind(self, setting: Setting, place: int) -> Rate:
        def rate(z: DepthValue, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            total = points.new_zeros(points.shape[0])
            for field in setting.flow.fields:
                for (_, spec), (_, leaf) in zip(leaves(field.spec), leaves(field(z)), strict=True):
                    if spec.role is not Role.HEAD_MASS:
                        # A depth per sequence gives parameters with a leading batch.
                        squares = leaf.square()
                        total = total + (squares.sum() if isinstance(z, float | int) else squares.flatten(1).sum(-1))
            return total

        return rate


def _head_masses(field: AbstractField, z: DepthValue) -> Iterator[tuple[Tensor, Tensor]]:
    """(p, om) of every measure of heads in theta(z)."""
    for p in head_masses(field, z) if field.has_masses else ():
        uniform = torch.full_like(p.detach(), 1.0 / p.shape[-1])
        yield p, field.weights(p) if isinstance(field, AbstractHeadField) else uniform


@final
@dataclasses.dataclass(frozen=True)
class AtRandomDepth(AbstractRunningCost):
    """r~ = r 1{(z - u) mod Z < p Z} / p, p = `fraction`, the depth u drawn uniformly from [0, Z) once for each solve.

    Every depth is met with probability p, so the integral of r~ is unbiased for that of r, and so is the solver's
    own quadrature of it on a grid that does not depend on u; at all other depths r is not evaluated. With p of
    the length of one step about one step pays: what `JacobianSpectral` asks of stiff flows, at the price of one depth.
    """

    cost: AbstractRunningCost
    fraction: float = 0.125

    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        is_a(AbstractRunningCost, "Pass an object such as JacobianSpectral().", cost=self.cost)
        if self.cost.decays:
            cure = "Pass it to the objective as it is."
            reject("cost", self.cost, "an L2 term of the parameters is cheap at every depth", cure)
        fraction(none=False, fraction=self.fraction)

    def bind(self, setting: Setting, place: int) -> Rate:
        inner, depth = self.cost.bind(setting, place), setting.flow.depth
        # A branch below the place: the inner cost draws its own signs from the place itself.
        generator = generator_of(branch_seed(branch_seed(setting.seed, 1 + place), 0))
        u = depth * float(torch.rand((), generator=generator, dtype=torch.float64))

        def rate(z: DepthValue, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            met = (z - u) % depth < self.fraction * depth
            if not bool(torch.as_tensor(met).any()):
                return points.new_zeros(points.shape[0])
            cost = inner(z, points, velocity) / self.fraction
            return torch.where(met, cost, 0.0) if isinstance(met, Tensor) else cost

        return rate
