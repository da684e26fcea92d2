"""A solver is a way to take a bound flow across its depth: what a model holds."""

import abc
import dataclasses
from collections.abc import Sequence

from continua.solve.adaptive import Adaptive
from continua.solve.control import AbstractControl
from continua.solve.gradients.gradient import AbstractGradient
from continua.solve.integrate import integrate
from continua.solve.methods.dormand_prince import DormandPrince
from continua.solve.methods.method import AbstractMethod
from continua.solve.record import Observer, Solution
from continua.solve.state import AbstractBound, State


class AbstractSolver(abc.ABC):
    """From a bound flow and a state to a solution."""

    @abc.abstractmethod
    def solve(
        self,
        bound: AbstractBound,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        """The solution over the span; see `integrate`."""


@dataclasses.dataclass(frozen=True)
class Solver(AbstractSolver):
    """A stepper and a control, by default Dormand-Prince with rtol = atol = 1e-4."""

    method: AbstractMethod = DormandPrince()
    control: AbstractControl = Adaptive()

    def solve(
        self,
        bound: AbstractBound,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        return integrate(bound, state, span, self.method, self.control, gradient, at, observers)
