"""Bases of functions on [0, 1], in which parameter fields expand: `theta(z) = sum_k c_k phi_k(z)`."""

import abc
import functools
import math
from dataclasses import dataclass
from typing import TypeVar, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Float, Tensor

Number = TypeVar("Number", float, Tensor)

_SLACK = 1e-6
"""How far outside [0, 1] a depth may lie: the rounding of a depth that was computed in float32."""


@dataclass(frozen=True)
class AbstractBasis(abc.ABC):
    """`size` functions `phi_0, ..., phi_{size-1}` on [0, 1]."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            reject("size", self.size, "a basis needs at least one function", "Give size >= 1.")

    @property
    @abc.abstractmethod
    def breaks(self) -> tuple[float, ...]:
        """The depths in (0, 1) at which the functions jump, ascending; no solver step may straddle them."""

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
        return torch.tensor(self._terms(z), dtype=dtype or torch.get_default_dtype(), device=device)

    @abc.abstractmethod
    def _terms(self, z: Number) -> list[Number]:
        """The `size` values at `z`: Python floats for a float, tensors shaped as `z` for a tensor."""


class AbstractSmoothBasis(AbstractBasis):
    """A basis of functions without jumps."""

    @final
    @property
    def breaks(self) -> tuple[float, ...]:
        return ()


@final
@dataclass(frozen=True)
class Legendre(AbstractSmoothBasis):
    """Shifted Legendre polynomials, orthonormal on [0, 1].

        phi_k(z) = sqrt(2 k + 1) P_k(x) ,   x = 2 z - 1 ,   (k + 1) P_{k+1} = (2 k + 1) x P_k - k P_{k-1}

    Equivalent to `sqrt(2 k + 1) * numpy.polynomial.legendre.legvander(2 z - 1, size - 1)`.
    """

    def _terms(self, z: Number) -> list[Number]:
        x = 2.0 * z - 1.0
        previous, current = 0.0 * x, 0.0 * x + 1.0
        terms = [current]
        for scale, rise, fall in _legendre_coefficients(self.size):
            previous, current = current, rise * x * current - fall * previous
            terms.append(scale * current)
        return terms


@final
@dataclass(frozen=True)
class Chebyshev(AbstractSmoothBasis):
    """Shifted Chebyshev polynomials, bounded by 1, not orthogonal under `dz`.

        phi_k(z) = T_k(x) ,   x = 2 z - 1 ,   T_{k+1} = 2 x T_k - T_{k-1}

    Equivalent to `numpy.polynomial.chebyshev.chebvander(2 z - 1, size - 1)`.
    """

    def _terms(self, z: Number) -> list[Number]:
        x = 2.0 * z - 1.0
        previous, current = x, 0.0 * x + 1.0
        terms = [current]
        for _ in range(self.size - 1):
            previous, current = current, 2.0 * x * current - previous
            terms.append(current)
        return terms


@final
@dataclass(frozen=True)
class Cosine(AbstractSmoothBasis):
    """Cosines, orthonormal on [0, 1]: `phi_0 = 1`, `phi_k(z) = sqrt(2) cos(pi k z)`.

    On the midpoints of n cells, `phi_k/sqrt(n)` is the orthonormal DCT-II of `scipy.fft.dct`. Every function
    has zero slope at both ends.
    """

    def _terms(self, z: Number) -> list[Number]:
        return [0.0 * z + 1.0] + [math.sqrt(2.0) * _cosine(math.pi * k * z) for k in range(1, self.size)]


def _cosine(angle: Number) -> Number:
    if isinstance(angle, Tensor):
        return torch.cos(angle)
    return math.cos(angle)


@functools.cache
def _legendre_coefficients(size: int) -> tuple[tuple[float, float, float], ...]:
    """`(sqrt(2 k + 3), (2 k + 1)/(k + 1), k/(k + 1))` for k = 0, ..., size - 2."""
    return tuple((math.sqrt(2 * k + 3), (2 * k + 1) / (k + 1), k / (k + 1)) for k in range(size - 1))
