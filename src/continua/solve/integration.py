"""One solve as a function to be differentiated, who steps it, and what it leaves behind."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from continua.core.errors import reject
from continua.core.shapes import DepthValue, Float, Tensor
from continua.solve.runge_kutta import AbstractStepper, Step, StepResult
from continua.solve.vector_field import AbstractVectorField, State, select

OnStep = Callable[[StepResult], None]
"""Called after each accepted step."""


@dataclasses.dataclass
class Stats:
    """Counts and records of one solve; the backward ones are filled in when its gradient is taken."""

    evaluations: int = 0
    """Evaluations of the velocity in the forward solve. Where only one of two parts acts (at the ends of a staggered
    flow), an evaluation counts half, so that there may be fewer of them than steps."""
    backward_evaluations: int = 0
    """Evaluations in the backward pass: replays, or the backward solve."""
    accepted: int = 0
    """Steps taken, more than were asked for where the flow jumps; summed over the sequences where each has its own."""
    rejected: int = 0
    """Steps tried in vain, summed likewise."""
    grid: list[float] = dataclasses.field(default_factory=list)
    """Accepted depths, both ends included; empty where every sequence has its own."""
    errors: list[float] = dataclasses.field(default_factory=list)
    """Error estimate of each accepted step, in units of the tolerance; empty where `grid` is, and on given grids."""
    segments: int = 0
    """Segments of depth that a checkpointed solve keeps."""
    reconstruction_error: float | None = None
    """|x(0) - x_back(0)| / |x(0)| of a backward solve (mass-weighted; the plain distance where x(0) = 0)."""

    def __str__(self) -> str:
        parts = [f"{self.evaluations} evaluations", f"{self.accepted} steps accepted, {self.rejected} rejected"]
        if self.backward_evaluations:
            parts.append(f"{self.backward_evaluations} evaluations backwards")
        if self.reconstruction_error is not None:
            parts.append(f"reconstruction error {self.reconstruction_error:.1e}")
        return ", ".join(parts)


class Solution(NamedTuple):
    """Where a solve led: `x` and the running costs at the end, and `xs` at the `depths` of `save_at`."""

    x: Float[Tensor, "..."]
    stats: Stats
    costs: tuple[Tensor, ...] = ()
    depths: tuple[float, ...] = ()
    xs: Float[Tensor, "depths ..."] | None = None

    def __getitem__(self, place: Any) -> NoReturn:  # as a tuple, [-1] would be `xs`, and no last state
        why, cure = (
            "a solution is no array of states",
            "Take solution.x at the end, or solution.xs with save_at=depths.",
        )
        reject("solution[...]", place, why, cure)

    def __repr__(self) -> str:
        grid = self.stats.grid
        span = f", depth {grid[0]:g} to {grid[-1]:g}" if grid else ""
        return f"Solution(x of shape {tuple(self.x.shape)}{span}, {self.stats})"


@dataclasses.dataclass(frozen=True)
class Observer:
    """Watches both solves; it sees detached values and changes nothing.

    - `step(z, dz, state)` is called after each accepted step of the forward solve with the state at z + dz;
    - `cotangent(z, x, g)` is called during the backward pass, from the end to the start, with g = dJ/dx of autograd at
      every depth of the grid (`Backsolve`: of the backward solve's own grid). Where J depends on the saved state
      at that very depth, g includes it; saved states between two depths of the grid are interpolated, hence part of
      both. The costate of the control problem is its density in L2 (`trace_costates`).
    """

    step: Callable[[DepthValue, DepthValue, State], None] | None = None
    cotangent: Callable[[DepthValue, Tensor, Tensor], None] | None = None


class Endpoint(NamedTuple):
    """The state at the end, and x at those depths of `save_at` that lie on the way."""

    state: State
    saved: tuple[Tensor, ...]

    @property
    def flat(self) -> tuple[Tensor, ...]:
        """All its tensors: x, the costs, and the saved ones."""
        return (self.state.x, *self.state.costs, *self.saved)

    @classmethod
    def of(cls, flat: Sequence[Tensor], costs: int) -> "Endpoint":
        """The inverse of `flat` for so many costs."""
        return cls(State(flat[0], tuple(flat[1 : 1 + costs])), tuple(flat[1 + costs :]))


@dataclasses.dataclass(frozen=True)
class Integration:
    """One solve: the vector field, how it is stepped, which depths are saved and who watches.

    A gradient is handed this and knows nothing of steppers: `run` finds the grid, `replay` walks part of it again.
    """

    vector_field: AbstractVectorField
    span: tuple[float, float]
    stepper: AbstractStepper
    controller: "AbstractController"
    save_at: tuple[float, ...]
    observers: tuple[Observer, ...]
    stats: Stats

    @property
    def observes_cotangent(self) -> bool:
        """Whether anybody wants to know the cotangents."""
        return any(observer.cotangent is not None for observer in self.observers)

    @property
    def slack(self) -> float:
        """Depths that differ by less than this differ by rounding alone."""
        return 1e-12 * abs(self.span[1] - self.span[0])

    def inner_breaks(self, marks: Sequence[float] = ()) -> list[float]:
        """The breaks inside the span, in the direction of travel, on a grid that holds both ends and `marks`.

        Those that differ by rounding alone are one.
        """
        low, high = min(self.span), max(self.span)
        inner: list[float] = []
        for b in sorted(self.stepper.breaks(self.vector_field, (*self.span, *marks))):
            if (inner[-1] if inner else low) + self.slack < b < high - self.slack:
                inner.append(b)
        return inner if self.span[0] <= self.span[1] else inner[::-1]

    def stops(self) -> list[float]:
        """Depths that no step may pass, the nearest first: the breaks, then the end."""
        return [*self.inner_breaks(), self.span[1]]

    def run(self, state: State, on_step: OnStep | None = None) -> Endpoint:
        """From one end of the span to the other; `on_step` is told of every accepted step."""
        saved = [state.x for z in self.save_at if z == self.span[0]]
        watchers = [observer.step for observer in self.observers if observer.step is not None]

        def note(result: StepResult) -> None:
            saved.extend(self._dense(result))
            x, costs = result.state
            for watch in watchers:
                watch(*result.step, State(x.detach(), tuple(cost.detach() for cost in costs)))
            if on_step is not None:
                on_step(result)

        # most solves of a training save and watch nothing, and each step then costs one call less
        end = self.controller.run(self, state, note if self.save_at or watchers else on_step)
        return Endpoint(end, tuple(saved))

    def replay(self, state: State, steps: Sequence[Step]) -> tuple[Endpoint, list[tuple[DepthValue, Tensor]]]:
        """Accepted steps once more, differentiably, and (z, x) before each."""
        saved, visited = list[Tensor](), list[tuple[DepthValue, Tensor]]()
        for step in steps:
            visited.append((step.z, state.x))
            result = self.stepper.step(self.vector_field, step, state)
            saved.extend(self._dense(result))
            # per sequence some stand still: what their stage made of dz = 0 must not reach the graph
            state = select(step.dz != 0.0, result.state, state) if isinstance(step.dz, Tensor) else result.state
        return Endpoint(state, tuple(saved)), visited

    def notify(self, z: DepthValue, x: Tensor, cotangent: Tensor) -> None:
        for observer in self.observers:
            if observer.cotangent is not None:
                observer.cotangent(z, x.detach(), cotangent.detach())

    def saved_within(self, step: Step) -> list[float]:
        """The depths of `save_at` in (z, z + dz], or in [z + dz, z) where the span runs backwards."""
        if not self.save_at:
            return []
        assert isinstance(step.z, float) and isinstance(step.dz, float)
        sign = math.copysign(1.0, step.dz)
        ends = sign * step.z + self.slack, sign * (step.z + step.dz) + self.slack
        return [z for z in self.save_at if ends[0] < sign * z <= ends[1]]

    def _dense(self, result: StepResult) -> list[Tensor]:
        start, dz = result.step
        depths = self.saved_within(result.step)
        if not depths:
            return []
        assert isinstance(start, float) and isinstance(dz, float)
        fractions = [(z - start) / dz for z in depths if abs(z - start - dz) > self.slack]
        inside = self.stepper.dense(self.vector_field, result, fractions) if fractions else []
        return [*inside, *(result.state.x for _ in depths[len(fractions) :])]


class AbstractController(abc.ABC):
    """The step-size controller: chooses the steps of a solve and takes them."""

    @abc.abstractmethod
    def run(self, integration: Integration, state: State, on_step: OnStep | None = None) -> State:
        """From one end of the span to the other; `on_step` is told of every accepted step."""
