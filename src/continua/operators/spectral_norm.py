"""Spectral normalisation: kernels whose operator norm does not exceed a limit, at every depth."""

import dataclasses
from typing import final

import torch

from continua.core.checks import positive
from continua.core.shapes import Points, Tensor
from continua.operators.kernels import joined_modes, multipliers
from continua.operators.operator import AbstractWrapper, Binding, Spec, Theta, leaves, rebuild
from continua.spaces import AbstractParameterSpace, Cloud, FlatSpace, SpectralSpace


def spectral_norm(w: Tensor) -> Tensor:
    """The largest singular value of each matrix (..., rows, columns), to rounding.

    By an eigendecomposition of W^H W or W W^H, whichever is smaller. A power iteration is cheaper for large matrices,
    but falls short where its start is orthogonal to the leading direction, or two values are close. Differentiable:
    sigma = <u, W v> with u and v held fixed, whose derivative u v^H is that of the norm. Products are not lowered by
    autocast. Reference: `torch.linalg.matrix_norm(w, ord=2)`.
    """
    with torch.autocast(w.device.type, enabled=False):
        with torch.no_grad():
            u, v = _leading(w.detach())
        sigma = (u.mH @ w @ v)[..., 0, 0]
    return sigma.real if w.is_complex() else sigma


def _leading(m: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors u and v, as columns, with u^H M v = |M|_2; what is not finite counts as zero."""
    if m.shape[-2] < m.shape[-1]:
        v, u = _leading(m.mH)
        return u, v
    m, tiny = torch.where(m.isfinite(), m, 0.0), torch.finfo(m.dtype).tiny
    m = m / m.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)  # squares stay in range
    v = torch.linalg.eigh(m.mH @ m).eigenvectors[..., -1:]
    u = m @ v
    return u / torch.linalg.vector_norm(u, dim=-2, keepdim=True).clamp_min(tiny), v


@final
@dataclasses.dataclass(frozen=True)
class SpectrallyNormed(AbstractWrapper):
    """The inner operator with every kernel W in it replaced by W min(1, limit/|W|_2).

    |W|_2 is the norm of the kernel as an operator: of the matrix, of the coefficients in an orthonormal basis, of each
    multiplier; it is exact to rounding. Whatever the field gives, at every depth no kernel stretches a state by more
    than `limit`, which bounds the stiffness of the flow. Gradients pass through the norm, as in T. Miyato et al.,
    arXiv 1802.05957.
    """

    limit: float = 1.0

    def __post_init__(self) -> None:
        positive(limit=self.limit)

    def bind(self, binding: Binding) -> "SpectrallyNormed":
        return dataclasses.replace(self, inner=self.inner.bind(binding))

    def velocity(self, theta: Theta, cloud: Cloud, source: Cloud | None = None) -> Points:
        return self.inner.velocity(self.normalise_kernels(theta, cloud.points.shape[-1]), cloud, source)

    def normalise_kernels(self, theta: Theta, width: int) -> Theta:
        specs: dict[str, Spec] = dict(leaves(self.inner.spec(width)))
        return rebuild(theta, {name: self._scale(leaf, specs[name].home) for name, leaf in leaves(theta)})

    def _scale(self, w: Tensor, space: AbstractParameterSpace) -> Tensor:
        """One norm per kernel, or per multiplier of a convolution."""
        if isinstance(space, SpectralSpace):
            matrices = multipliers(w) if space.paired else joined_modes(w)
        elif space == FlatSpace(2):
            matrices = w
        else:
            return w
        scale = self.limit / spectral_norm(matrices).clamp_min(self.limit)
        return w * scale.reshape(*scale.shape, *(1 for _ in range(w.ndim - scale.ndim)))
