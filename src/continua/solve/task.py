"""A solve as a function to be differentiated: what `integrate` hands to a gradient."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from continua.core.shapes import Depth, Points, Tensor
from continua.solve.control import AbstractControl, Course, Keep
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.record import Observer, Stats, Step
from continua.solve.state import AbstractBound, State, chosen


class Outcome(NamedTuple):
    """The state at the end, and the points at those asked depths that lie on the way."""

    state: State
    asked: tuple[Points, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """One solve: the flow, how it is stepped, which depths are asked for and who watches.

    A gradient sees three functions and knows nothing of steppers: `march` finds the grid, `replay` walks part of it
    again, `retrace` integrates another flow backwards over the same span.
    """

    bound: AbstractBound
    span: tuple[float, float]
    method: AbstractMethod
    control: AbstractControl
    at: tuple[float, ...]
    observers: tuple[Observer, ...]
    stats: Stats

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the solve depends on, its state apart."""
        return self.bound.tensors

    @property
    def watched(self) -> bool:
        """Whether anybody wants to know the costate."""
        return any(observer.costate is not None for observer in self.observers)

    def march(self, state: State, keep: Keep | None = None) -> Outcome:
        """The forward solve; `keep` is told of every accepted step."""
        counted = self.bound.evaluations
        asked: list[Points] = [state.points for z in self.at if z == self.span[0]]

        def note(step: Step, before: State, stepped: Stepped) -> None:
            asked.extend(self._dense(step, before, stepped))
            for observer in self.observers:
                if observer.step is not None:
                    observer.step(step.z, step.dz, _detached(stepped.state))
            if keep is not None:
                keep(step, before, stepped)

        end = self.control.march(self._course(self.bound, self.span), state, self.stats, note)
        self.stats.evaluations += self.bound.evaluations - counted
        return Outcome(end, tuple(asked))

    def replay(self, state: State, steps: Sequence[Step], keep: Callable[[Step, State], None]) -> Outcome:
        """Recorded steps once more, differentiably; `keep` is told of the state before each."""
        asked: list[Points] = []
        for step in steps:
            keep(step, state)
            stepped = self.method.step(self.bound, step.z, step.dz, state)
            asked.extend(self._dense(step, state, stepped))
            after = stepped.state
            if isinstance(step.dz, Tensor):  # some sequences stand still
                after = chosen(step.dz != 0.0, after, state)
            state = after
        return Outcome(state, tuple(asked))

    def retrace(
        self, bound: AbstractBound, state: State, span: tuple[float, float], control: AbstractControl, keep: Keep
    ) -> State:
        """Another flow over a part of the span, in either direction, with steps that respect the same breaks."""
        return control.march(self._course(bound, span), state, Stats(), keep)

    def watch(self, z: Depth, points: Points, costate: Points) -> None:
        """Tells every observer of the costate at one depth."""
        for observer in self.observers:
            if observer.costate is not None:
                observer.costate(z, points.detach(), costate.detach())

    def asked_within(self, step: Step) -> list[float]:
        """The asked depths in (z, z + dz]."""
        if not self.at:
            return []
        assert isinstance(step.z, float) and isinstance(step.dz, float)
        slack = self.slack
        return [z for z in self.at if step.z + slack < z <= step.z + step.dz + slack]

    @property
    def slack(self) -> float:
        """Depths that differ by less than this differ by rounding alone."""
        return 1e-12 * (self.span[1] - self.span[0])

    def _course(self, bound: AbstractBound, span: tuple[float, float]) -> Course:
        return Course(bound, self.method, span, self.method.breaks(self.bound, self.control.marks(self.span)))

    def _dense(self, step: Step, before: State, stepped: Stepped) -> list[Points]:
        asked = self.asked_within(step)
        if not asked:
            return []
        assert isinstance(step.z, float) and isinstance(step.dz, float)
        fractions = [(z - step.z) / step.dz for z in asked if z < step.z + step.dz - self.slack]
        inside = self.method.dense(self.bound, step.z, step.dz, before, stepped, fractions) if fractions else []
        return [*inside, *(stepped.state.points for _ in asked[len(fractions) :])]


def _detached(state: State) -> State:
    return State(state.points.detach(), tuple(cost.detach() for cost in state.costs))
