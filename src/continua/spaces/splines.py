"""Bases with local support or fixed frequencies: B-splines (Bernstein polynomials among them) and Fourier modes."""

import bisect
import functools
import math
from dataclasses import dataclass
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.spaces.bases import AbstractBasis, AbstractSmoothBasis, Number


@final
@dataclass(frozen=True)
class BSpline(AbstractBasis):
    """Clamped B-splines of `degree` on equal cells: positive, summing to one, each living on degree + 1 cells.

        N_i^0 = 1 on [t_i, t_{i+1}) ,   N_i^d = (z - t_i)/(t_{i+d} - t_i) N_i^{d-1}
                                               + (t_{i+d+1} - z)/(t_{i+d+1} - t_{i+1}) N_{i+1}^{d-1}

    Degree 0 is piecewise constant (and jumps), degree 1 piecewise linear, degree 3 the usual cubic spline; size =
    degree + 1 gives the Bernstein polynomials. Equivalent to `scipy.interpolate.BSpline.design_matrix`.

    `breaks` lists the knots of degrees 0 and 1: a jump, or a kink at which a step of high order would lose its order.
    """

    degree: int = 3

    def __post_init__(self) -> None:
        if self.degree < 0:
            reject("degree", self.degree, "a polynomial has a degree of 0 or more", "Pass degree >= 0.")
        if self.size < self.degree + 1:
            cure = f"Pass size >= {self.degree + 1}, or a lower degree."
            reject("size", self.size, f"splines of degree {self.degree} need {self.degree + 1} functions", cure)

    @property
    def breaks(self) -> tuple[float, ...]:
        return _knots(self.size, self.degree)[self.degree + 1 : self.size] if self.degree <= 1 else ()

    def _terms(self, z: Number) -> list[Number]:
        knots = _knots(self.size, self.degree)
        if isinstance(z, Tensor):
            return _everywhere(z, knots, self.size, self.degree)
        return _where_not_zero(z, knots, self.size, self.degree)


@final
@dataclass(frozen=True)
class Fourier(AbstractSmoothBasis):
    """1, sqrt(2) cos(2 pi z), sqrt(2) sin(2 pi z), sqrt(2) cos(4 pi z), ...: orthonormal and periodic on [0, 1].

    What it expands starts and ends with the same value; `Cosine` has no such tie.
    """

    def _terms(self, z: Number) -> list[Number]:
        terms = [0.0 * z + 1.0]
        for k in range(1, self.size):
            angle = 2.0 * math.pi * ((k + 1) // 2) * z
            if isinstance(angle, Tensor):
                terms.append(math.sqrt(2.0) * (torch.cos(angle) if k % 2 else torch.sin(angle)))
            else:
                terms.append(math.sqrt(2.0) * (math.cos(angle) if k % 2 else math.sin(angle)))
        return terms


@functools.cache
def _knots(size: int, degree: int) -> tuple[float, ...]:
    """degree + 1 knots at each end, equal cells between."""
    cells = size - degree
    return (0.0,) * degree + tuple(i / cells for i in range(cells + 1)) + (1.0,) * degree


def _where_not_zero(z: float, knots: tuple[float, ...], size: int, degree: int) -> list[float]:
    """The degree + 1 functions that do not vanish at z, by the triangular scheme of de Boor."""
    z = min(max(z, 0.0), 1.0)
    cell = min(bisect.bisect_right(knots, z) - 1, size - 1)
    values = [1.0]
    for d in range(1, degree + 1):
        raised, carry = [], 0.0
        for r in range(d):
            right, left = knots[cell + r + 1] - z, z - knots[cell + 1 - d + r]
            share = values[r] / (right + left)
            raised.append(carry + right * share)
            carry = left * share
        values = [*raised, carry]
    terms = [0.0] * size
    terms[cell - degree : cell + 1] = values
    return terms


def _everywhere(z: Tensor, knots: tuple[float, ...], size: int, degree: int) -> list[Tensor]:
    """All functions at many depths by the recursion itself, without asking the device where they lie."""
    z = z.clamp(0.0, 1.0)
    last = size - 1
    terms = []
    for i in range(size + degree):
        inside = (z >= knots[i]) & ((z < knots[i + 1]) | (z >= 1.0) if i == last else z < knots[i + 1])
        terms.append(inside.to(z.dtype))
    for d in range(1, degree + 1):
        terms = [_raised(z, knots, terms, i, d) for i in range(size + degree - d)]
    return terms


def _raised(z: Tensor, knots: tuple[float, ...], terms: list[Tensor], i: int, d: int) -> Tensor:
    up, down = knots[i + d] - knots[i], knots[i + d + 1] - knots[i + 1]
    value = torch.zeros_like(z)
    if up > 0.0:
        value = value + (z - knots[i]) / up * terms[i]
    if down > 0.0:
        value = value + (knots[i + d + 1] - z) / down * terms[i + 1]
    return value
