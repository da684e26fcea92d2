"""Adaptive steps of their own for each sequence of a batch."""

import dataclasses
from collections.abc import Sequence

import torch

from continua.core.errors import SolveError, reject
from continua.core.shapes import Tensor
from continua.solve.adaptive import check_max_steps, needs_error_estimate
from continua.solve.control import AbstractControl, Course, Keep
from continua.solve.methods.method import AbstractMethod, Stepped
from continua.solve.norms import Tolerance, squared_errors, squared_size
from continua.solve.pace import STEEPER, Pace, first_lengths
from continua.solve.record import Stats, Step
from continua.solve.state import State, chosen


@dataclasses.dataclass(frozen=True)
class PerSequence(AbstractControl):
    """Every sequence has its own depth and step: its output does not depend on its batch mates.

    Sequences step together but not equally far; one that rejects its step or has arrived stands still (dz = 0) while
    others move. The solve takes as many rounds as its hardest sequence needs, at most `max_steps`. No slope is carried
    over from one round to the next: whether it can be would depend on the mates. Reference implementation: torchode.
    """

    rtol: float = 1e-4
    atol: float = 1e-4
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        Tolerance(self.rtol, self.atol)
        check_max_steps(self.max_steps)

    def check(self, method: AbstractMethod) -> None:
        needs_error_estimate(method, "PerSequence")

    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        return span

    def reverse(self, grid: Sequence[float]) -> AbstractControl:
        reject("control", self, "a backward solve needs one grid for all sequences", "Use Checkpointed or Direct.")

    def march(self, course: Course, state: State, stats: Stats, keep: Keep) -> State:
        Tolerance(self.rtol, self.atol).check(state.points)
        paces = self._start(course, state)
        rounds = 0
        while not all(pace.arrived for pace in paces):
            if rounds >= self.max_steps:
                depth = min(pace.z for pace in paces)
                raise SolveError(f"max_steps = {self.max_steps} rounds were tried", depth, f"Increase it. {STEEPER}")
            state = self._round(course, paces, state, stats, keep)
            rounds += 1
        return state

    def _start(self, course: Course, state: State) -> list[Pace]:
        def norms(x: Tensor) -> list[float]:
            tolerance = Tolerance(self.rtol, self.atol)
            return squared_size(course.bound, x, state.points, tolerance).sqrt().tolist()

        lengths, _ = first_lengths(course, state, norms, lambda h: _depths(h, state.points))
        order = course.method.error_order or 0
        return [Pace(course.span[0], length, course.stops(), order) for length in lengths]

    def _round(self, course: Course, paces: list[Pace], state: State, stats: Stats, keep: Keep) -> State:
        """One step tried by every sequence that has not arrived."""
        aims = [0.0 if pace.arrived else pace.aim() for pace in paces]
        z, dz = _depths([pace.z for pace in paces], state.points), _depths(aims, state.points)
        stepped = course.method.step(course.bound, z, dz, state, judged=True)
        tolerance = Tolerance(self.rtol, self.atol)
        errors = squared_errors(course.bound, state, stepped, tolerance).sqrt().tolist()
        moved = [_judged(pace, aim, error) for pace, aim, error in zip(paces, aims, errors, strict=True)]
        stats.accepted += moved.count(True)
        stats.rejected += moved.count(False)
        good = torch.tensor([m is True for m in moved], device=state.points.device)
        if not any(moved):
            return state
        dz = torch.where(good, dz, 0.0)
        if False in moved and torch.is_grad_enabled():
            # a refused step may have overflowed, and its gradient would be 0 * inf: none of it may stay in the graph
            stepped = course.method.step(course.bound, z, dz, state)
        after = chosen(good, stepped.state, state)
        keep(Step(z, dz), state, Stepped(after))
        return after


def _judged(pace: Pace, dz: float, error: float) -> bool | None:
    """Whether the step was good enough; `None` for a sequence that had arrived before."""
    if pace.arrived:
        return None
    if error <= 1.0:
        pace.accept(dz, error)
        return True
    pace.refuse(dz, error)
    return False


def _depths(values: Sequence[float], like: Tensor) -> Tensor:
    """One depth a sequence: kept in float64, handed to the flow in its own dtype and on its device."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)
