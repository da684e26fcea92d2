"""Bases of functions on [0, 1], in which parameter fields expand: `theta(z) = sum_k c_k phi_k(z)`."""

import abc
import bisect
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

import torch

from continua.core.checks import at_least, fraction
from continua.core.errors import reject
from continua.core.shapes import Float, Tensor

Number = TypeVar("Number", float, Tensor)

_SLACK = 1e-6
"""How far outside [0, 1] a depth may lie: the rounding of a depth that was computed in float32."""


@dataclass(frozen=True)
class AbstractBasis(abc.ABC):
    """`size` functions `phi_0, ..., phi_{size-1}` on [0, 1]."""

    size: int
    breaks: tuple[float, ...] = dataclasses.field(init=False, default=(), repr=False, compare=False)
    """The depths in (0, 1) at which the functions jump, ascending; no solver step may straddle them."""

    def __post_init__(self) -> None:
        at_least(1, size=self.size)

    @final
    def evaluate(
        self,
        z: float | Float[Tensor, " points"],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, " size"] | Float[Tensor, "points size"]:
        """`phi_k(z)` along the last axis, for one depth or for many; differentiable in a tensor `z`.

        `dtype` and `device` default to those of a tensor `z`, else to torch's defaults. A float is evaluated
        in Python and becomes one small tensor, as solvers ask at every stage; a tensor `z` is not checked
        against [0, 1], which would synchronise with its device.
        """
        if isinstance(z, Tensor):
            return torch.stack(self._terms(z.to(dtype=dtype or z.dtype, device=device or z.device)), dim=-1)
        if not -_SLACK <= z <= 1.0 + _SLACK:
            reject("z", z, "it is outside [0, 1]", "Divide the depth by the total depth Z first.")
        kind = dtype or torch.get_default_dtype()
        if torch.compiler.is_compiling():  # which sees through a cache, with a warning
            return torch.tensor(self._terms(z), dtype=kind, device=device)
        return _values(self, z, kind, device)

    @abc.abstractmethod
    def _terms(self, z: Number) -> list[Number]:
        """The `size` values at `z`: Python floats for a float, tensors shaped as `z` for a tensor."""


@final
@dataclass(frozen=True)
class Legendre(AbstractBasis):
    """Shifted Legendre polynomials, orthonormal on [0, 1].

        phi_k(z) = sqrt(2 k + 1) P_k(x) ,   x = 2 z - 1 ,   (k + 1) P_{k+1} = (2 k + 1) x P_k - k P_{k-1}

    Equivalent to `sqrt(2 k + 1) * numpy.polynomial.legendre.legvander(2 z - 1, size - 1)`.
    """

    def _terms(self, z: Number) -> list[Number]:
        x = 2.0 * z - 1.0
        return _recur(x, 0.0 * x, _legendre_coefficients(self.size))


@final
@dataclass(frozen=True)
class Chebyshev(AbstractBasis):
    """Shifted Chebyshev polynomials, bounded by 1, not orthogonal under `dz`.

        phi_k(z) = T_k(x) ,   x = 2 z - 1 ,   T_{k+1} = 2 x T_k - T_{k-1}

    Equivalent to `numpy.polynomial.chebyshev.chebvander(2 z - 1, size - 1)`.
    """

    def _terms(self, z: Number) -> list[Number]:
        x = 2.0 * z - 1.0
        return _recur(x, x, [(1.0, 2.0, 1.0)] * (self.size - 1))


@final
@dataclass(frozen=True)
class Cosine(AbstractBasis):
    """Cosines, orthonormal on [0, 1]: `phi_0 = 1`, `phi_k(z) = sqrt(2) cos(pi k z)`.

    On the midpoints of n cells, `phi_k/sqrt(n)` is the orthonormal DCT-II of `scipy.fft.dct`. Every function
    has zero slope at both ends.
    """

    def _terms(self, z: Number) -> list[Number]:
        return [0.0 * z + 1.0] + [math.sqrt(2.0) * _wave("cos", math.pi * k * z) for k in range(1, self.size)]


