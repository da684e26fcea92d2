"""Where parameters live: what an optimiser must know of each, told by `module.parameter_spaces()`.

A space speaks of the last `axes` axes of a parameter; what stands before them counts independent points of it.
"""

import abc
import dataclasses
import math
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor


class AbstractParameterSpace(abc.ABC):
    """A set of tensors that a parameter is kept in."""

    law: str
    """The equations of the space, in words."""

    @property
    @abc.abstractmethod
    def axes(self) -> int:
        """How many of the last axes make one point."""

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """The point of the space nearest to x."""

    @abc.abstractmethod
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The orthogonal projection of v on the tangent space at x."""

    @abc.abstractmethod
    def defect(self, x: Tensor) -> Tensor:
        """The largest violation of `law`: a tensor of one number."""

    @final
    def check(self, name: str, x: Tensor) -> None:
        """Refuses a value that is not in the space up to rounding: that of float32 at least, where it may come from."""
        defect = float(self.defect(x.detach()))
        if not defect <= _slack(x):
            cure = f"Take the nearest point of the space: x.data.copy_({self}.project(x.data))."
            reject(name, x.detach(), f"{self.law} is violated by {defect:.1e}", cure)


class AbstractFlatSpace(AbstractParameterSpace):
    """A space without constraint: every tensor is in it."""

    law = "every tensor"

    @final
    def project(self, x: Tensor) -> Tensor:
        return x

    @final
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    @final
    def defect(self, x: Tensor) -> Tensor:
        return x.new_zeros((), dtype=torch.float64)


@final
@dataclasses.dataclass(frozen=True)
class FlatSpace(AbstractFlatSpace):
    """Euclidean space: matrices (two axes), vectors (one) or numbers (none)."""

    axes: int = 2  # pyright: ignore[reportIncompatibleMethodOverride,reportAssignmentType]

    def __post_init__(self) -> None:
        if not 0 <= self.axes <= 2:
            reject("axes", self.axes, "a block is a number, a vector or a matrix", "Pass 0, 1 or 2.")


@final
@dataclasses.dataclass(frozen=True)
class SpectralSpace(AbstractFlatSpace):
    """The parameters of a spectral kernel: (modes, modes, out, in), or multipliers (modes + 1, 2, out, in) if `paired`.

    Euclidean, but each axis has a scale of its own: a place for preconditioners with one factor an axis.
    """

    paired: bool = False
    axes = 4  # pyright: ignore[reportIncompatibleMethodOverride,reportAssignmentType]


@final
@dataclasses.dataclass(frozen=True)
class GeneratedSpace(AbstractFlatSpace):
    """A parameter of a network that generates parameters."""

    axes: int = 2  # pyright: ignore[reportIncompatibleMethodOverride,reportAssignmentType]


@final
@dataclasses.dataclass(frozen=True)
class SimplexSpace(AbstractFlatSpace):
    """Logits l of a point of the simplex, p = softmax(l) along `axis`, counted from the end.

    Masses of heads, or coefficients of their density. Every tensor is in the space, so that no optimiser can leave it;
    the geometry is that of p (`continua.optim.MirrorAdam`).
    """

    axis: int = -1

    def __post_init__(self) -> None:
        if self.axis >= 0:
            reject("axis", self.axis, "axes of a point are counted from the end", "Pass -1 for the last axis.")

    @property
    def axes(self) -> int:
        return -self.axis

    def masses(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, self.axis)

    def logits(self, p: Tensor) -> Tensor:
        """log p, centred; a mass of zero gets the logit of the smallest number, and stays positive from then on."""
        logits = p.detach().clamp_min(torch.finfo(p.dtype).tiny).log()
        return logits - logits.mean(self.axis, keepdim=True)

    def check_masses(self, name: str, p: Tensor) -> None:
        """Refuses a p that is not on the simplex up to rounding: that of float32 at least, where it may come from."""
        defect = float(torch.maximum((p.detach().sum(self.axis) - 1.0).abs().max(), (-p.detach()).max()))
        if not defect <= _slack(p):
            cure = f"Divide masses >= 0 by their sum along axis {self.axis}."
            reject(name, p.detach(), f"p >= 0 and sum p = 1 along axis {self.axis} is violated by {defect:.1e}", cure)


@final
@dataclasses.dataclass(frozen=True)
class StiefelSpace(AbstractParameterSpace):
    """U^H U = I, or U U^H = I where U is wide; real or, by dtype or as a pair of real and imaginary part, complex.

    With `paired` the axis before the matrix holds real and imaginary part, as the multipliers of a convolution do.

        project(X) = X (X^H X)^{-1/2} ,   P_U V = V - U (U^H V + V^H U)/2

    The metric is that of Re tr(V^H W). Reference implementation, real case: `torch.linalg.svd` and A. Edelman,
    T. Arias, S. Smith, The geometry of algorithms with orthogonality constraints (1998).
    """

    paired: bool = False
    law = "U^H U = I (U U^H = I where U is wide)"

    @property
    def axes(self) -> int:
        return 3 if self.paired else 2

    def project(self, x: Tensor) -> Tensor:
        left, _, right = torch.linalg.svd(self.matrices(x), full_matrices=False)
        return self.pack(left @ right, x)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        u, w = self.matrices(x), self.matrices(v)
        product = u.mH @ w
        return self.pack(w - 0.5 * (u @ (product + product.mH)), x)

    def defect(self, x: Tensor) -> Tensor:
        u = self.matrices(x)
        return (u.mH @ u - torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)).abs().max()

    def matrices(self, x: Tensor) -> Tensor:
        """The points as matrices (..., rows, columns) with no more columns than rows."""
        u = torch.complex(x[..., 0, :, :], x[..., 1, :, :]) if self.paired else x
        return u.mH if u.shape[-2] < u.shape[-1] else u

    def pack(self, u: Tensor, like: Tensor) -> Tensor:
        """The inverse of `matrices`, in the shape of the parameter `like`."""
        u = u.mH if like.shape[-2] < like.shape[-1] else u
        return torch.stack([u.real, u.imag], -3) if self.paired else u


def _slack(x: Tensor) -> float:
    return math.sqrt(max(torch.finfo(dtype).eps for dtype in (x.dtype, torch.float32)))
