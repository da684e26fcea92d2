"""The checkpointed adjoint: forward without a graph, backward by replaying one window of steps at a time."""

import dataclasses
import weakref
from typing import Any, NamedTuple

import torch

from continua.core.checks import share
from continua.core.errors import reject
from continua.core.shapes import Depth, Tensor
from continua.solve.functions import FunctionField, hidden_leaves, refuse_hidden
from continua.solve.gradients import (
    AbstractGradient,
    Parameters,
    node_outputs,
    precision_of,
    pull_back,
    refuse_exchanged,
    refuse_second_derivatives,
    solve_as_node,
)
from continua.solve.integration import AbstractController, Endpoint, Integration, OnStep, Step
from continua.solve.runge_kutta import AbstractStepper, StepResult
from continua.solve.vector_field import State

_MOST_ROWS = 16


class StateBuffer:
    """Copies of equally shaped tensors, in a few large pieces of memory.

    Kept as they are, among the temporaries of a solve, they would leave holes that nothing larger fits into: 64 steps
    then cost half as much again as the 64 states that they keep. Pieces double in size from one row on, so that at
    most half of what is taken stays unused.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0)
        self._filled = 0

    def put(self, x: Tensor) -> Tensor:
        """A copy of `x`, for as long as anybody holds it."""
        if self._filled == len(self._piece):
            rows = max(1, min(2 * len(self._piece), _MOST_ROWS))
            self._piece, self._filled = x.new_empty((rows, *x.shape)), 0
        self._filled += 1
        return self._piece[self._filled - 1].copy_(x)


class StepWindow(NamedTuple):
    """Consecutive accepted steps and the state where the first one starts."""

    x: Tensor
    steps: list[Step]


@dataclasses.dataclass(frozen=True)
class Checkpointed(AbstractGradient):
    """The exact gradient of the discrete solve in the memory of one window: the default.

    The forward solve keeps the accepted grid and the state at the start of each window; a window ends after `window`
    (a share of the depth) or `steps` steps, whichever comes first (`None`: as many steps as have together the stages of
    one Dormand-Prince step). The backward pass replays one window at a time on the recorded grid, with the same bound
    randomness, and differentiates it: a discrete adjoint, equal to `Direct` up to rounding. Reference implementation:
    `torch.utils.checkpoint` around each window.

    `refine` > 1 replays every step as that many shorter ones. What is differentiated is then the refined solve from
    each window's start, closer to the adjoint of the ODE and no longer the gradient of the loss that was reported.
    """

    window: float = 0.1
    steps: int | None = None
    refine: int = 1

    def __post_init__(self) -> None:
        share(none=False, window=self.window)
        if self.steps is not None and self.steps < 1:
            reject("steps", self.steps, "a window holds at least one step", "Pass steps >= 1, or None.")
        if self.refine < 1:
            reject("refine", self.refine, "a step is replayed as one or more", "Pass refine >= 1.")

    @property
    def second_order(self) -> bool:
        return False

    def check(self, stepper: AbstractStepper, controller: AbstractController) -> None:
        """Every recorded step can be replayed."""

    def solve(self, integration: Integration, state: State) -> Endpoint:
        return solve_as_node(_Replay, self, integration, state)

    def collect(self, integration: Integration, windows: list[StepWindow]) -> OnStep:
        """Files accepted steps into windows."""
        # as many evaluations per replay whatever the stepper: memory of the backward pass goes with evaluations
        limit = self.steps or max(1, round(6 / integration.stepper.stages))
        length = self.window * abs(integration.span[1] - integration.span[0])
        buffer = StateBuffer()

        def on_step(step: Step, before: State, result: StepResult) -> None:
            full = not windows or len(windows[-1].steps) >= limit
            # without the slack ten even steps of a tenth would not fill ten windows, but eleven
            if full or _length([*windows[-1].steps, step]) > length * (1.0 + 1e-9):
                windows.append(StepWindow(buffer.put(before.x), []))
            windows[-1].steps.append(step)

        return on_step


class _Replay(torch.autograd.Function):
    """(x, costs, tensors) -> (x at the end, costs at the end, x at saved depths)."""

    @staticmethod
    def forward(
        ctx: Any, rule: Checkpointed, integration: Integration, costs: int, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        windows: list[StepWindow] = []
        start = State(inputs[0].detach(), tuple(c.detach() for c in inputs[1 : 1 + costs]))
        saved, on_step = integration.record(start, rule.collect(integration, windows))
        end = integration.controller.run(integration, start, on_step)
        integration.stats.windows = len(windows)
        ctx.tensors = inputs[1 + costs :]
        ctx.rule, ctx.integration, ctx.costs = rule, integration, costs
        ctx.steps, ctx.precision = [window.steps for window in windows], precision_of(start.x)
        # saved by autograd: it notices what is changed in place, and lets go of it after the backward pass
        ctx.save_for_backward(*(window.x for window in windows), *inputs[1 + costs :])
        return node_outputs(Endpoint(end, tuple(saved)), start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(ctx.rule)
        refuse_exchanged(ctx.tensors, ctx.integration, ctx.rule)
        integration: Integration = ctx.integration
        counted, saved, ends = integration.field.evaluations, ctx.saved_tensors, 1 + ctx.costs
        windows = [StepWindow(*window) for window in zip(saved, ctx.steps, strict=False)]
        asks = ctx.needs_input_grad[3 + ends :]
        needed = [t for t, asked in zip(saved[len(windows) :], asks, strict=True) if asked]
        cotangent = Endpoint(State(grads[0], grads[1:ends]), grads[ends:])
        with ctx.precision():
            a, sums = _back(ctx.rule, integration, windows, cotangent, Parameters(needed))
        integration.stats.backward_evaluations += integration.field.evaluations - counted
        found = iter(sums)
        return (None, None, None, a, *grads[1:ends], *(next(found) if asked else None for asked in asks))


def _back(
    rule: Checkpointed, integration: Integration, windows: list[StepWindow], cotangent: Endpoint, needed: Parameters
) -> tuple[Tensor, list[Tensor | None]]:
    """The cotangent at the start of the solve and the gradient of every needed tensor, from the last window on."""
    (a, costs), saved = cotangent.state, list(cotangent.saved)
    sums: list[Tensor | None] = [None for _ in needed.tensors]
    z: Depth = integration.span[1]
    for window in reversed(windows):
        count = sum(len(integration.saved_within(step)) for step in window.steps)
        here = tuple(saved.pop() for _ in range(count))[::-1]
        a, found, suspects = _through(rule, integration, window, z, Endpoint(State(a, costs), here), needed)
        refuse_hidden(suspects)
        sums = [g if total is None else total if g is None else total + g for total, g in zip(sums, found, strict=True)]
        z = window.steps[0].z
    for g in saved:  # saved at the very start
        a = a + g
    integration.notify(integration.span[0], windows[0].x, a)
    return a, sums


def _through(
    rule: Checkpointed, integration: Integration, window: StepWindow, z: Depth, cotangent: Endpoint, needed: Parameters
) -> tuple[Tensor, tuple[Tensor | None, ...], list[weakref.ref[Tensor]]]:
    """The cotangent at the start of a window that ends at z, what the window gives to every needed tensor, and leaves
    of its graph that are none of them."""
    visited: list[tuple[Depth, Tensor]] = []
    with torch.enable_grad():
        start = window.x.detach().requires_grad_(True)
        # running costs never feed back into the velocity: their cotangent is the same at every depth, and they may
        # start from zero in every window
        zeros = tuple(torch.zeros_like(c) for c in cotangent.state.costs)
        steps = _refine(rule, window.steps)
        end = integration.replay(State(start, zeros), steps, lambda step, state: visited.append((step.z, state.x)))
    visited.append((z, end.state.x))
    # a costate is the cotangent of an inner state: asked for only where somebody watches, since it keeps buffers alive
    inputs = [x for _, x in visited] if integration.observes_costate else [start]
    # a function may read another parameter at another depth; a flow knows its own, but not what a running cost reads
    doubtful = not needed.sharded and (isinstance(integration.field, FunctionField) or bool(zeros))
    suspects = hidden_leaves(_flat(end), [start, *needed.tensors]) if doubtful else []
    found = pull_back(_flat(end), _flat(cotangent), inputs, needed)
    costates = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=False)]
    for (depth, x), a in reversed(list(zip(visited[1:], costates[1:], strict=False))):
        integration.notify(depth, x, a)
    return costates[0], found[len(inputs) :], suspects


def _flat(endpoint: Endpoint) -> tuple[Tensor, ...]:
    return (endpoint.state.x, *endpoint.state.costs, *endpoint.saved)


def _refine(rule: Checkpointed, steps: list[Step]) -> list[Step]:
    if rule.refine == 1:
        return steps
    shorter = []
    for step in steps:
        dz = step.dz / rule.refine
        shorter += [Step(step.z + i * dz, dz) for i in range(rule.refine)]
    return shorter


def _length(steps: list[Step]) -> float:
    """How far the steps reach; where every sequence has its own steps, the farthest counts."""
    return sum(float(step.dz.abs().max()) if isinstance(step.dz, Tensor) else abs(step.dz) for step in steps)
