"""The curvature of a loss in the outputs: what a Gauss-Newton matrix needs to know of it."""

import abc
import dataclasses
from typing import final

import torch

from continua.core.shapes import Float, Tensor


class AbstractLikelihood(abc.ABC):
    """A loss that is the negative logarithm of a probability, with its Hessian H in the outputs."""

    @abc.abstractmethod
    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        """A random cotangent psi of the output with E psi psi^T = H."""

    @abc.abstractmethod
    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        """j^T H j."""


@final
@dataclasses.dataclass(frozen=True)
class Gaussian(AbstractLikelihood):
    """The loss of `torch.nn.functional.mse_loss`: H = 2/numel I."""

    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.randn(output.shape, generator=generator, dtype=output.dtype, device=output.device)
        return noise * (2.0 / output.numel()) ** 0.5

    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        return 2.0 * j.square().mean()


@final
@dataclasses.dataclass(frozen=True)
class Categorical(AbstractLikelihood):
    """The loss of `torch.nn.functional.cross_entropy`, classes along the last axis: H = (diag p - p p^T)/rows a row."""

    def draw(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        p = torch.softmax(output.flatten(0, -2), -1)
        drawn = torch.multinomial(p, 1, generator=generator)
        return (p.scatter_add(1, drawn, -torch.ones_like(p[:, :1])) * p.shape[0] ** -0.5).view_as(output)

    def curvature(self, output: Tensor, j: Tensor) -> Float[Tensor, ""]:
        p = torch.softmax(output, -1)
        rows = output.numel() // output.shape[-1]
        return ((p * j * j).sum() - (p * j).sum(-1).square().sum()) / rows
