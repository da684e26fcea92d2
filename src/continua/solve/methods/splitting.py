"""Splitting: the parts of the velocity act one after the other, each by a sub-method."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

from continua.core.shapes import Depth, Points
from continua.solve.methods.euler import Euler
from continua.solve.methods.method import AbstractMethod, Stepped, hermite
from continua.solve.methods.midpoint import Midpoint
from continua.solve.state import AbstractBound, State, displaced


class AbstractSplitting(AbstractMethod):
    """Composes steps of the parts. A cost sees the mean velocity dx/dz of the whole step.

    R. I. McLachlan and G. R. W. Quispel, Splitting methods, Acta Numerica 11 (2002).
    """

    @property
    @abc.abstractmethod
    def inner(self) -> AbstractMethod:
        """The sub-method that advances one part."""

    @abc.abstractmethod
    def schedule(self, bound: AbstractBound) -> list[tuple[AbstractBound, float, float]]:
        """(part, start, length) of the sub-steps in their order, as fractions of the step."""

    @property
    def error_order(self) -> int | None:
        return None

    @property
    def stages(self) -> int:
        return self.inner.stages

    @property
    def reversible(self) -> bool:
        return False

    def step(
        self, bound: AbstractBound, z: Depth, dz: Depth, state: State, first: State | None = None, judged: bool = False
    ) -> Stepped:
        points = state.points
        for part, start, length in self.schedule(bound):
            points = self.inner.step(part, z + start * dz, length * dz, State(points)).state.points
        return Stepped(displaced(bound, z, dz, state, points))

    def dense(
        self, bound: AbstractBound, z: float, dz: float, before: State, stepped: Stepped, fractions: Sequence[float]
    ) -> list[Points]:
        inside = z + 0.5 * dz
        f0, f1 = bound(z, before, inside).points, bound(z + dz, stepped.state, inside).points
        return [hermite(before.points, stepped.state.points, f0, f1, dz, s) for s in fractions]


@dataclasses.dataclass(frozen=True)
class LieTrotter(AbstractSplitting):
    """x' = Phi_n(dz) ... Phi_2(dz) Phi_1(dz) x, of order 1: attention first, then the feed-forward, as in GPT-2.

    With Euler sub-steps, counting measures and dz = 1 it is the standard Transformer, exactly.
    """

    sub: AbstractMethod = Euler()

    @property
    def inner(self) -> AbstractMethod:
        return self.sub

    @property
    def order(self) -> int:
        return 1

    def breaks(self, bound: AbstractBound, marks: Sequence[float]) -> tuple[float, ...]:
        return bound.breaks

    def schedule(self, bound: AbstractBound) -> list[tuple[AbstractBound, float, float]]:
        return [(part, 0.0, 1.0) for part in bound.parts]


@dataclasses.dataclass(frozen=True)
class Strang(AbstractSplitting):
    """x' = Phi_1(dz/2) ... Phi_n(dz) ... Phi_1(dz/2) x, of order 2 with sub-steps of order 2 (else of theirs).

    All parts but the last take two half-steps around the last part's full one. A part that takes half-steps may jump at
    the middle of a step: the Macaron network is Strang with Euler sub-steps and a feed-forward field in half-pieces.
    """

    sub: AbstractMethod = Midpoint()

    @property
    def inner(self) -> AbstractMethod:
        return self.sub

    @property
    def order(self) -> int:
        return min(2, self.sub.order)

    def breaks(self, bound: AbstractBound, marks: Sequence[float]) -> tuple[float, ...]:
        """Every jump of the last part, and those of half-step parts that are not in the middle of a step."""
        kept = set(bound.parts[-1].breaks)
        halves = {b for part in bound.parts[:-1] for b in part.breaks}
        straddled = halves
        while straddled:  # a break more moves the middles of its neighbours
            grid = sorted({*marks, *kept})
            meeting = [*grid, *(0.5 * (a + b) for a, b in itertools.pairwise(grid))]
            straddled = {b for b in halves - kept if not any(math.isclose(b, m, abs_tol=1e-12) for m in meeting)}
            kept |= straddled
        return tuple(sorted(kept))

    def schedule(self, bound: AbstractBound) -> list[tuple[AbstractBound, float, float]]:
        *outer, middle = bound.parts
        return [
            *((part, 0.0, 0.5) for part in outer),
            (middle, 0.0, 1.0),
            *((part, 0.5, 0.5) for part in reversed(outer)),
        ]
