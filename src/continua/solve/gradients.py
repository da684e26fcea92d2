"""What every gradient strategy is, the plainest one, and what those that hide the solve from autograd share."""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, final

import torch

from continua.core.checks import is_traced
from continua.core.errors import reject
from continua.core.shapes import DepthValue, Tensor
from continua.solve.functions import edges_of, reach_each_other
from continua.solve.integration import Endpoint, Integration
from continua.solve.runge_kutta import StepResult
from continua.solve.vector_field import State


class AbstractGradient(abc.ABC):
    """How a solve is differentiated. It is handed the function (`Integration`); it does not know the integrator."""

    second_derivatives: bool = False
    """Whether second derivatives may be taken; the flow is then bound on a twice-differentiable path."""
    one_graph: ClassVar[bool] = False
    """Whether one backward pass of autograd goes through the whole solve."""

    @abc.abstractmethod
    def solve(self, integration: Integration, state: State) -> Endpoint:
        """The forward solve, with its gradient attached."""


@dataclasses.dataclass(frozen=True)
class Direct(AbstractGradient):
    """The exact gradient of the discrete solve by autograd; memory grows with the number of steps.

    The fastest for short solves. With `second_derivatives=True` second derivatives work as well (attention then forms
    its matrix of weights, in O(tokens^2) memory). Reference implementation: torchdiffeq's `odeint`.
    """

    second_derivatives: bool = False
    one_graph: ClassVar[bool] = True

    def solve(self, integration: Integration, state: State) -> Endpoint:
        if not (integration.observes_cotangent and needs_gradient(state, integration.vector_field.tensors)):
            return integration.run(state)
        # a hook at every depth of the grid tells observers of the cotangent; at the start it is on an alias:
        # the caller's tensor is neither hooked for good nor counted where it is used elsewhere
        x = state.x
        start = State(x.view_as(x) if x.requires_grad else x.detach().requires_grad_(True), state.costs)
        _hook(integration, integration.span[0], start.x)

        def on_step(result: StepResult) -> None:
            if result.before.x is not start.x:
                _hook(integration, result.step.z, result.before.x)

        end = integration.run(start, on_step)
        _hook(integration, integration.span[1], end.state.x)
        return end


def _hook(integration: Integration, z: DepthValue, x: Tensor) -> None:
    """Tells observers of the cotangent of `x`, once autograd has summed it."""
    value = x.detach()  # a hook that held its own tensor would keep both alive for good
    x.register_hook(lambda a: integration.notify(z, value, a))


def needs_gradient(state: State, tensors: Sequence[Tensor]) -> bool:
    """Whether anything that the solve starts from or depends on asks for a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in (state.x, *state.costs, *tensors))


class AbstractNodeGradient(AbstractGradient):
    """A gradient that makes the solve one node of the autograd graph: (x, costs, tensors) -> (x, costs, saved x)."""

    @abc.abstractmethod
    def run_forward(self, integration: Integration, start: State) -> tuple[Endpoint, list[Tensor], Any]:
        """The solve without a graph; tensors that the backward pass needs, kept by autograd; and all else it needs."""

    @abc.abstractmethod
    def run_backward(
        self, integration: Integration, kept: Sequence[Tensor], rest: Any, cotangent: Endpoint, needed: "Parameters"
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The cotangent of x at the start, and the gradient of every needed tensor."""

    @final
    def solve(self, integration: Integration, state: State) -> Endpoint:
        if is_traced():  # who makes a graph of the whole model decides what is kept for the way back
            return integration.run(state)
        tensors = integration.vector_field.tensors  # a walk over all modules of the flow: once per solve
        if not needs_gradient(state, tensors):
            with torch.no_grad():
                return integration.run(state)
        outputs = _Node.apply(self, integration, len(state.costs), state.x, *state.costs, *tensors)
        return Endpoint.of(outputs, len(state.costs))


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rule: AbstractNodeGradient, integration: Integration, costs: int, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        start = State(inputs[0].detach(), tuple(c.detach() for c in inputs[1 : 1 + costs]))
        end, kept, ctx.rest = rule.run_forward(integration, start)
        ctx.rule, ctx.integration, ctx.costs, ctx.kept = rule, integration, costs, len(kept)
        device = start.x.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.tensors = inputs[1 + costs :]
        # saved by autograd: it notices what is changed in place, and lets go of it after the backward pass
        ctx.save_for_backward(*kept, *ctx.tensors)
        outputs: list[Tensor] = []  # every tensor its own, none an input
        for x in end.flat:
            known = any(x is other for other in (start.x, *start.costs, *outputs))
            # detached: a function that differentiates by x itself may have set requires_grad on it
            outputs.append(x.detach().clone() if known else x.detach())
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        integration: Integration = ctx.integration
        if torch.is_grad_enabled():
            name, cure = type(ctx.rule).__name__, "Use gradient=Direct(second_derivatives=True)."
            raise RuntimeError(f"{name} gives first derivatives only, and create_graph=True asks for more. {cure}")
        refuse_exchanged(ctx.tensors, integration, ctx.rule)
        kept, tensors = ctx.saved_tensors[: ctx.kept], ctx.saved_tensors[ctx.kept :]
        counted, asks = integration.vector_field.evaluations, ctx.needs_input_grad[4 + ctx.costs :]
        needed = Parameters([t for t, asked in zip(tensors, asks, strict=True) if asked])
        cotangent = Endpoint.of(grads, ctx.costs)
        with torch.autocast(*ctx.autocast):  # as in the forward pass
            a, sums = ctx.rule.run_backward(integration, kept, ctx.rest, cotangent, needed)
        integration.stats.backward_evaluations += integration.vector_field.evaluations - counted
        found = iter(sums)
        return (None, None, None, a, *cotangent.state.costs, *(next(found) if asked else None for asked in asks))


