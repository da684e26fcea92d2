"""What every stepper is."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import torch

from continua.core.shapes import Depth, Points, Tensor
from continua.solve.state import AbstractBound, State


class Stepped(NamedTuple):
    """One step: where it led, and what is known about it.

    - `error`: difference to the embedded solution of lower order, where the method has one and it was asked for;
    - `slopes`: those of the stages, the first at the start of the step;
    - `last`: the slope at the end of the step, where the method knows it (first same as last).
    """

    state: State
    error: State | None = None
    slopes: tuple[State, ...] = ()
    last: State | None = None

    @property
    def first(self) -> State | None:
        """The slope at the start of the step, where the method knows it."""
        return self.slopes[0] if self.slopes else None


class AbstractMethod(abc.ABC):
    """A one-step method: (z, dz, state) -> state. Reads every field inside the step, never beyond a jump."""

    @property
    @abc.abstractmethod
    def order(self) -> int:
        """Global error is O(dz^order) on smooth flows whose jumps are on the grid."""

    @property
    @abc.abstractmethod
    def error_order(self) -> int | None:
        """Order of the embedded error estimate; `None` for a method without one (no adaptive steps)."""

    @property
    @abc.abstractmethod
    def stages(self) -> int:
        """Evaluations of the velocity in one step."""

    @property
    @abc.abstractmethod
    def reversible(self) -> bool:
        """Whether the step approximates the flow of one ODE, so that it may be integrated backwards."""

    @abc.abstractmethod
    def breaks(self, bound: AbstractBound, marks: Sequence[float]) -> tuple[float, ...]:
        """Depths that this method's steps may not straddle on a grid that holds `marks`."""

    @abc.abstractmethod
    def step(
        self, bound: AbstractBound, z: Depth, dz: Depth, state: State, first: State | None = None, judged: bool = False
    ) -> Stepped:
        """One step. `first` is the slope at the start if it is known; `judged` asks for the error estimate."""

    @abc.abstractmethod
    def dense(
        self, bound: AbstractBound, z: float, dz: float, before: State, stepped: Stepped, fractions: Sequence[float]
    ) -> list[Points]:
        """The points at z + fraction dz, inside an accepted step, for each of the fractions."""


def hermite(before: Points, after: Points, f0: Tensor, f1: Tensor, dz: float, fraction: float) -> Points:
    """The cubic through both ends of a step with the slopes f0, f1 there: error O(dz^4) within the step.

    Reference implementation: `scipy.interpolate.CubicHermiteSpline`.
    """
    s = fraction
    ends = torch.lerp(before, after, s * s * (3.0 - 2.0 * s))
    ends = torch.add(ends, f0, alpha=dz * s * (1.0 - s) ** 2)
    return torch.add(ends, f1, alpha=-dz * s * s * (1.0 - s))
