"""What a field costs: numbers it stores, numbers it gives, and the arithmetic of giving them once."""

import dataclasses
from typing import final

import torch
from torch.utils.flop_counter import FlopCounterMode

from continua.fields.field import AbstractField
from continua.operators import count


@final
@dataclasses.dataclass(frozen=True)
class FieldCost:
    """The cost of a field.

    - `parameters`: trained numbers that it holds;
    - `per_depth`: numbers of theta(z) at one depth;
    - `flops`: additions and multiplications in matrix products to make theta(z) once, before an operator uses it.
    """

    parameters: int
    per_depth: int
    flops: int


def cost(field: AbstractField) -> FieldCost:
    """The cost of `field`, its arithmetic counted by `torch.utils.flop_counter` on one evaluation at depth 0."""
    with FlopCounterMode(display=False) as counter:
        field(torch.zeros(1))
    return FieldCost(sum(p.numel() for p in field.parameters()), count(field.spec), counter.get_total_flops())
