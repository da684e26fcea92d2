"""Controllers whose grid is known before the solve; the adaptive ones are in `adaptive`."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch

from continua.core.checks import at_least
from continua.core.errors import SolveError, reject
from continua.solve.integration import AbstractController, Integration, OnStep, Step
from continua.solve.runge_kutta import AbstractStepper
from continua.solve.vector_field import AbstractVectorField, State


class AbstractGridController(AbstractController):
    """A controller whose grid is known before the solve."""

    @abc.abstractmethod
    def grid(self, span: tuple[float, float], breaks: Sequence[float]) -> list[float]:
        """Depths from one end to the other, every break among them."""

    def check(self, stepper: AbstractStepper) -> None:
        """Every stepper can walk a grid."""

    def run(self, integration: Integration, state: State, on_step: OnStep | None = None) -> State:
        field, stepper, stats = integration.field, integration.stepper, integration.stats
        stats.grid = self.grid(integration.span, integration.inner_breaks())
        for z, after in itertools.pairwise(stats.grid):
            result = stepper.step(field, z, after - z, state)
            _check_finite(field, result.state, z)
            stats.accepted += 1
            if on_step is not None:
                on_step(Step(z, after - z), state, result)
            state = result.state
        return state

    def reverse(self, grid: Sequence[float]) -> "Given":
        return Given(tuple(reversed(grid)))


@dataclasses.dataclass(frozen=True)
class Fixed(AbstractGridController):
    """`steps` equal steps; where the flow jumps, each piece is divided evenly into steps no longer than that."""

    steps: int

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)

    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        return span

    def grid(self, span: tuple[float, float], breaks: Sequence[float]) -> list[float]:
        longest = abs(span[1] - span[0]) / self.steps
        grid = [span[0]]
        for a, b in itertools.pairwise([span[0], *breaks, span[1]]):
            # without the slack a piece as long as a step would be cut in two by rounding
            count = max(1, math.ceil(abs(b - a) / longest - 1e-9))
            grid += [a + (b - a) * i / count for i in range(1, count)]
            grid.append(b)
        return grid


@dataclasses.dataclass(frozen=True)
class Given(AbstractGridController):
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


def _check_finite(field: AbstractVectorField, state: State, z: float) -> None:
    """Stops a solve whose tokens or costs are no longer finite; absent tokens do not count."""
    # one sum and one transfer per step: it is finite unless an entry is not, or it overflows, which is looked into
    total = sum((x.detach().sum() for x in state.costs), state.x.detach().sum())
    if math.isfinite(total.item()):
        return
    advice = "Take more steps, damp the flow (Damping), or shrink the weights."
    broken = ~torch.isfinite(state.x.detach())
    if field.weights is not None:
        broken = broken & (field.weights > 0).unsqueeze(-1)
    if bool(broken.any()):
        place = broken.nonzero()[0].tolist()
        where = f"of sequence {place[0]}, token {place[1]}" if len(place) == 3 else f"at index {tuple(place)}"
        raise SolveError(f"the state {where} is no longer finite", z, advice)
    for index, cost in enumerate(state.costs):
        if not bool(torch.isfinite(cost.detach()).all()):
            raise SolveError(f"running cost {index} is no longer finite", z, advice)
