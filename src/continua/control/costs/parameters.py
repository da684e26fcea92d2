"""Costs of the parameters along depth: how far the density of heads has collapsed, and how large the fields are."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, final

import torch

from continua.control.costs.cost import AbstractRunningCost
from continua.core.errors import reject
from continua.core.shapes import Depth, Float, Points, Tensor
from continua.fields import AbstractField, ContinuousHeads
from continua.model import Flow, Part, Rate, Setting
from continua.operators import Role, leaves
from continua.spaces import SimplexSpace


@final
@dataclasses.dataclass(frozen=True)
class HeadNegentropy(AbstractRunningCost):
    """r = sum_k p_k log(p_k / om_k), summed over all parts whose heads are a measure.

    Zero for the even density and growing as heads die out, so that paying for it keeps heads alive; with the opposite
    sign it would reward collapse. The weights om_k are those of the rule of `ContinuousHeads`, and 1/H for other
    fields; of a flow with one such part and om_k = 1/H, exp(-r) H is the number of effective heads. A head of mass
    zero adds nothing, and its slope is taken as zero: a mirror step cannot bring it back.
    """

    def bind(self, setting: Setting, place: int) -> Rate:
        measured = [field for field in fields_of(setting.flow) if has_head_masses(field)]
        if not measured:
            cure = "Build the flow with Attention(..., measured=True) and a field such as ContinuousHeads."
            reject("flow", [type(f).__name__ for f in fields_of(setting.flow)], "no head of this flow has a mass", cure)

        def rate(z: Depth, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            total = points.new_zeros(points.shape[0])
            for field in measured:
                for p, om in _head_masses(field, z):
                    alive = torch.where(p > 0, p, om)  # 0 log 0 = 0 = om log(om/om), and the slope is not -infinity
                    total = total + (alive * torch.log(alive / om)).sum(-1)
            return total

        return rate


@final
@dataclasses.dataclass(frozen=True)
class FieldSize(AbstractRunningCost):
    """r = |theta(z)|^2 over all parameters of all parts, the masses of heads apart.

    The L2 term of the control problem, in theta itself and so independent of the field's modes. Weight decay is the
    same wish in the optimiser; `Objective.check` refuses the two together.
    """

    decays: ClassVar[bool] = True

    def bind(self, setting: Setting, place: int) -> Rate:
        flow = setting.flow

        def rate(z: Depth, points: Points, velocity: Points) -> Float[Tensor, " batch"]:
            total = points.new_zeros(points.shape[0])
            for field in fields_of(flow):
                held = {name for name, leaf in leaves(field.spec) if leaf.role is not Role.HEAD_MASS}
                for leaf in (leaf for name, leaf in leaves(field(z)) if name in held):
                    squares = leaf.square()
                    total = total + (squares.sum() if isinstance(z, float | int) else squares.flatten(1).sum(-1))
            return total

        return rate


def fields_of(flow: Flow) -> list[AbstractField]:
    """The fields of all parts."""
    return [part.field for part in flow.parts if isinstance(part, Part)]


def has_head_masses(field: AbstractField) -> bool:
    """Whether the heads of its operator are a measure."""
    return any(leaf.role is Role.HEAD_MASS for _, leaf in leaves(field.spec))


def trains_heads(flow: Flow) -> bool:
    """Whether a measure of heads of the flow has parameters that are trained."""
    spaces, values = flow.parameter_spaces(), dict(flow.named_parameters())
    return any(isinstance(space, SimplexSpace) and values[name].requires_grad for name, space in spaces.items())


def _head_masses(field: AbstractField, z: Depth) -> Iterator[tuple[Tensor, Tensor]]:
    """(p, om) of every measure of heads in theta(z)."""
    roles = {name: leaf.role for name, leaf in leaves(field.spec)}
    for name, p in leaves(field(z)):
        if roles[name] is Role.HEAD_MASS:
            even = torch.full_like(p.detach(), 1.0 / p.shape[-1])
            yield p, field.weights(p) if isinstance(field, ContinuousHeads) else even
