"""The Stiefel manifold of a parameter: real matrices with orthonormal columns, and unitary ones."""

import dataclasses
from typing import final

import torch

from continua.core.shapes import Tensor
from continua.spaces.parameter_spaces import AbstractParameterSpace


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

    @property
    def law(self) -> str:
        return "U^H U = I (U U^H = I where U is wide)"

    @property
    def axes(self) -> int:
        return 3 if self.paired else 2

    def project(self, x: Tensor) -> Tensor:
        left, _, right = torch.linalg.svd(self.matrices(x), full_matrices=False)
        return self.pack(left @ right, x)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return self.pack(tangent_part(self.matrices(x), self.matrices(v)), x)

    def defect(self, x: Tensor) -> Tensor:
        u = self.matrices(x)
        return (u.mH @ u - torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)).abs().max()

    def matrices(self, x: Tensor) -> Tensor:
        """The points as matrices (..., rows, columns) with no more columns than rows."""
        u = torch.complex(x[..., 0, :, :], x[..., 1, :, :]) if self.paired else x
        return u.mH if u.shape[-2] < u.shape[-1] else u

    def packed(self, u: Tensor, like: Tensor) -> Tensor:
        """The inverse of `matrices`, in the shape of the parameter `like`."""
        u = u.mH if like.shape[-2] < like.shape[-1] else u
        return torch.stack([u.real, u.imag], -3) if self.paired else u


def tangent_part(u: Tensor, v: Tensor) -> Tensor:
    """V - U sym(U^H V) for matrices with no more columns than rows."""
    product = u.mH @ v
    return v - 0.5 * (u @ (product + product.mH))
