"""Error norms: mass-weighted, so that padding does not change the grid, and the same on every rank if asked."""

import dataclasses
import math

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor
from continua.solve.methods.method import Stepped
from continua.solve.state import AbstractBound, State


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The error that a step may make in each component: atol + rtol max(|x|, |x'|)."""

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not (value > 0 and math.isfinite(value)):
                reject(name, value, "a tolerance is positive", f"Pass {name}=1e-4, or a fixed grid: Fixed(steps).")

    def check(self, points: Tensor) -> None:
        """Rejects a tolerance that the dtype cannot resolve: no step, however short, would meet it."""
        finest = 4 * torch.finfo(points.dtype).eps
        if self.rtol < finest:
            cure = f"Pass rtol >= {finest:.0e}, or work in float64: model.double() on float64 inputs."
            reject("rtol", self.rtol, f"{points.dtype} resolves no less than {finest:.1e}", cure)

    def scale(self, before: Tensor, after: Tensor) -> Tensor:
        """The tolerated error, component by component."""
        return torch.maximum(before.detach().abs(), after.detach().abs()).mul_(self.rtol).add_(self.atol)


def squared_errors(
    bound: AbstractBound, before: State, stepped: Stepped, tolerance: Tolerance, costs: bool = False
) -> Float[Tensor, " batch"]:
    """For each sequence sum_i w_i mean_a (e_ia / (atol + rtol max(|x_ia|, |x'_ia|)))^2, with sum_i w_i = 1.

    With `costs` the worst of the running costs counts as well. A cost that is no longer finite is an infinite error in
    any case, so that no step leads there.
    """
    assert stepped.error is not None, "the method was asked to judge its step"
    scale = tolerance.scale(before.points, stepped.state.points)
    total = _mean_square(bound, stepped.error.points, scale)
    for c0, c1, e in zip(before.costs, stepped.state.costs, stepped.error.costs, strict=True):
        finite = torch.isfinite(c1.detach())
        total = torch.where(finite if finite.shape == total.shape else finite.all(), total, torch.inf)
        if costs:
            total = torch.maximum(total, (e / tolerance.scale(c0, c1)).square())
    return total


def squared_size(bound: AbstractBound, x: Tensor, like: Tensor, tolerance: Tolerance) -> Float[Tensor, " batch"]:
    """The squared norm of x in units of the tolerance at `like`, for each sequence."""
    return _mean_square(bound, x, tolerance.scale(like, like))


def _mean_square(bound: AbstractBound, x: Tensor, scale: Tensor) -> Float[Tensor, " batch"]:
    """Mass-weighted over tokens, plain over the embedding; overwrites `scale`."""
    with torch.no_grad():
        squares = torch.div(x, scale, out=scale).square_().mean(-1)  # (batch tokens)
        if bound.weights is None:
            return squares.mean(-1)
        return torch.where(bound.weights > 0, bound.weights * squares, 0.0).sum(-1)


def joint(squares: Float[Tensor, " batch"], all_ranks: bool) -> float:
    """The root mean square over the batch, and over every rank's batch if `all_ranks`: one number for all."""
    if not (all_ranks and torch.distributed.is_available() and torch.distributed.is_initialized()):
        return squares.mean().sqrt().item()
    total = torch.stack([squares.sum(), squares.new_tensor(float(squares.numel()))])
    torch.distributed.all_reduce(total)
    return (total[0] / total[1]).sqrt().item()
