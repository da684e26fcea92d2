"""The checkpointed adjoint: forward without a graph, backward by replaying one window of steps at a time."""

import dataclasses
from typing import Any, NamedTuple

import torch

from continua.core.errors import reject
from continua.core.shapes import Depth, Points, Tensor
from continua.solve.control import AbstractControl, Keep
from continua.solve.gradients.gradient import (
    AbstractGradient,
    apply,
    asks_gradient,
    precision_of,
    pulled_back,
    refuse_exchanged,
    refuse_second_derivatives,
    returned,
)
from continua.solve.gradients.shelf import Shelf
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.record import Step
from continua.solve.state import State
from continua.solve.task import Outcome, Task


class Window(NamedTuple):
    """Consecutive accepted steps and the points where the first one starts."""

    points: Points
    steps: list[Step]


@dataclasses.dataclass(frozen=True)
class Checkpointed(AbstractGradient):
    """The exact gradient of the discrete solve in the memory of one window: the default.

    The forward solve keeps the accepted grid and the points at the start of each window; a window ends after `window`
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
        if not 0.0 < self.window <= 1.0:
            reject("window", self.window, "a window is a share of the depth", "Pass 0 < window <= 1.")
        if self.steps is not None and self.steps < 1:
            reject("steps", self.steps, "a window holds at least one step", "Pass steps >= 1, or None.")
        if self.refine < 1:
            reject("refine", self.refine, "a step is replayed as one or more", "Pass refine >= 1.")

    @property
    def twice(self) -> bool:
        return False

    def check(self, method: AbstractMethod, control: AbstractControl) -> None:
        """Every recorded step can be replayed."""

    def solve(self, task: Task, state: State) -> Outcome:
        if asks_gradient(task, state):
            return apply(_Replayed, self, task, state)
        with torch.no_grad():
            return task.march(state)

    def collect(self, task: Task, windows: list[Window]) -> Keep:
        """Files accepted steps into windows."""
        limit = self.steps or max(1, round(6 / task.method.stages))
        length = self.window * (task.span[1] - task.span[0])
        shelf = Shelf()

        def keep(step: Step, before: State, stepped: Stepped) -> None:
            full = not windows or len(windows[-1].steps) >= limit
            if full or _length([*windows[-1].steps, step]) > length * (1.0 + 1e-9):
                windows.append(Window(shelf.put(before.points), []))
            windows[-1].steps.append(step)

        return keep


class _Replayed(torch.autograd.Function):
    """(points, costs, tensors) -> (points at the end, costs at the end, points at asked depths)."""

    @staticmethod
    def forward(ctx: Any, rule: Checkpointed, task: Task, costs: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        windows: list[Window] = []
        start = State(inputs[0].detach(), tuple(c.detach() for c in inputs[1 : 1 + costs]))
        outcome = task.march(start, rule.collect(task, windows))
        task.stats.windows = len(windows)
        ctx.held = task.tensors
        ctx.rule, ctx.task, ctx.costs = rule, task, costs
        ctx.steps, ctx.precision = [window.steps for window in windows], precision_of(start.points)
        # saved by autograd: it notices what is changed in place, and lets go of it after the backward pass
        ctx.save_for_backward(*(window.points for window in windows), *inputs[1 + costs :])
        return returned(outcome, start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(ctx.rule)
        refuse_exchanged(ctx.held, ctx.task, ctx.rule)
        task: Task = ctx.task
        counted, saved, ends = task.bound.evaluations, ctx.saved_tensors, 1 + ctx.costs
        windows = [Window(*window) for window in zip(saved, ctx.steps, strict=False)]
        asks = ctx.needs_input_grad[3 + ends :]
        needed = [t for t, asked in zip(saved[len(windows) :], asks, strict=True) if asked]
        cotangent = Outcome(State(grads[0], grads[1:ends]), grads[ends:])
        with ctx.precision():
            a, sums = _back(ctx.rule, task, windows, cotangent, needed)
        task.stats.backward_evaluations += task.bound.evaluations - counted
        found = iter(sums)
        return (None, None, None, a, *grads[1:ends], *(next(found) if asked else None for asked in asks))


def _back(
    rule: Checkpointed, task: Task, windows: list[Window], cotangent: Outcome, needed: list[Tensor]
) -> tuple[Points, list[Tensor | None]]:
    """The cotangent at the start of the solve and the gradient of every needed tensor, from the last window on."""
    (a, costs), asked = cotangent.state, list(cotangent.asked)
    sums: list[Tensor | None] = [None for _ in needed]
    z: Depth = task.span[1]
    for window in reversed(windows):
        count = sum(len(task.asked_within(step)) for step in window.steps)
        here = tuple(asked.pop() for _ in range(count))[::-1]
        a, found = _through(rule, task, window, z, Outcome(State(a, costs), here), needed)
        sums = [g if total is None else total if g is None else total + g for total, g in zip(sums, found, strict=True)]
        z = window.steps[0].z
    for g in asked:  # asked for at the very start
        a = a + g
    task.watch(task.span[0], windows[0].points, a)
    return a, sums


def _through(
    rule: Checkpointed, task: Task, window: Window, z: Depth, cotangent: Outcome, needed: list[Tensor]
) -> tuple[Points, tuple[Tensor | None, ...]]:
    """The cotangent at the start of a window that ends at z, and what the window gives to every needed tensor."""
    visited: list[tuple[Depth, Points]] = []
    with torch.enable_grad():
        start = window.points.detach().requires_grad_(True)
        zeros = tuple(torch.zeros_like(c) for c in cotangent.state.costs)
        steps = _refined(rule, window.steps)
        outcome = task.replay(State(start, zeros), steps, lambda step, x: visited.append((step.z, x.points)))
    visited.append((z, outcome.state.points))
    inputs = [points for _, points in visited] if task.watched else [start]
    found = pulled_back(_flat(outcome), _flat(cotangent), [*inputs, *needed])
    costates = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=False)]
    for (depth, points), a in reversed(list(zip(visited[1:], costates[1:], strict=False))):
        task.watch(depth, points, a)
    return costates[0], found[len(inputs) :]


def _flat(outcome: Outcome) -> tuple[Tensor, ...]:
    return (outcome.state.points, *outcome.state.costs, *outcome.asked)


def _refined(rule: Checkpointed, steps: list[Step]) -> list[Step]:
    if rule.refine == 1:
        return steps
    shorter = []
    for step in steps:
        dz = step.dz / rule.refine
        shorter += [Step(step.z + i * dz, dz) for i in range(rule.refine)]
    return shorter


def _length(steps: list[Step]) -> float:
    """How far the steps reach; where every sequence has its own steps, the farthest counts."""
    return sum(float(step.dz.max()) if isinstance(step.dz, Tensor) else step.dz for step in steps)
