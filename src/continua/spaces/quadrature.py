"""Quadrature rules whose nodes we choose: `int_a^b f(t) dt  ~  sum_i w_i f(t_i)`.

A rule is what turns tokens, heads or embedding coordinates into a measure `sum_i w_i delta_{t_i}`. Rules for
samples that are given to us live in `samples.py`.
"""

import abc
import math
from dataclasses import dataclass
from typing import final

import torch

from continua.core.checks import at_least
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor


class AbstractNodalRule(abc.ABC):
    """A rule that chooses its own nodes on a bounded interval."""

    order: float
    """The error on smooth integrands is O(h^order) in the spacing h; `math.inf` for spectral rules."""

    @final
    def nodes(
        self, count: int, span: tuple[float, float] = (0.0, 1.0), dtype: torch.dtype = torch.float64
    ) -> tuple[Float[Tensor, " count"], Float[Tensor, " count"]]:
        """Ascending nodes `t_i` and weights `w_i` on `span = (a, b)`, on the cpu.

            t_i = a (1 - x_i)/2 + b (1 + x_i)/2 ,   w_i = u_i (b - a)/2

        from the nodes `x_i` and weights `u_i` on [-1, 1]. Computed in float64, cast to `dtype` last.
        """
        at_least(1, count=count)
        low, high = span
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            reject("span", span, "it is not a bounded interval", "Give span=(a, b) with finite a < b.")
        points, weights = self._reference(count)
        # Written so that x = -1 and x = 1 meet the ends of the span without rounding.
        nodes = low * (0.5 - 0.5 * points) + high * (0.5 + 0.5 * points)
        return nodes.to(dtype), (0.5 * (high - low) * weights).to(dtype)

    @abc.abstractmethod
    def degree(self, count: int) -> int:
        """Highest degree up to which `count` nodes integrate every polynomial exactly."""

    @abc.abstractmethod
    def _reference(self, count: int) -> tuple[Float[Tensor, " count"], Float[Tensor, " count"]]:
        """Ascending nodes and weights on [-1, 1] in float64."""


@final
@dataclass(frozen=True)
class GaussLegendre(AbstractNodalRule):
    """Gauss-Legendre: the nodes `x_i` are the zeros of the Legendre polynomial `P_n`.

        u_i = 2 / ((1 - x_i^2) P_n'(x_i)^2)

    Newton's iteration from `cos(pi (i - 1/4)/(n + 1/2))`, symmetrised, weights scaled to sum to 2. Equivalent
    to `numpy.polynomial.legendre.leggauss` mapped to the span. The default choice: no other rule with as many
    nodes is exact to a higher degree. Its ends are not nodes. Source: Davis and Rabinowitz, Methods of
    Numerical Integration, section 2.7.
    """

    order = math.inf

    def degree(self, count: int) -> int:
        return 2 * count - 1

    def _reference(self, count: int) -> tuple[Float[Tensor, " count"], Float[Tensor, " count"]]:
        index = torch.arange(count, 0, -1, dtype=torch.float64)
        x = torch.cos(math.pi * (index - 0.25) / (count + 0.5))
        # Quadratic convergence from a guess good to O(n^-2): five iterations reach rounding, three are for safety.
        for _ in range(8):
            value, slope = _legendre(x, count)
            x = x - value / slope
        x = 0.5 * (x - x.flip(0))
        weights = 2.0 / ((1.0 - x * x) * _legendre(x, count)[1] ** 2)
        weights = 0.5 * (weights + weights.flip(0))
        return x, weights * (2.0 / weights.sum())


@final
@dataclass(frozen=True)
class ClenshawCurtis(AbstractNodalRule):
    """`x_k = -cos(pi k/N)`, `N = n - 1`: the ends are nodes, and `N` panels are refined to `2 N` with all nodes reused.

        u_k = (c_k/N) (1 - sum_{1 <= j <= N/2} b_j cos(2 pi j k/N)/(4 j^2 - 1))

    with `c_k` = 1 at the ends and 2 inside, `b_j` = 1 if `2 j = N` and 2 otherwise; one node is the midpoint rule.
    Source: Waldvogel, BIT 46 (2006) 195-202; Trefethen, SIAM Review 50 (2008) 67-87.
    """

    order = math.inf

    def degree(self, count: int) -> int:
        return count - 1 + count % 2  # interpolation gives n - 1, the symmetry of the nodes one more if that is even

    def _reference(self, count: int) -> tuple[Float[Tensor, " count"], Float[Tensor, " count"]]:
        if count == 1:
            return MidpointRule()._reference(1)
        panels, k = count - 1, torch.arange(count, dtype=torch.float64)
        j = torch.arange(1, panels // 2 + 1, dtype=torch.float64)
        b = torch.where(2 * j == panels, 1.0, 2.0) / (4 * j * j - 1)
        weights = (1.0 - torch.cos(2.0 * math.pi * torch.outer(k, j) / panels) @ b) / panels
        weights[1:-1] *= 2.0
        # A sine of a symmetric argument is zero at the centre and symmetric to the last bit; a cosine is not.
        return torch.sin(0.5 * math.pi * (2 * k - panels) / panels), weights


@final
@dataclass(frozen=True)
class MidpointRule(AbstractNodalRule):
    """Midpoint of `n` equal cells: `x_i = (2 i + 1)/n - 1`, `u_i = 2/n`. Second order, ends excluded."""

    order = 2.0

    def degree(self, count: int) -> int:
        return 1

    def _reference(self, count: int) -> tuple[Float[Tensor, " count"], Float[Tensor, " count"]]:
        index = torch.arange(count, dtype=torch.float64)
        return (2 * index + 1) / count - 1.0, torch.full((count,), 2.0 / count, dtype=torch.float64)


def _legendre(x: Float[Tensor, " points"], n: int) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
    """`P_n(x)` and `P_n'(x) = n (P_{n-1} - x P_n)/(1 - x^2)` inside (-1, 1), by the three-term recurrence."""
    previous, current = torch.ones_like(x), x
    for k in range(1, n):
        previous, current = current, ((2 * k + 1) * x * current - k * previous) / (k + 1)
    return current, n * (previous - x * current) / (1.0 - x * x)