def pull_back(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor], parameters: "Parameters"
) -> tuple[Tensor | None, ...]:
    """sum_k (d output_k / d input)^T cotangent_k for every input and parameter; `None` where nothing depends on it."""
    live = [(x, g) for x, g in zip(outputs, cotangents, strict=True) if x.requires_grad]
    wanted = (*inputs, *parameters.tensors)
    if not live:
        return tuple(None for _ in wanted)
    ends, grads = [x for x, _ in live], [g for _, g in live]
    if parameters.sharded:
        return _accumulate(ends, grads, inputs, parameters)
    if not parameters.entangled:
        return torch.autograd.grad(ends, wanted, grads, allow_unused=True)
    with _stopping_at(parameters.computed) as stopped:
        # the graph outside, which autograd still has to pass, is not let go
        found = torch.autograd.grad(ends, wanted, grads, retain_graph=True, allow_unused=True)
    return tuple(stopped.get(id(x), g) for x, g in zip(wanted, found, strict=True))


class Parameters:
    """The tensors that a replay is differentiated by.

    Their derivatives are partial, each of the others held. Where one is computed from another (`entangled`: masses from
    times, w = 2 a beside a), autograd goes on from it itself, once; counting that way here would count it twice.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.computed = [t for t in tensors if not t.is_leaf]
        self.sharded = any(map(is_sharded, tensors))
        self.entangled = bool(self.computed) and reach_each_other(tensors)


def _accumulate(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Parameters
) -> tuple[Tensor | None, ...]:
    """Leaves among the parameters get their gradients added to `.grad`, by their own hooks, and `None` is returned.

    FSDP2 gathers a sharded parameter whenever its module is called, and the copies that a replay reads are not those of
    the forward pass: only the hooks that it puts on them know how to reduce and scatter their gradients. They run in a
    backward pass inside the backward pass, as those of a reentrant `torch.utils.checkpoint` do.
    """
    computed, found = parameters.computed, {}
    gathered, _ = edges_of(outputs, [*inputs, *computed])
    handles = [x.register_hook(lambda g, key=id(x): found.__setitem__(key, g)) for x in inputs]
    with _stopping_at(computed) as stopped:
        ends = [*(x for x in inputs if x.is_leaf), *gathered, *computed]
        # unlike `grad`, `backward` passes one node beyond an end that is no leaf
        torch.autograd.backward(outputs, cotangents, retain_graph=bool(computed), inputs=ends)
    for handle in handles:
        handle.remove()
    for tensor in computed:
        tensor.grad = None  # it was an end of this pass, and is none of autograd's own
    return tuple({**found, **stopped}.get(id(x)) for x in (*inputs, *parameters.tensors))


@contextlib.contextmanager
def _stopping_at(tensors: Sequence[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Notes the gradients that reach these tensors, and lets nothing but zeros pass beyond."""
    stopped: dict[int, Tensor] = {}

    def stop(key: int, gradient: Tensor) -> Tensor:
        stopped[key] = gradient
        return torch.zeros_like(gradient)

    handles = [t.register_hook(functools.partial(stop, id(t))) for t in tensors]
    try:
        yield stopped
    finally:
        for handle in handles:
            handle.remove()


def is_sharded(tensor: Tensor) -> bool:
    """Whether FSDP2 shards this parameter: a DTensor; importing its module to ask would cost half a second."""
    return hasattr(tensor, "device_mesh")


def refuse_shards(tensors: Iterable[Tensor], rule: AbstractGradient) -> None:
    """Rejects parameters that a submodule of the flow shards on its own (`fully_shard`, FSDP2).

    The gradient of a backward solve is integrated along depth before it is anybody's gradient: there is no backward
    pass whose hooks could reduce it.
    """
    for tensor in tensors:
        if is_sharded(tensor):
            why = f"a part of the flow is sharded on its own, where {type(rule).__name__} loses gradients"
            cure = "Shard nothing but the whole model, fully_shard(model), or use gradient=Checkpointed() or Direct()."
            reject("flow", f"<sharded parameter of shape {tuple(tensor.shape)}>", why, cure)


def refuse_exchanged(tensors: Sequence[Tensor], integration: Integration, rule: AbstractGradient) -> None:
    """Stops a backward pass over a field whose parameters are no longer those of the forward one."""
    now = integration.vector_field.tensors
    if any(map(is_sharded, tensors)):  # gathered and sharded by turns: what its hooks exchange is theirs to know
        return
    if len(tensors) != len(now) or any(a is not b for a, b in zip(tensors, now, strict=True)):
        name, cure = type(rule).__name__, "Use gradient=Direct()."
        why = "whose parameters are no longer those of the forward pass (functional_call?)"
        raise RuntimeError(f"{name} evaluates the flow again, {why}: their gradients would be lost. {cure}")
