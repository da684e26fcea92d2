"""Controls decide the steps: grids known beforehand. Adaptive ones are in `adaptive` and `per_sequence`."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from continua.core.errors import SolveError, reject
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.record import Stats, Step
from continua.solve.state import AbstractBound, State

Keep = Callable[[Step, State, Stepped], None]
"""Called after each accepted step with the state before it and the step."""


class Course(NamedTuple):
    """A solve to be stepped: which flow, by which method, from where to where, never across which depths."""

    bound: AbstractBound
    method: AbstractMethod
    span: tuple[float, float]
    breaks: tuple[float, ...]

    def inner_breaks(self) -> list[float]:
        """The breaks inside the span, in the direction of travel; those that differ by rounding alone are one."""
        low, high = min(self.span), max(self.span)
        slack = 1e-12 * (high - low)
        inner: list[float] = []
        for b in sorted(self.breaks):
            if (inner[-1] if inner else low) + slack < b < high - slack:
                inner.append(b)
        return inner if self.span[0] <= self.span[1] else inner[::-1]

    def stops(self) -> list[float]:
        """Depths that no step may pass, the nearest first: the breaks, then the end."""
        return [*self.inner_breaks(), self.span[1]]


class AbstractControl(abc.ABC):
    """Chooses the steps of a solve and takes them."""

    @abc.abstractmethod
    def check(self, method: AbstractMethod) -> None:
        """Rejects a method that cannot be controlled in this way."""

    @abc.abstractmethod
    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        """Depths that the grid is certain to hold, both ends among them, before any break is added."""

    @abc.abstractmethod
    def march(self, course: Course, state: State, stats: Stats, keep: Keep) -> State:
        """From one end of the span to the other; `keep` is told of every accepted step."""

    @abc.abstractmethod
    def reverse(self, grid: Sequence[float]) -> "AbstractControl":
        """The control of a backward solve over the accepted grid of a forward one."""


class AbstractGridControl(AbstractControl):
    """A control whose grid is known before the solve."""

    @abc.abstractmethod
    def grid(self, span: tuple[float, float], breaks: Sequence[float]) -> list[float]:
        """Depths from one end to the other, every break among them."""

    def check(self, method: AbstractMethod) -> None:
        """Every method can walk a grid."""

    def march(self, course: Course, state: State, stats: Stats, keep: Keep) -> State:
        grid = self.grid(course.span, course.inner_breaks())
        stats.grid = list(grid)
        for z, after in itertools.pairwise(grid):
            stepped = course.method.step(course.bound, z, after - z, state)
            _check_finite(course.bound, stepped.state, z)
            stats.accepted += 1
            keep(Step(z, after - z), state, stepped)
            state = stepped.state
        return state

    def reverse(self, grid: Sequence[float]) -> "Given":
        return Given(tuple(reversed(grid)))


@dataclasses.dataclass(frozen=True)
class Fixed(AbstractGridControl):
    """`steps` equal steps; where the flow jumps, each piece is divided evenly into steps no longer than that."""

    steps: int

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            reject(
                "steps", self.steps, "steps are counted, and a solve takes at least one", "Pass a whole number >= 1."
            )

    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        return span

    def grid(self, span: tuple[float, float], breaks: Sequence[float]) -> list[float]:
        longest = abs(span[1] - span[0]) / self.steps
        grid = [span[0]]
        for a, b in itertools.pairwise([span[0], *breaks, span[1]]):
            count = max(1, math.ceil(abs(b - a) / longest - 1e-9))
            grid += [a + (b - a) * i / count for i in range(1, count)]
            grid.append(b)
        return grid


@dataclasses.dataclass(frozen=True)
class Given(AbstractGridControl):
    """The depths of a given grid, such as `solution.stats.grid`; breaks that it misses are added."""

    depths: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", tuple(float(z) for z in self.depths))
        steps = [b - a for a, b in itertools.pairwise(self.depths)]
        if not steps or not (all(s > 0 for s in steps) or all(s < 0 for s in steps)):
            cure = "Pass at least two depths, strictly increasing, from 0 to the depth of the flow."
            reject("depths", self.depths, "this is no grid", cure)

    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        slack = 1e-9 * abs(span[1] - span[0])
        ends = (self.depths[0], self.depths[-1])
        if abs(ends[0] - span[0]) > slack or abs(ends[1] - span[1]) > slack:
            cure = "Begin and end the grid where the span does."
            reject("depths", ends, f"the grid does not reach from {span[0]} to {span[1]}", cure)
        return (span[0], *self.depths[1:-1], span[1])

    def grid(self, span: tuple[float, float], breaks: Sequence[float]) -> list[float]:
        depths, slack = self.marks(span), 1e-12 * abs(span[1] - span[0])
        missing = [b for b in breaks if all(abs(b - z) > slack for z in depths)]
        return sorted([*depths, *missing], reverse=span[1] < span[0])


def _check_finite(bound: AbstractBound, state: State, z: float) -> None:
    """Stops a solve whose tokens or costs are no longer finite; absent tokens do not count."""
    total = sum((x.detach().sum() for x in state.costs), state.points.detach().sum())
    if math.isfinite(total.item()):
        return
    advice = "Take more steps, damp the flow (Damping), or shrink the weights."
    broken = ~torch.isfinite(state.points.detach())
    if bound.weights is not None:
        broken = broken & (bound.weights > 0).unsqueeze(-1)
    if bool(broken.any()):
        sequence, token = broken.nonzero()[0, :2].tolist()
        raise SolveError(f"the state of sequence {sequence}, token {token} is no longer finite", z, advice)
    for index, cost in enumerate(state.costs):
        if not bool(torch.isfinite(cost.detach()).all()):
            raise SolveError(f"running cost {index} is no longer finite", z, advice)
