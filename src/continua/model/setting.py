"""One solve before it begins, and the running costs that are bound to it."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Protocol, final, runtime_checkable

import torch

from continua.core.seeds import branch_seed, generator_of
from continua.core.shapes import Points
from continua.model.flow import Flow, FlowVectorField, Rate
from continua.spaces import Axis, Cloud


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One solve before it begins: a flow, the cloud it will move, and the seed of all that is random in it.

    Running costs are bound to it. Everything that is bound here sees the same dropout masks and the same drawn
    tokens of an estimate as the solve itself.
    """

    flow: Flow
    cloud: Cloud
    encoded: Cloud | None
    seed: int
    random: bool
    axis: Axis | None = None
    """The axis along which states are functions: its v_a weigh in every norm."""
    windowed: bool = True
    """Whether the velocity of a staggered flow says when each part acts; see `Flow.bind`."""

    def bind(
        self, costs: Sequence["Cost"] = (), second_derivatives: bool = False, one_graph: bool = False
    ) -> FlowVectorField:
        """The vector field with running costs beside the tokens, always with the same randomness."""
        rates = [cost.bind(self, place) for place, cost in enumerate(costs)]
        generator = generator_of(branch_seed(self.seed, 0)) if self.random else None
        how = second_derivatives, self.random, one_graph, self.windowed
        return self.flow.bind(self.cloud, generator, self.encoded, rates, *how)

    def signs(self, place: int) -> Points:
        """Independent signs, one for each number of the state: the same at every call for one place."""
        x = self.cloud.points
        generator = generator_of(branch_seed(self.seed, 1 + place), x.device)
        return torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype) * 2.0 - 1.0


@runtime_checkable
class Cost(Protocol):
    """What a model integrates along depth: `continua.control` has the running costs of the control problem."""

    random: ClassVar[bool]
    """Whether it draws random numbers, once per solve."""

    def bind(self, setting: Setting, place: int) -> Rate:
        """Its rate in one solve; `place` tells costs of one solve apart."""
        ...
