"""What every gradient strategy is, and what those that hide the solve from autograd share."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from continua.core.errors import reject
from continua.core.shapes import Tensor
from continua.solve.control import AbstractControl
from continua.solve.methods.method import AbstractMethod
from continua.solve.state import State
from continua.solve.task import Outcome, Task


class AbstractGradient(abc.ABC):
    """How a solve is differentiated. It is handed the function (`Task`); it does not know the integrator."""

    @property
    @abc.abstractmethod
    def twice(self) -> bool:
        """Whether second derivatives may be taken; the flow is then bound on a twice-differentiable path."""

    @abc.abstractmethod
    def check(self, method: AbstractMethod, control: AbstractControl) -> None:
        """Rejects what it cannot differentiate."""

    @abc.abstractmethod
    def solve(self, task: Task, state: State) -> Outcome:
        """The forward solve, with its gradient attached."""


def asks_gradient(task: Task, state: State) -> bool:
    """Whether anything that the solve starts from or depends on asks for a gradient."""
    inputs = (state.points, *state.costs, *task.tensors)
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def apply(function: type[torch.autograd.Function], rule: AbstractGradient, task: Task, state: State) -> Outcome:
    """The solve as one node of the autograd graph: (points, costs, tensors) -> (points, costs, points at `at`)."""
    refuse_shards(task.tensors, rule)
    outputs = function.apply(rule, task, len(state.costs), state.points, *state.costs, *task.tensors)
    ends = 1 + len(state.costs)
    return Outcome(State(outputs[0], tuple(outputs[1:ends])), tuple(outputs[ends:]))


def returned(outcome: Outcome, start: State) -> tuple[Tensor, ...]:
    """The outputs of such a node: every tensor its own, none an input."""
    outputs: list[Tensor] = []
    for x in (outcome.state.points, *outcome.state.costs, *outcome.asked):
        known = any(x is other for other in (start.points, *start.costs, *outputs))
        outputs.append(x.clone() if known else x)
    return tuple(outputs)


def pulled_back(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """sum_k (d output_k / d input)^T cotangent_k for every input; `None` where nothing depends on it."""
    live = [(x, g) for x, g in zip(outputs, cotangents, strict=True) if x.requires_grad]
    if not live:
        return tuple(None for _ in inputs)
    return torch.autograd.grad([x for x, _ in live], inputs, [g for _, g in live], allow_unused=True)


def refuse_shards(tensors: Iterable[Tensor], rule: AbstractGradient) -> None:
    """Rejects parameters that a submodule of the flow shards on its own (`fully_shard`, FSDP2).

    It gathers them whenever the submodule is called and drops the gathered copies afterwards, so those that a backward
    pass evaluates are no longer those of the forward one, and their gradients are lost without a word.
    """
    for tensor in tensors:
        if hasattr(tensor, "device_mesh"):  # a DTensor; importing its module to ask would cost half a second
            why = f"a part of the flow is sharded on its own, where {type(rule).__name__} loses gradients"
            cure = "Shard nothing but the whole model, fully_shard(model), or use gradient=Direct()."
            reject("flow", f"<sharded parameter of shape {tuple(tensor.shape)}>", why, cure)


def refuse_second_derivatives(rule: AbstractGradient) -> None:
    """Stops a backward pass under create_graph=True."""
    if torch.is_grad_enabled():
        name, cure = type(rule).__name__, "Use gradient=Direct(second_derivatives=True)."
        raise RuntimeError(f"{name} gives first derivatives only, and create_graph=True asks for more. {cure}")


def refuse_exchanged(held: Sequence[Tensor], task: Task, rule: AbstractGradient) -> None:
    """Stops a backward pass over a flow whose parameters are no longer those of the forward one."""
    now = task.tensors
    if len(held) != len(now) or any(a is not b for a, b in zip(held, now, strict=True)):
        name, cure = type(rule).__name__, "Use gradient=Direct()."
        why = "whose parameters are no longer those of the forward pass (functional_call?)"
        raise RuntimeError(f"{name} evaluates the flow again, {why}: their gradients would be lost. {cure}")


def precision_of(points: Tensor) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The autocast in force now, for a backward pass to evaluate the flow under."""
    device = points.device.type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)
