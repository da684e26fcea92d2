"""Costs of the Jacobian df/dX: its Frobenius norm by Hutchinson's estimate, its spectral norm by power iterations.

On a measure the Jacobian is that of a map between weighted L2 spaces, J~ = W^1/2 (df/dX) W^-1/2 with W = diag(w_i v_a);
tokens without mass are left out, and v_a are the weights of the model's axis unless another is given. Both costs
differentiate the velocity once more, so the flow is bound a second time, with the same randomness, on the path that can
be differentiated twice (attention forms its kernel there).
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, final

import torch

from continua.control.costs.cost import AbstractRunningCost
from continua.control.costs.motion import root
from continua.control.norms import cells, check_axis
from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.model import FlowVectorField, Rate, Setting
from continua.solve import State
from continua.spaces import Axis


@final
@dataclasses.dataclass(frozen=True)
class JacobianFrobenius(AbstractRunningCost):
    """r = |eps^T df/dX|^2, eps random signs that are fixed for the whole solve: its mean is |df/dX|_F^2.

    One more evaluation and one vector-Jacobian product a stage. M. F. Hutchinson, Commun. Stat. Simul. 18 (1989).
    """

    axis: Axis | None = None

    random: ClassVar[bool] = True

    def bind(self, setting: Setting, place: int) -> Rate:
        jacobian, eps = _Jacobian.of(setting, self.axis), setting.signs(place)

        def norm(pulled: "_Pulled") -> Float[Tensor, " batch"]:
            return _size(pulled.back(eps))

        return lambda z, points, velocity: jacobian.measured(z, points, norm)


@final
@dataclasses.dataclass(frozen=True)
class JacobianSpectral(AbstractRunningCost):
    """r = |J~ u_K|, u_{k+1} = J~^T J~ u_k / |J~^T J~ u_k| from random signs u_0 that are fixed for the whole solve.

    From below it approaches the spectral norm of df/dX, by which the flow may pull neighbours apart. The derivative is
    taken through all `iterations`: the discrete cost itself is what its gradient belongs to. Each iteration costs two
    products with the Jacobian a stage. Where the leading direction turns away from the start, few iterations see the
    next one instead, and the cost dips.
    """

    iterations: int = 3
    axis: Axis | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            reject("iterations", self.iterations, "a power method iterates", "Pass iterations >= 1.")

    random: ClassVar[bool] = True

    def bind(self, setting: Setting, place: int) -> Rate:
        jacobian, start = _Jacobian.of(setting, self.axis), setting.signs(place)

        def norm(pulled: "_Pulled") -> Float[Tensor, " batch"]:
            u = _unit(start)
            for _ in range(self.iterations):
                u = _unit(pulled.back(pulled.forth(u)))
            return root(_size(pulled.forth(u)))

        return lambda z, points, velocity: jacobian.measured(z, points, norm)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Pulled:
    """Products with J~ at one depth and state, each differentiable again."""

    x: Points
    f: Points
    root: Tensor
    """sqrt(w_i v_a), zero where a token has no mass"""
    inverse: Tensor
    """1 / sqrt(w_i v_a), zero likewise"""

    def back(self, u: Points) -> Points:
        """J~^T u."""
        return self.inverse * _derivative(self.f, self.x, self.root * u)

    def forth(self, u: Points) -> Points:
        """J~ u, as the derivative of the linear map y -> J^T y along W^-1/2 u."""
        y = torch.zeros_like(self.f).requires_grad_(True)
        pulled = _derivative(self.f, self.x, y)
        return self.root * _derivative(pulled, y, self.inverse * u)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Jacobian:
    """The Jacobian of a flow, bound for one solve."""

    bound: FlowVectorField
    axis: Axis | None

    @classmethod
    def of(cls, setting: Setting, axis: Axis | None) -> "_Jacobian":
        axis = setting.axis if axis is None else axis
        check_axis(axis, setting.cloud.points)
        return cls(setting.bound(second_order=True), axis)

    def measured(
        self, z: Depth, points: Points, norm: Callable[[_Pulled], Float[Tensor, " batch"]]
    ) -> Float[Tensor, " batch"]:
        """`norm` of the Jacobian at one depth; with a graph where one is being built, and only there."""
        building = torch.is_grad_enabled()
        with torch.enable_grad():
            x = points if building and points.requires_grad else points.detach().requires_grad_(True)
            w = cells(self.bound.context.cloud.measure, self.axis, x)
            heavy = w > 0
            safe = torch.where(heavy, w, 1.0).sqrt()
            f = self.bound(z, State(x)).points
            pulled = _Pulled(x, f, torch.where(heavy, safe, 0.0), torch.where(heavy, 1.0 / safe, 0.0))
            found = norm(pulled)
        return found if building else found.detach()


def _derivative(y: Tensor, x: Tensor, u: Tensor) -> Tensor:
    """(dy/dx)^T u, differentiable again; zero where y does not depend on x."""
    if not y.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _size(x: Points) -> Float[Tensor, " batch"]:
    return x.square().sum((-1, -2))


def _unit(x: Points) -> Points:
    size = root(_size(x))
    return x / torch.where(size > 0, size, 1.0)[:, None, None]
