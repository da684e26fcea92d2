"""Parameters in shards: every rank holds a part of each tensor of a flow, and the ranks gather those of one depth.

Weights are functions of depth, theta(z) = sum_k b_k(z) C_k, and a sum over modes leaves all other axes apart: each rank
computes its part of theta(z) from its part of the coefficients C_k, and only theta(z) is gathered, for one part of the
flow at a time, and freed behind it. Torch's `fully_shard` around a part would gather all modes, K times as much.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from continua.core.shapes import Tensor
from continua.fields import AbstractField, Constant, ContinuousHeads, Expansion, PiecewiseConstant
from continua.model import ContinuousTransformer
from continua.operators import Role, Theta, leaves


def shard_model(model: ContinuousTransformer, mesh: DeviceMesh) -> ContinuousTransformer:
    """Shards the matrices of a flow by depth, and all other parameters as torch's FSDP2 does; parameters are new."""
    apart = {parameter for field in model.flow.fields for parameter in ShardedField(field, mesh).parameters}
    fully_shard(model, mesh=mesh, ignored_params=cast("set[nn.Parameter]", apart))
    return model


class _Held(NamedTuple):
    """A parameter that is sharded: where it stands, which leaf of theta it gives, and along which of its axes."""

    owner: nn.ParameterDict
    key: str
    parameter: nn.Parameter
    leaf: int
    axis: int
    """Counted from the last, as modes and batches stand in front."""


@final
class ShardedField:
    """The hooks of a field whose matrices are sharded: before a call it sees its own shards, after it theta is whole.

    Gradients are averaged over ranks on their way back, as those of FSDP2 are.
    """

    def __init__(self, field: AbstractField, mesh: DeviceMesh) -> None:
        self.mesh, self.held = mesh, list[_Held]()
        for owner in _owners(field):
            for leaf, (key, spec) in enumerate(field.structure.keyed):
                axis = _axis(spec.shape if spec.role is Role.PLAIN else spec.shape[1:], mesh.size())
                turned = isinstance(field, Expansion | ContinuousHeads) and key in field.frames
                if axis is not None and spec.role is not Role.HEAD_MASS and not turned:
                    self.held.append(self._shard(owner, key, leaf, axis))
        self._gathered = sorted({(held.leaf, held.axis) for held in self.held})
        if self.held:
            field.register_forward_pre_hook(self._take_shards)
            field.register_forward_hook(self._gather)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are sharded here."""
        return [held.parameter for held in self.held]

    def _shard(self, owner: nn.ParameterDict, key: str, leaf: int, axis: int) -> _Held:
        whole = owner[key]
        shard = distribute_tensor(whole.detach(), self.mesh, [Shard(whole.ndim + axis)], src_data_rank=None)
        owner[key] = nn.Parameter(shard)
        return _Held(owner, key, owner[key], leaf, axis)

    def _take_shards(self, field: nn.Module, arguments: Any) -> None:
        for held in self.held:
            held.owner._parameters[held.key] = cast(DTensor, held.parameter).to_local()  # pyright: ignore[reportArgumentType]

    def _gather(self, field: AbstractField, arguments: Any, theta: Theta) -> Theta:
        for held in self.held:
            held.owner._parameters[held.key] = held.parameter
        values, group = [leaf for _, leaf in leaves(theta)], self.mesh.get_group()
        for leaf, axis in self._gathered:  # one after the other, and seen from the sharded axis: nothing is held twice
            own = values[leaf].movedim(axis, 0).contiguous()
            values[leaf] = _Gather.apply(own, group).movedim(0, values[leaf].ndim + axis)
        return field.structure.unflatten(values)


class _Gather(torch.autograd.Function):
    """(n, ...) of each rank -> (ranks n, ...); backwards the mean over ranks of what all say of the own rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        whole = own.new_empty(dist.get_world_size(group) * own.shape[0], *own.shape[1:])
        dist.all_gather_into_tensor(whole, own, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ranks = dist.get_world_size(ctx.group)
        own = grads[0].new_empty(grads[0].shape[0] // ranks, *grads[0].shape[1:])
        dist.reduce_scatter_tensor(own, grads[0].contiguous(), group=ctx.group)
        return own.div_(ranks), None


def _owners(field: AbstractField) -> list[nn.ParameterDict]:
    """Where a field holds values for its leaves: one of them gives theta(z), leaf by leaf and entry by entry."""
    if isinstance(field, Expansion | ContinuousHeads):
        return [field.coefficients]
    if isinstance(field, Constant):
        return [field.values]
    return list(field.pieces) if isinstance(field, PiecewiseConstant) else []


def _axis(shape: tuple[int, ...], ranks: int) -> int | None:
    """The longest axis of a matrix that ranks share evenly, counted from the last."""
    even = [axis for axis, size in enumerate(shape) if size % ranks == 0 and size > 0]
    if len(shape) < 2 or not even:
        return None
    return max(even, key=lambda axis: shape[axis]) - len(shape)


def gather_whole(value: Any, keep: bool) -> Any:
    """Nested tables with whole tensors for sharded ones, or with nothing for them; every rank takes part."""
    if isinstance(value, Mapping):
        return {key: gather_whole(held, keep) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(gather_whole(held, keep) for held in value)
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return whole if keep else None


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """The own shard of a whole tensor, where a parameter of its shape is sharded."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    whole = value.to(parameter.device, parameter.dtype)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