# All parts of a flow ask at the same depths, and an update on a fixed grid at those of the one before. No inference
# tensors: what is kept serves training too, whoever asks first.
@functools.lru_cache(maxsize=4096)
@torch.inference_mode(False)
def _values(basis: AbstractBasis, z: float, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    return torch.tensor(basis._terms(z), dtype=dtype, device=device)


def cell_of(z: Any, breaks: Sequence[float]) -> int:
    """How many of the increasing breaks are at most z: `bisect.bisect_right`, which no compiler of torch sees into."""
    return sum([b <= z for b in breaks]) if torch.compiler.is_compiling() else bisect.bisect_right(breaks, z)


def _wave(name: Literal["cos", "sin"], angle: Number) -> Number:
    return getattr(torch if isinstance(angle, Tensor) else math, name)(angle)


def _recur(x: Number, before: Number, coefficients: Sequence[tuple[float, float, float]]) -> list[Number]:
    """1 and s_k p_k, where p_k = r_k x p_{k-1} - f_k p_{k-2} from p_0 = 1 and what stands `before` it."""
    previous, current = before, 0.0 * x + 1.0
    terms = [current]
    for scale, rise, fall in coefficients:
        previous, current = current, rise * x * current - fall * previous
        terms.append(scale * current)
    return terms


def _legendre_coefficients(size: int) -> tuple[tuple[float, float, float], ...]:
    """`(sqrt(2 k + 3), (2 k + 1)/(k + 1), k/(k + 1))` for k = 0, ..., size - 2."""
    return tuple((math.sqrt(2 * k + 3), (2 * k + 1) / (k + 1), k / (k + 1)) for k in range(size - 1))


@final
@dataclass(frozen=True)
class ScaledBasis(AbstractBasis):
    """phi_k(z) = s ratio^k psi_k(z), psi_k the functions of `inner`, ordered from smooth to rough.

    The same functions, other coefficients. An `Expansion` draws coefficients of one size, and an optimiser such as Adam
    moves them by one size: with a ratio below 1 the parameters start nearly constant in depth, and turn rough only
    where many updates agree. Weight decay then is a penalty s^-2 sum_k ratio^(-2k) |c_k|^2 on the coefficients c_k in
    psi_k, a smoothness norm. Without it every mode varies as fast as the slowest one, and a few depth steps cannot
    resolve the flow (docs/logbook.md, "Training on MNIST-1D"). With s = 1/sqrt(sum_k ratio^2k) and an orthonormal
    `inner`, moves of one size in all coefficients move a parameter by that size, in the mean over depth, as they move
    one of a layer: a learning rate means the same for both.
    """

    size: int = dataclasses.field(init=False)
    inner: AbstractBasis
    ratio: float
    _weights: tuple[float, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.inner, BSpline):
            cure = "Pass Legendre(size), Chebyshev(size), Cosine(size) or Fourier(size)."
            reject("inner", self.inner, "its functions are not ordered from smooth to rough", cure)
        fraction(none=False, ratio=self.ratio)
        object.__setattr__(self, "size", self.inner.size)
        weights = [self.ratio**k for k in range(self.size)]
        size = math.hypot(*weights)
        object.__setattr__(self, "_weights", tuple(weight / size for weight in weights))

    def _terms(self, z: Number) -> list[Number]:
        terms: list[Any] = self.inner._terms(z)
        return [weight * term for weight, term in zip(self._weights, terms, strict=True)]


@final
@dataclass(frozen=True)
class PlateauBasis(AbstractBasis):
    """phi_k(z) = psi_k(s(s(s(z)))), s(z) = z + sin(2 pi n z)/(2 pi n), psi_k the functions of `inner`, n = `steps`.

    As smooth as psi_k, and equal to them at the middles and ends of n equal steps of depth. At the middles 26
    derivatives are zero: parameters change between steps, where s(s(s(z))) is up to eight times as fast as z, and
    hardly within them. So n steps that read parameters at their middles stand for the flow better, and are the same
    network with and without.
    """

    size: int = dataclasses.field(init=False)
    inner: AbstractBasis
    steps: int

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        if self.inner.breaks:
            reject("inner", self.inner, "its functions jump", "Pass smooth ones, such as Cosine(size).")
        object.__setattr__(self, "size", self.inner.size)

    def _terms(self, z: Number) -> list[Number]:
        rate = 2.0 * math.pi * self.steps
        for _ in range(3):  # with two, 32 steps of a text model differed from 16 by more than 16 from 8
            z = z + _wave("sin", rate * z) / rate
        return self.inner._terms(z)


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
    knots: tuple[float, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at_least(0, degree=self.degree)
        if self.size < self.degree + 1:
            cure = f"Pass size >= {self.degree + 1}, or a lower degree."
            reject("size", self.size, f"splines of degree {self.degree} need {self.degree + 1} functions", cure)
        object.__setattr__(self, "knots", _knots(self.size, self.degree))
        if self.degree <= 1:
            object.__setattr__(self, "breaks", self.knots[self.degree + 1 : self.size])

    def _terms(self, z: Number) -> list[Number]:
        if isinstance(z, Tensor):
            return _everywhere(z, self.knots, self.size, self.degree)
        return _where_not_zero(z, self.knots, self.size, self.degree)


@final
@dataclass(frozen=True)
class Fourier(AbstractBasis):
    """1, sqrt(2) cos(2 pi z), sqrt(2) sin(2 pi z), sqrt(2) cos(4 pi z), ...: orthonormal and periodic on [0, 1].

    What it expands starts and ends with the same value; `Cosine` has no such tie.
    """

    def _terms(self, z: Number) -> list[Number]:
        angles = ((k, 2.0 * math.pi * ((k + 1) // 2) * z) for k in range(1, self.size))
        return [0.0 * z + 1.0] + [math.sqrt(2.0) * _wave("cos" if k % 2 else "sin", angle) for k, angle in angles]


def _knots(size: int, degree: int) -> tuple[float, ...]:
    """degree + 1 knots at each end, equal cells between."""
    cells = size - degree
    return (0.0,) * degree + tuple([i / cells for i in range(cells + 1)]) + (1.0,) * degree


def _where_not_zero(z: float, knots: tuple[float, ...], size: int, degree: int) -> list[float]:
    """The degree + 1 functions that do not vanish at z, by the triangular scheme of de Boor."""
    z = min(max(z, 0.0), 1.0)
    cell = min(cell_of(z, knots) - 1, size - 1)
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
        terms = [_raise_degree(z, knots, terms, i, d) for i in range(size + degree - d)]
    return terms


def _raise_degree(z: Tensor, knots: tuple[float, ...], terms: list[Tensor], i: int, d: int) -> Tensor:
    up, down = knots[i + d] - knots[i], knots[i + d + 1] - knots[i + 1]
    value = torch.zeros_like(z)
    if up > 0.0:
        value = value + (z - knots[i]) / up * terms[i]
    if down > 0.0:
        value = value + (knots[i + d + 1] - z) / down * terms[i + 1]
    return value
