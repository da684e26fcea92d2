"""Depth profiles zeta(z): a number that multiplies the whole velocity, fixed or trained with the flow."""

import abc
from typing import final

import torch
from torch import nn

from continua.core.checks import finite, positive
from continua.core.shapes import DepthValue
from continua.fields import Expansion
from continua.operators import Filled, Spec
from continua.spaces import AbstractBasis


class AbstractProfile(nn.Module, abc.ABC):
    """zeta(z), a number that multiplies the whole velocity at depth z."""

    reach: float
    """The depth Z that it was built for, which is that of its flow."""
    breaks: tuple[float, ...] = ()
    """Depths where it jumps, increasing."""

    @abc.abstractmethod
    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> DepthValue:
        """zeta(z): a number or a tensor of one element for one depth, one entry per sequence for one depth each."""


@final
class LinearProfile(AbstractProfile):
    """zeta(z) = start + (end - start) z/Z: fixed, such as a flow that comes to rest with end = 0."""

    def __init__(self, start: float, end: float, depth: float = 1.0) -> None:
        super().__init__()
        positive(depth=depth)
        finite(start=start, end=end)
        self.start, self.end, self.depth, self.reach = float(start), float(end), float(depth), float(depth)

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> DepthValue:
        return self.start + (self.end - self.start) * (z / self.depth)


@final
class BasisProfile(AbstractProfile):
    """zeta(z) = sum_k c_k b_k(z/Z), trained with the flow; one everywhere at initialisation."""

    def __init__(self, basis: AbstractBasis, depth: float = 1.0) -> None:
        super().__init__()
        positive(depth=depth)
        self.basis, self.depth, self.reach = basis, float(depth), float(depth)
        self.expansion = Expansion((Spec((1,), Filled(1.0)),), basis, depth)
        self.breaks = self.expansion.breaks

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> DepthValue:
        (zeta,) = self.expansion(z, inside)
        return torch.flatten(zeta)
