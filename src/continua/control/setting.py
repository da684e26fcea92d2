"""One solve before it begins: what running costs are bound to."""

import dataclasses
from collections.abc import Sequence
from typing import final

import torch

from continua.core.seeds import branched, generator_of
from continua.core.shapes import Points
from continua.model import BoundFlow, Flow, Rate
from continua.spaces import Axis, Cloud


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A flow, the cloud it will move, and the seed of all that is random in this solve.

    Everything that is bound here sees the same dropout masks and the same nodes of estimators as the solve itself.
    """

    flow: Flow
    cloud: Cloud
    memory: Cloud | None
    seed: int
    random: bool
    axis: Axis | None = None
    """The axis along which states are functions: its v_a weigh in every norm."""

    def generator(self) -> torch.Generator:
        """The generator of the flow's own randomness, always at the same start."""
        return generator_of(branched(self.seed, 0))

    def bound(self, rates: Sequence[Rate] = (), second_order: bool = False) -> BoundFlow:
        """The flow, bound as for the solve."""
        return self.flow.bind(self.cloud, self.generator(), self.memory, rates, second_order, self.random)

    def signs(self, place: int) -> Points:
        """Independent signs, one for each number of the state: the same at every call for one place."""
        x = self.cloud.points
        generator = generator_of(branched(self.seed, 1 + place), x.device)
        return torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype) * 2.0 - 1.0
