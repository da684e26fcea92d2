"""Costs of the Jacobian df/dX: its Frobenius norm, squared, by Hutchinson's estimate; its spectral norm by iterations.

On a measure the Jacobian is that of a map between weighted L2 spaces, J~ = W^1/2 (df/dX) W^-1/2 with W = diag(w_i v_a);
tokens without mass are left out, and v_a are the weights of the model's axis unless another is given.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, final

import torch

from continua.control.costs import AbstractRunningCost
from continua.control.norms import check_axis, safe_sqrt, state_weights
from continua.core.checks import at_least
from continua.core.shapes import DepthValue, Float, Points, Tensor
from continua.model import Rate, Setting
from continua.solve import State
from continua.spaces import Axis


@final
@dataclasses.dataclass(frozen=True)
class JacobianFrobenius(AbstractRunningCost):
    """r = |eps^T df/dX|^2, eps random signs that are fixed for the whole solve: its mean is |df/dX|_F^2.

    One more evaluation and one vector-Jacobian product per stage. M. F. Hutchinson, Commun. Stat. Simul. 18 (1989).
    """

    axis: Axis | None = None

    random: ClassVar[bool] = True

    def bind(self, setting: Setting, place: int) -> Rate:
        # One eps for all stages: drawn anew at each, r would jump in z, adaptive steps would shrink to nothing, and the
        # replay of a checkpointed backward would differentiate another function than the one that was solved.
        eps = setting.signs(place)
        return _bind(setting, self.axis, lambda jacobian: _size(jacobian.pull(eps)))


@final
@dataclasses.dataclass(frozen=True)
class JacobianSpectral(AbstractRunningCost):
    """r = |J~ u_K|, u_{k+1} = J~^T J~ u_k / |J~^T J~ u_k| from random signs u_0 that are fixed for the whole solve.

    From below it approaches the spectral norm of df/dX, by which the flow may pull neighbours apart. The derivative is
    taken through all `iterations`: the discrete cost itself is what its gradient belongs to. Each iteration costs two
    products with the Jacobian per stage. Where the leading direction turns away from the start, few iterations see the
    next one instead, and the cost dips.
    """

    iterations: int = 3
    axis: Axis | None = None

    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations)

    def bind(self, setting: Setting, place: int) -> Rate:
        start = setting.signs(place)

        def norm(jacobian: "_Jacobian") -> Float[Tensor, " batch"]:
            u = _unit(start)
            for _ in range(self.iterations):
                u = _unit(jacobian.pull(jacobian.push(u)))
            return safe_sqrt(_size(jacobian.push(u)))

        return _bind(setting, self.axis, norm)


class _Jacobian(NamedTuple):
    """Products with J~ at one depth and state, each differentiable again."""

    x: Points
    f: Points
    root: Tensor
    """sqrt(w_i v_a), zero where a token has no mass"""
    inverse: Tensor
    """1 / sqrt(w_i v_a), zero likewise"""

    def pull(self, u: Points) -> Points:
        """J~^T u."""
        return self.inverse * _derivative(self.f, self.x, self.root * u)

    def push(self, u: Points) -> Points:
        """J~ u, as the derivative of the linear map y -> J^T y along W^-1/2 u."""
        # Backwards twice: the graph of f is there already, and forward mode would evaluate f once more.
        y = torch.zeros_like(self.f).requires_grad_(True)
        pulled = _derivative(self.f, self.x, y)
        return self.root * _derivative(pulled, y, self.inverse * u)


def _bind(setting: Setting, axis: Axis | None, norm: Callable[[_Jacobian], Float[Tensor, " batch"]]) -> Rate:
    """The rate `norm(J~)`."""
    axis = setting.axis if axis is None else axis
    check_axis(axis, setting.cloud.points)
    # The solve's own flow runs fused attention, which has no second derivative. This is the same flow with the same
    # randomness, bound on the path that forms the matrix of attention weights.
    flow = setting.bind(second_derivatives=True)

    def rate(z: DepthValue, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
        building = torch.is_grad_enabled()  # a Jacobian needs a graph of its own even where nobody differentiates it
        with torch.enable_grad():
            x = points if building and points.requires_grad else points.detach().requires_grad_(True)
            w = state_weights(flow.binding.cloud.measure, axis, x)
            heavy = w > 0
            root = torch.where(heavy, w, 1.0).sqrt()
            f = flow(z, State(x)).x
            cost = norm(_Jacobian(x, f, torch.where(heavy, root, 0.0), torch.where(heavy, 1.0 / root, 0.0)))
        return cost if building else cost.detach()

    return rate


def _derivative(y: Tensor, x: Tensor, u: Tensor) -> Tensor:
    """(dy/dx)^T u, differentiable again; zero where y does not depend on x."""
    if not y.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(y, x, u, create_graph=True, materialize_grads=True)[0]


def _size(x: Points) -> Float[Tensor, " batch"]:
    return x.square().sum((-1, -2))


def _unit(x: Points) -> Points:
    size = safe_sqrt(_size(x))
    return x / torch.where(size > 0, size, 1.0)[:, None, None]
