"""Explicit Runge-Kutta steps, the tableau being data."""

import abc
import dataclasses
from collections.abc import Sequence

import torch

from continua.core.shapes import Depth, Points
from continua.solve.methods.method import AbstractMethod, Stepped, hermite
from continua.solve.state import AbstractBound, State, advanced


@dataclasses.dataclass(frozen=True)
class Tableau:
    """Butcher coefficients: k_i = f(z + c_i dz, x + dz sum_j a_ij k_j), x' = x + dz sum_i b_i k_i.

    `e` gives the error estimate dz sum_i e_i k_i of an embedded pair; its last entry belongs to the slope at the new
    point, which is also the first slope of the next step. `dense[i]` are the coefficients (from degree 1) of the
    polynomial b_i(s) of the interpolant x(z + s dz) = x + dz sum_i b_i(s) k_i, the last again for the new point.
    """

    order: int
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    e: tuple[float, ...] | None = None
    error_order: int | None = None
    dense: tuple[tuple[float, ...], ...] | None = None


class AbstractRungeKutta(AbstractMethod):
    """x' = x + dz sum_i b_i k_i. A concrete method is its tableau."""

    @property
    @abc.abstractmethod
    def tableau(self) -> Tableau:
        """The coefficients."""

    @property
    def order(self) -> int:
        return self.tableau.order

    @property
    def error_order(self) -> int | None:
        return self.tableau.error_order

    @property
    def stages(self) -> int:
        return len(self.tableau.b)

    @property
    def reversible(self) -> bool:
        return True

    def breaks(self, bound: AbstractBound, marks: Sequence[float]) -> tuple[float, ...]:
        return bound.breaks

    def step(
        self, bound: AbstractBound, z: Depth, dz: Depth, state: State, first: State | None = None, judged: bool = False
    ) -> Stepped:
        tableau, inside = self.tableau, z + 0.5 * dz
        slopes = [bound(z, state, inside) if first is None else first]
        for a, c in zip(tableau.a[1:], tableau.c[1:], strict=True):
            points = advanced(state.points, dz, a, [k.points for k in slopes])
            slopes.append(bound(z + c * dz, State(points, state.costs), inside))
        after = _moved(state, dz, tableau.b, slopes)
        if not judged or tableau.e is None:
            return Stepped(after, slopes=tuple(slopes))
        last = bound(z + dz, after, inside)
        zero = State(torch.zeros_like(state.points), tuple(torch.zeros_like(c) for c in state.costs))
        with torch.no_grad():
            error = _moved(zero, dz, tableau.e, [*slopes, last])
        return Stepped(after, error, tuple(slopes), last)

    def dense(
        self, bound: AbstractBound, z: float, dz: float, before: State, stepped: Stepped, fractions: Sequence[float]
    ) -> list[Points]:
        last = stepped.last or bound(z + dz, stepped.state, z + 0.5 * dz)
        slopes = [k.points for k in (*stepped.slopes, last)]
        if self.tableau.dense is None:
            ends = (before.points, stepped.state.points, slopes[0], slopes[-1])
            return [hermite(*ends, dz, s) for s in fractions]
        weights = [[_polynomial(row, s) for row in self.tableau.dense] for s in fractions]
        return [advanced(before.points, dz, w, slopes) for w in weights]


def _moved(state: State, dz: Depth, coefficients: Sequence[float], slopes: Sequence[State]) -> State:
    points = advanced(state.points, dz, coefficients, [k.points for k in slopes])
    by_cost = zip(state.costs, zip(*(k.costs for k in slopes), strict=True), strict=True)
    return State(points, tuple(advanced(cost, dz, coefficients, rates) for cost, rates in by_cost))


def _polynomial(coefficients: Sequence[float], s: float) -> float:
    value = 0.0
    for c in reversed(coefficients):
        value = (value + c) * s
    return value
