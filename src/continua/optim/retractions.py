"""Retractions of the Stiefel manifold: from a point along a tangent, and back on the manifold."""

import abc
import dataclasses
import math
from typing import final

import torch

from continua.core.shapes import Tensor


class AbstractRetraction(abc.ABC):
    """R_U(xi), with R_U(xi) = U + xi + O(|xi|^2), for matrices with no more columns than rows."""

    @abc.abstractmethod
    def move(self, u: Tensor, xi: Tensor, reach: float) -> Tensor:
        """R_U(xi); no |xi| exceeds `reach`, which may be infinite."""


@final
@dataclasses.dataclass(frozen=True)
class Polar(AbstractRetraction):
    """R_U(xi) = (U + xi)(I + xi^H xi)^{-1/2}, the point nearest to U + xi.

    By the Newton-Schulz iteration X <- X (3 I - X^H X)/2, matrix products alone. As xi is tangent, the singular values
    of U + xi lie in [1, sqrt(1 + reach^2)]: how many iterations reach rounding is known before. Without a finite reach
    by a singular value decomposition.
    """

    def move(self, u: Tensor, xi: Tensor, reach: float) -> Tensor:
        x = u + xi
        if not reach <= 1e3:
            left, _, right = torch.linalg.svd(x, full_matrices=False)
            return left @ right
        largest = math.sqrt(1.0 + reach * reach)
        return newton_schulz(x / largest, _iterations(1.0 / largest, torch.finfo(u.dtype).eps))


@final
@dataclasses.dataclass(frozen=True)
class Cayley(AbstractRetraction):
    """R_U(xi) = (I - W/2)^{-1} (I + W/2) U with the skew W = P xi U^H - U xi^H P, P = I - U U^H/2.

    A last Newton-Schulz iteration keeps the rounding of many updates from adding up. Source: Z. Wen and W. Yin, A
    feasible method for optimization with orthogonality constraints (2013).
    """

    def move(self, u: Tensor, xi: Tensor, reach: float) -> Tensor:
        half = (xi - 0.5 * (u @ (u.mH @ xi))) @ u.mH
        w = 0.5 * (half - half.mH)
        eye = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
        return newton_schulz(torch.linalg.solve(eye - w, u + w @ u), 1)


def newton_schulz(x: Tensor, iterations: int) -> Tensor:
    """X <- X (3 I - X^H X)/2, again and again: singular values in (0, sqrt 3) tend to one, quadratically at the end."""
    for _ in range(iterations):
        x = torch.add(1.5 * x, x @ (x.mH @ x), alpha=-0.5)
    return x


def _iterations(smallest: float, eps: float) -> int:
    """Iterations until a singular value in [smallest, 1] is one to rounding, and one more."""
    count = 1
    while 1.0 - smallest > 0.25 * eps and count < 64:
        smallest, count = 0.5 * smallest * (3.0 - smallest * smallest), count + 1
    return count
