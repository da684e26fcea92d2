"""Adaptive steps, the same for the whole batch: the default control."""

import dataclasses
from collections.abc import Sequence

from continua.core.errors import SolveError, reject
from continua.core.shapes import Tensor
from continua.solve.control import AbstractControl, Course, Keep
from continua.solve.methods.method import AbstractMethod
from continua.solve.methods.runge_kutta import AbstractRungeKutta
from continua.solve.norms import Tolerance, joint, squared_errors, squared_size
from continua.solve.pace import STEEPER, Pace, first_lengths
from continua.solve.record import Stats, Step
from continua.solve.state import State


@dataclasses.dataclass(frozen=True)
class Adaptive(AbstractControl):
    """Steps as long as the tolerance permits, the same for all sequences of the batch: the default.

    A step is accepted when the root mean square over the batch of the mass-weighted errors is at most 1, in units of
    atol + rtol |x|. `all_ranks` reduces it over the default process group, so that every rank takes the same steps
    (needed under FSDP). `first` is the first step tried (found from two evaluations otherwise). `costs` puts running
    costs into the norm. Reference implementation: `scipy.integrate.solve_ivp`, with a PI controller in place of its
    proportional one.
    """

    rtol: float = 1e-4
    atol: float = 1e-4
    max_steps: int = 10_000
    first: float | None = None
    all_ranks: bool = False
    costs: bool = False

    def __post_init__(self) -> None:
        Tolerance(self.rtol, self.atol)
        check_max_steps(self.max_steps)
        if self.first is not None and not self.first > 0:
            reject("first", self.first, "the first step is positive", "Pass first > 0, or None to have it found.")

    def check(self, method: AbstractMethod) -> None:
        needs_error_estimate(method, "Adaptive")

    def marks(self, span: tuple[float, float]) -> tuple[float, ...]:
        return span

    def reverse(self, grid: Sequence[float]) -> "Adaptive":
        """Parameter gradients, the costs of a backward solve, are quadratures that never feed back: outside the norm.

        P. Kidger, R. T. Q. Chen, T. Lyons, "Hey, that's not an ODE": faster ODE adjoints via seminorms, ICML 2021.
        """
        return dataclasses.replace(self, first=None, costs=False)

    def march(self, course: Course, state: State, stats: Stats, keep: Keep) -> State:
        tolerance = Tolerance(self.rtol, self.atol)
        tolerance.check(state.points)
        pace, slope = self._start(course, state, tolerance)
        stats.grid = [pace.z]
        while not pace.arrived:
            if stats.accepted + stats.rejected >= self.max_steps:
                raise SolveError(f"max_steps = {self.max_steps} steps were tried", pace.z, f"Increase it. {STEEPER}")
            z, dz = pace.z, pace.aim()
            stepped = course.method.step(course.bound, z, dz, state, slope, judged=True)
            error = joint(squared_errors(course.bound, state, stepped, tolerance, self.costs), self.all_ranks)
            if not error <= 1.0:
                pace.refuse(dz, error)
                slope, stats.rejected = stepped.first, stats.rejected + 1
                continue
            keep(Step(z, dz), state, stepped)
            landed = pace.accept(dz, error)
            state, slope = stepped.state, None if landed else stepped.last  # beyond a jump the slope is another one
            stats.accept(pace.z, error)
        return state

    def _start(self, course: Course, state: State, tolerance: Tolerance) -> tuple[Pace, State | None]:
        order, stops = course.method.error_order or 0, course.stops()
        if self.first is not None:
            return Pace(course.span[0], self.first, stops, order), None

        def norms(x: Tensor) -> list[float]:
            return [joint(squared_size(course.bound, x, state.points, tolerance), self.all_ranks)]

        lengths, slope = first_lengths(course, state, norms, lambda h: h[0])
        reusable = isinstance(course.method, AbstractRungeKutta)  # others step along another slope
        return Pace(course.span[0], lengths[0], stops, order), slope if reusable else None


def needs_error_estimate(method: AbstractMethod, control: str) -> None:
    """Rejects a method that cannot judge its steps."""
    if method.error_order is None:
        cure = (
            f"Pass DormandPrince(), BogackiShampine() or Tsitouras() (on a manifold: Projected(..., tangent=True)), or "
            f"walk a grid: Fixed(steps) instead of {control}()."
        )
        reject("method", method, "it has no error estimate, so its steps cannot adapt", cure)


def check_max_steps(max_steps: int) -> None:
    """Rejects a limit that no solve could keep."""
    if max_steps < 1:
        reject("max_steps", max_steps, "a solve takes at least one step", "Pass max_steps >= 1.")
