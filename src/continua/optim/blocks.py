"""Blocks b(g) of Blockwise AdamW: what shares one second moment."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import final

import torch

from continua.core.shapes import Tensor
from continua.optim import foreach
from continua.spaces import AbstractParameterSpace


class AbstractBlock(abc.ABC):
    """b(g), whose square the second moment averages."""

    @property
    @abc.abstractmethod
    def whole(self) -> bool:
        """Whether b(g) mixes entries."""

    @property
    @abc.abstractmethod
    def rate(self) -> float:
        """The rate that suits updates of this size."""

    @abc.abstractmethod
    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        """b(g), with one entry for each block, so that it meets g by broadcasting."""

    @abc.abstractmethod
    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        """A second moment of zero."""

    @abc.abstractmethod
    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        """v <- b2 v + (1 - b2) b(g)^2, for all parameters at once."""


@final
@dataclasses.dataclass(frozen=True)
class Entrywise(AbstractBlock):
    """b(g) = |g| entry by entry (real and imaginary part apart): AdamW itself."""

    @property
    def whole(self) -> bool:
        return False

    @property
    def rate(self) -> float:
        return 1e-3

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        return g.abs()

    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        return torch.zeros_like(p, memory_format=torch.preserve_format)

    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        foreach.mul_(v, b2)
        foreach.addcmul_(v, g, g, 1.0 - b2)


@final
@dataclasses.dataclass(frozen=True)
class Frobenius(AbstractBlock):
    """b(g) = the Frobenius norm of each matrix, spread over it: one second moment a matrix.

    A matrix is what the space says, its last axes; what has fewer, as a vector, is one block. Updates of a matrix have
    norm O(1) in all, so each entry moves less than AdamW's by sqrt(numel): hence a larger rate.
    """

    @property
    def whole(self) -> bool:
        return True

    @property
    def rate(self) -> float:
        return 3e-2

    def size(self, g: Tensor, space: AbstractParameterSpace) -> Tensor:
        axes = tuple(range(-min(space.axes, g.ndim), 0))
        return torch.linalg.vector_norm(g, dim=axes, keepdim=True) if axes else g.abs()

    def moment(self, p: Tensor, space: AbstractParameterSpace) -> Tensor:
        return torch.zeros_like(self.size(p.detach(), space))

    def average(self, v: list[Tensor], g: Sequence[Tensor], b2: float, space: AbstractParameterSpace) -> None:
        sizes = [self.size(x, space) for x in g]
        foreach.mul_(v, b2)
        foreach.addcmul_(v, sizes, sizes, 1.0 - b2)
