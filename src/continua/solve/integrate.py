"""The integrator: one call from a vector field and a state to a solution; a solver holds its settings."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch

from continua.core.checks import is_a
from continua.core.errors import reject
from continua.solve.adaptive import Adaptive, PerSequence
from continua.solve.checkpointed import Checkpointed
from continua.solve.gradients import AbstractGradient
from continua.solve.integration import AbstractController, Integration, Observer, Solution, Stats
from continua.solve.runge_kutta import AbstractStepper, DormandPrince
from continua.solve.vector_field import AbstractVectorField, State


class AbstractSolver(abc.ABC):
    """From a vector field and a state to a solution: what a model holds."""

    @abc.abstractmethod
    def solve(
        self,
        field: AbstractVectorField,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        """The solution over the span; see `integrate`."""


@dataclasses.dataclass(frozen=True)
class Solver(AbstractSolver):
    """A stepper and a controller, by default Dormand-Prince with rtol = atol = 1e-4."""

    stepper: AbstractStepper = DormandPrince()
    controller: AbstractController = Adaptive()

    def __post_init__(self) -> None:
        is_a(AbstractStepper, "Pass an object such as DormandPrince().", stepper=self.stepper)
        cure = "Pass an object such as Adaptive(rtol=1e-4) or Fixed(steps=8)."
        is_a(AbstractController, cure, controller=self.controller)
        self.controller.check(self.stepper)

    def solve(
        self,
        field: AbstractVectorField,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        is_a(AbstractGradient, "Pass an object such as Checkpointed() or Direct().", gradient=gradient)
        gradient.check(self.stepper, self.controller)
        span, depths = check_problem(state, span, save_at, observers)
        if depths and isinstance(self.controller, PerSequence):
            cure = "Use Adaptive(), or walk a frozen grid: Given(stats.grid)."
            reject("save_at", depths, "a trajectory needs one grid for all sequences", cure)
        stats, before = Stats(), field.evaluations
        integration = Integration(field, span, self.stepper, self.controller, depths, tuple(observers), stats)
        end, saved = gradient.solve(integration, state)
        stats.evaluations = field.evaluations - before
        return Solution(end.x, stats, end.costs, depths, torch.stack(saved) if depths else None)


def integrate(
    field: AbstractVectorField,
    x0: State,
    span: tuple[float, float],
    stepper: AbstractStepper = DormandPrince(),
    controller: AbstractController = Adaptive(),
    gradient: AbstractGradient = Checkpointed(),
    save_at: Sequence[float] = (),
    observers: Sequence[Observer] = (),
) -> Solution:
    """Solves dx/dz = f(z, x) from span[0] to span[1] and returns where it leads, differentiably.

    `save_at` asks for x at further depths (dense output inside the steps; asking changes no step). Raises `SolveError`,
    with the depth and advice, when the step limit is reached, a step underflows or a state is no longer finite.
    """
    is_a(State, "Pass State(x), or field.initial() of a flow bound to a cloud.", x0=x0)
    return Solver(stepper, controller).solve(field, x0, span, gradient, save_at, observers)


def check_problem(
    state: State, span: tuple[float, float], save_at: Sequence[float], observers: Sequence[Observer]
) -> tuple[tuple[float, float], tuple[float, ...]]:
    """Span and saved depths as numbers; a state that a solve can start from, and observers that can observe it."""
    is_a((list, tuple), "Pass a list of observers, [Observer(step=...)].", observers=observers)
    for observer in observers:
        is_a(Observer, "Pass [Observer(step=..., costate=...)].", observers=observer)
    start, end = float(span[0]), float(span[1])
    if not (math.isfinite(start) and math.isfinite(end)):
        reject("span", span, "both ends must be finite", "Pass span=(0.0, depth).")
    if not start < end:
        cure = "Pass (start, end) with start < end; gradients take care of the way back."
        reject("span", span, "the span is empty or reversed", cure)
    _check_state(state.x)
    return (start, end), _check_depths(save_at, (start, end)) if save_at else ()


def _check_state(x: torch.Tensor) -> None:
    if x.ndim != 3 or x.numel() == 0:
        why = "points have three axes, none of them empty"
        reject("x0", tuple(x.shape), why, "Pass points of shape (batch, tokens, width).")
    if x.dtype not in (torch.float32, torch.float64):
        reject("x0", x.dtype, "the dtype is neither float32 nor float64", "Convert with .to(torch.float32).")
    if not bool(torch.isfinite(x.detach()).all()):
        reject("x0", x, "it holds nan or inf", "Mend the input, or give such tokens zero mass in a Cloud.")


def _check_depths(save_at: Sequence[float], span: tuple[float, float]) -> tuple[float, ...]:
    """Saved depths as numbers; those that miss an end of the span by rounding alone are that end."""
    if not isinstance(save_at, Sequence) or isinstance(save_at, str):
        reject("save_at", save_at, "depths come as a list", "Pass save_at=[0.5].")
    depths = tuple(float(z) for z in save_at)
    if not all(b > a for a, b in itertools.pairwise(depths)):
        cure = "Sort them and drop duplicates: sorted(set(save_at))."
        reject("save_at", depths, "depths to save must increase", cure)
    if not all(span[0] <= z <= span[1] for z in depths):
        reject("save_at", depths, f"a depth to save lies outside {span}", "Ask for depths within the span.")
    slack = 1e-12 * (span[1] - span[0])
    near = {z: end for z in depths for end in span if abs(z - end) <= slack}
    return tuple(near.get(z, z) for z in depths)
