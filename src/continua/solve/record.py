"""What a solve leaves behind: its steps, its statistics, its trajectory."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from continua.core.shapes import Depth, Float, Points, Tensor
from continua.solve.state import State


class Step(NamedTuple):
    """One accepted step, from z to z + dz (per sequence: dz = 0 where a sequence did not move)."""

    z: Depth
    dz: Depth


@dataclasses.dataclass
class Stats:
    """Counts and records of one solve; the backward ones are filled in when its gradient is taken."""

    evaluations: int = 0
    """Evaluations of the velocity in the forward solve."""
    backward_evaluations: int = 0
    """Evaluations in the backward pass: replays, or the backward solve."""
    accepted: int = 0
    """Steps taken; summed over the sequences where each has its own."""
    rejected: int = 0
    """Steps tried in vain, summed likewise."""
    grid: list[float] = dataclasses.field(default_factory=list)
    """Accepted depths, both ends included; empty where every sequence has its own."""
    errors: list[float] = dataclasses.field(default_factory=list)
    """Error estimate of each accepted step, in units of the tolerance; empty where `grid` is, and on given grids."""
    windows: int = 0
    """Windows that a checkpointed solve keeps."""
    reconstruction_error: float | None = None
    """|x(0) - x_back(0)| / |x(0)| of a backward solve (mass-weighted; the plain distance where x(0) = 0)."""

    def accept(self, z: float, error: float) -> None:
        """Notes a step that led to z."""
        self.accepted += 1
        self.grid.append(z)
        self.errors.append(error)

    def __str__(self) -> str:
        parts = [
            f"{self.evaluations} evaluations",
            f"{self.accepted} steps accepted, {self.rejected} rejected",
        ]
        if self.backward_evaluations:
            parts.append(f"{self.backward_evaluations} evaluations backwards")
        if self.reconstruction_error is not None:
            parts.append(f"reconstruction error {self.reconstruction_error:.1e}")
        return ", ".join(parts)


class Trajectory(NamedTuple):
    """The tokens at asked depths."""

    depths: tuple[float, ...]
    points: Float[Tensor, "depths batch tokens width"]


class Solution(NamedTuple):
    """Final state, statistics, and the trajectory where depths were asked for."""

    state: State
    stats: Stats
    trajectory: Trajectory | None = None

    @property
    def points(self) -> Points:
        """The tokens at the end."""
        return self.state.points


@dataclasses.dataclass(frozen=True)
class Observer:
    """Watches both solves; it sees detached values and changes nothing.

    - `step(z, dz, state)` is called after each accepted step of the forward solve with the state at z + dz;
    - `costate(z, points, a)` is called during the backward pass, from the end to the start, with a = dJ/dpoints at
      every depth of the grid (`Backsolve`: of the backward solve's own grid). Where J depends on the trajectory at that
      very depth, a includes it; points between two depths of the grid are interpolated, hence part of both.
    """

    step: Callable[[Depth, Depth, State], None] | None = None
    costate: Callable[[Depth, Points, Points], None] | None = None
