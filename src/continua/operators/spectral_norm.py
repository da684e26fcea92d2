"""Spectral normalisation: kernels whose operator norm does not exceed a limit, at every depth."""

import dataclasses
import math
from typing import Any, final

import torch

from continua.core.errors import reject
from continua.core.shapes import Points, Tensor
from continua.operators.operator import AbstractOperator, Context
from continua.operators.parameters import Spec, Theta, leaves, rebuilt
from continua.spaces.cloud import Cloud
from continua.spaces.parameter_spaces import AbstractParameterSpace, FlatSpace, SpectralSpace


def spectral_norm(w: Tensor, iterations: int = 32) -> Tensor:
    """The largest singular value of each matrix (..., rows, columns), from below, by power iteration on W^T W.

    Differentiable: sigma = <u, W v> with u and v held fixed, whose derivative u v^T is that of the norm. Starts from
    the longest row, so it is the same each time. Reference: `torch.linalg.matrix_norm(w, ord=2)`.
    """
    with torch.no_grad():
        m = w.detach()
        longest = torch.linalg.vector_norm(m, dim=-1).argmax(-1)[..., None, None]
        v = _unit(m.take_along_dim(longest, -2).mT.conj())
        for _ in range(iterations):
            v = _unit(m.mH @ (m @ v))
        u = _unit(m @ v)
    return (u.mH @ w @ v)[..., 0, 0].real if w.is_complex() else (u.mT @ w @ v)[..., 0, 0]


@final
@dataclasses.dataclass(frozen=True)
class SpectrallyNormed(AbstractOperator):
    """The inner operator with every kernel W in it replaced by W min(1, limit/|W|_2).

    |W|_2 is the norm of the kernel as an operator: of the matrix, of the coefficients in an orthonormal basis, of each
    multiplier. Whatever the field gives, at every depth no kernel stretches a state by more than `limit`, which bounds
    the stiffness of the flow. Gradients pass through the norm, as in T. Miyato et al., arXiv 1802.05957.
    """

    inner: AbstractOperator
    limit: float = 1.0
    iterations: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            reject("limit", self.limit, "a norm is bounded by a positive number", "Pass 0 < limit < infinity.")
        if self.iterations < 1:
            reject("iterations", self.iterations, "the power iteration needs a step", "Pass iterations >= 1.")

    def spec(self, width: int) -> Theta:
        return self.inner.spec(width)

    def bind(self, context: Context) -> "SpectrallyNormed":
        return dataclasses.replace(self, inner=self.inner.bind(context))

    def memory(self, theta: Theta, cloud: Cloud) -> Any:
        return self.inner.memory(self.normed(theta, cloud.points.shape[-1]), cloud)

    def attend(self, theta: Theta, queries: Cloud, memory: Any) -> Points:
        return self.inner.attend(self.normed(theta, queries.points.shape[-1]), queries, memory)

    def normed(self, theta: Theta, width: int) -> Theta:
        """Theta with its kernels scaled down to the limit."""
        specs: dict[str, Spec] = dict(leaves(self.inner.spec(width)))
        return rebuilt(theta, {name: self._scaled(leaf, specs[name].home) for name, leaf in leaves(theta)})

    def _scaled(self, w: Tensor, space: AbstractParameterSpace) -> Tensor:
        if not (isinstance(space, SpectralSpace) or space == FlatSpace(2)):
            return w
        matrices = operator_matrices(w, space)
        sigma = spectral_norm(matrices, self.iterations)
        scale = self.limit / sigma.clamp_min(self.limit)
        return w * scale.reshape(*scale.shape, *(1 for _ in range(w.ndim - scale.ndim)))


def operator_matrices(w: Tensor, space: AbstractParameterSpace) -> Tensor:
    """The matrices whose largest singular values are the norms of a kernel: one a kernel, or one a multiplier."""
    if not isinstance(space, SpectralSpace):
        return w
    if not space.paired:
        return w.transpose(-3, -2).flatten(-4, -3).flatten(-2)  # ((modes outputs), (modes inputs))
    real, imaginary = w.unbind(-3)
    moving = (torch.arange(w.shape[-4], device=w.device) > 0).to(w.dtype)  # R(0) is real
    return torch.complex(real, imaginary * moving[:, None, None])


def _unit(v: Tensor) -> Tensor:
    return v / torch.linalg.vector_norm(v, dim=-2, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
