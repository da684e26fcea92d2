"""The continuous adjoint: state, costate and parameter gradient integrated backwards in constant memory."""

import dataclasses
import math
import warnings
from typing import Any

import torch

from continua.core.errors import ReconstructionWarning, reject
from continua.core.shapes import Points, Tensor
from continua.solve.adaptive import Adaptive
from continua.solve.control import AbstractControl
from continua.solve.gradients.adjoint import Adjoint
from continua.solve.gradients.gradient import (
    AbstractGradient,
    apply,
    asks_gradient,
    precision_of,
    refuse_exchanged,
    refuse_second_derivatives,
    returned,
)
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.per_sequence import PerSequence
from continua.solve.record import Step
from continua.solve.state import State
from continua.solve.task import Outcome, Task


@dataclasses.dataclass(frozen=True)
class Backsolve(AbstractGradient):
    """dx/dz = f, da/dz = -(df/dx)^T a - c dr/dx, dg/dz = -(df/dphi)^T a - c dr/dphi, from the end to the start.

    Memory does not grow with depth. The path is retraced, not remembered: on a contracting flow the way back is
    unstable and the gradient wrong, which `stats.reconstruction_error` reports and a `ReconstructionWarning` says when
    it exceeds `trust` (`None`: 100 (rtol + atol), or 1e-3 on a given grid). The adjoint of the ODE, not of the discrete
    solve: both agree to the solver's tolerance. Reference implementation: torchdiffeq's `odeint_adjoint`.

    `clip` bounds the costate that enters the adjoint ODE: wherever |a| > clip for a sequence, clip a/|a| takes its
    place on the right-hand side, so that a grows at most linearly, |a(0)| <= |a(Z)| + clip int |df/dx| dz. What comes
    out is then no longer the gradient.
    """

    trust: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("trust", self.trust), ("clip", self.clip)):
            if value is not None and not value > 0:
                reject(name, value, "a bound is positive", f"Pass {name} > 0, or None.")

    @property
    def twice(self) -> bool:
        return False

    def check(self, method: AbstractMethod, control: AbstractControl) -> None:
        cure = "Use gradient=Checkpointed(), which replays any step."
        if not method.reversible:
            reject("method", method, "Backsolve retraces an ODE, and split or projected steps are not one's", cure)
        if isinstance(control, PerSequence):
            reject("control", control, "Backsolve retraces one grid for all sequences", cure)

    def solve(self, task: Task, state: State) -> Outcome:
        if asks_gradient(task, state):
            return apply(_Retraced, self, task, state)
        with torch.no_grad():
            return task.march(state)

    def judge(self, task: Task, start: Points, back: Points) -> None:
        """Records how far the way back missed the start, and warns where it cannot be trusted."""
        weights = task.bound.weights
        heard = torch.ones_like(start[..., 0]) if weights is None else weights
        gap, size = ((heard * x.square().sum(-1)).sum().sqrt().item() for x in (start - back, start))
        error = task.stats.reconstruction_error = gap / (size or 1.0)
        control, trust = task.control, self.trust
        if trust is None:
            trust = 100.0 * (control.rtol + control.atol) if isinstance(control, Adaptive) else 1e-3
        if not error <= trust:
            reason = f"the backward solve missed the start of the forward one by {error:.1e} (relative)"
            advice = "Use gradient=Checkpointed(), or tighten rtol and atol"
            warning = f"{reason}: this flow contracts, and the gradient is not to be trusted. {advice}."
            warnings.warn(warning, ReconstructionWarning, stacklevel=2)


class _Retraced(torch.autograd.Function):
    """(points, costs, tensors) -> (points at the end, costs at the end, points at asked depths)."""

    @staticmethod
    def forward(ctx: Any, rule: Backsolve, task: Task, costs: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        start = State(inputs[0].detach(), tuple(c.detach() for c in inputs[1 : 1 + costs]))
        outcome = task.march(start)
        ctx.held = task.tensors
        ctx.rule, ctx.task, ctx.costs, ctx.precision = rule, task, costs, precision_of(start.points)
        ctx.save_for_backward(start.points, outcome.state.points, *inputs[1 + costs :])
        return returned(outcome, start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(ctx.rule)
        refuse_exchanged(ctx.held, ctx.task, ctx.rule)
        task: Task = ctx.task
        (start, end, *tensors), counted, ends = ctx.saved_tensors, task.bound.evaluations, 1 + ctx.costs
        # the adjoint is linear in a: scaled to unit size, so that atol means the same for it as for the points
        unit = max(float(g.abs().max()) for g in grads) or 1.0
        scaled = [g / unit for g in grads]
        flow = Adjoint(task.bound, tensors, scaled[1:ends], (ctx.rule.clip or math.inf) / unit)
        with ctx.precision():
            back, a, sums = _back(task, flow, end, _joins(task, scaled[0], scaled[ends:]), unit)
        ctx.rule.judge(task, start, back)
        task.stats.backward_evaluations += task.bound.evaluations - counted
        asks = ctx.needs_input_grad[3 + ends :]
        found = (unit * g if asked else None for g, asked in zip(sums, asks, strict=True))
        return (None, None, None, unit * a, *grads[1:ends], *found)


def _joins(task: Task, end: Tensor, asked: list[Tensor]) -> dict[float, Tensor]:
    """What joins the costate on the way back: the cotangents of the end and of asked depths, the farthest first."""
    joins = {task.span[1]: end}
    for z, g in reversed(list(zip(task.at, asked, strict=True))):
        joins[z] = joins[z] + g if z in joins else g
    return joins


def _back(
    task: Task, flow: Adjoint, end: Points, joins: dict[float, Tensor], unit: float
) -> tuple[Points, Points, tuple[Tensor, ...]]:
    """Points and costate at the start and the gradient of every tensor, solved backwards from join to join."""
    state = State(torch.cat([end, torch.zeros_like(end)], -1), tuple(torch.zeros_like(t) for t in flow.inputs))
    depths = [*joins, task.span[0]]
    for z, to, g in zip(depths[:-1], depths[1:], joins.values(), strict=True):
        points, a = state.points.chunk(2, -1)
        state = State(torch.cat([points, a + g], -1), state.costs)
        if to < z:
            task.watch(z, points, unit * (a + g))
            state = _leg(task, flow, state, (z, to), unit)
    points, a = state.points.chunk(2, -1)
    task.watch(task.span[0], points, unit * a)
    return points, a, state.costs


def _leg(task: Task, flow: Adjoint, state: State, span: tuple[float, float], unit: float) -> State:
    def keep(step: Step, before: State, stepped: Stepped) -> None:
        z = step.z + step.dz
        assert isinstance(z, float)
        if z > span[1] + task.slack:  # the end of a leg is told of once all has joined there
            points, a = stepped.state.points.chunk(2, -1)
            task.watch(z, points, unit * a)

    between = [z for z in task.stats.grid if span[1] < z < span[0]]
    control = task.control.reverse([span[1], *between, span[0]])
    return task.retrace(flow, state, span, control, keep)
