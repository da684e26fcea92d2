"""Steppers made of steppers: splitting, where the parts of the velocity act in turn, and projection on a manifold."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import final

import torch

from continua.core.errors import reject
from continua.core.shapes import DepthValue, Tensor
from continua.solve.runge_kutta import AbstractStepper, Euler, Midpoint, Step, StepResult, hermite
from continua.solve.vector_field import AbstractVectorField, State, displace, within
from continua.spaces import AbstractManifold


@dataclasses.dataclass(frozen=True)
class AbstractSplitting(AbstractStepper):
    """Composes steps of the parts, each taken by `sub`. A cost sees the mean velocity dx/dz of the whole step.

    Euler sub-steps read the parameters at their middle, x' = x + dz f(z + dz/2, x).

    R. I. McLachlan and G. R. W. Quispel, Splitting methods, Acta Numerica 11 (2002).
    """

    sub: AbstractStepper

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", self.sub.stages)

    @abc.abstractmethod
    def schedule(self, f: AbstractVectorField) -> list[tuple[AbstractVectorField, float, float]]:
        """(part, start, length) of the sub-steps in their order, as fractions of the step."""

    def step(
        self, f: AbstractVectorField, step: Step, state: State, first: State | None = None, with_error: bool = False
    ) -> StepResult:
        (z, dz), x, euler = step, state.x, isinstance(self.sub, Euler)
        for part, start, length in self.schedule(f):
            if euler:  # as `_move` does, which would be one more frame around every evaluation
                middle = z + (start + 0.5 * length) * dz
                x = torch.add(x, part(middle, State(x), middle).x, alpha=length * dz)  # pyright: ignore[reportArgumentType]
            else:
                x = _move(self.sub, part, Step(z + start * dz, length * dz), x)
        return StepResult(step, state, displace(f, z, dz, state, x))

    def dense(self, f: AbstractVectorField, result: StepResult, fractions: Sequence[float]) -> list[Tensor]:
        (z, dz), before, after = result.step, result.before, result.state
        inside = z + 0.5 * dz
        f0, f1 = f(z, before, inside).x, f(z + dz, after, inside).x
        return [hermite(before.x, after.x, f0, f1, dz, s) for s in fractions]


@dataclasses.dataclass(frozen=True)
class LieTrotter(AbstractSplitting):
    """x' = Phi_n(dz) ... Phi_2(dz) Phi_1(dz) x, of order 1: attention first, then the feed-forward, as in GPT-2.

    With Euler sub-steps, counting measures and dz = 1 it is the standard Transformer, exactly.
    """

    sub: AbstractStepper = Euler()
    order = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "reads_middle", isinstance(self.sub, Euler))

    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        return f.breaks

    def schedule(self, f: AbstractVectorField) -> list[tuple[AbstractVectorField, float, float]]:
        return [(part, 0.0, 1.0) for part in f.parts or (f,)]


@final
@dataclasses.dataclass(frozen=True)
class Staggered(AbstractStepper):
    """Steps of `inner` on a grid in which all parts but the first are `lag` steps behind; the last step catches up.

    In a plain step the first part has moved the state by dz when the others begin: it is ahead by dz/2 in the mean. So
    N plain steps are leapfrog, of order 2, for a flow whose first part starts Z/2N before the others and ends as much
    before them. On finer grids that delay is made of whole steps: 2N steps have a lag of one, 3N too, 4N one of two.
    E. Hairer, C. Lubich, G. Wanner, Geometric Numerical Integration, sections I.1.4 and II.5.
    """

    inner: LieTrotter
    grid: tuple[float, ...]
    lag: int
    order = 1

    def __post_init__(self) -> None:
        for name in ("stages", "reads_middle"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        return self.inner.breaks(f, marks)

    def step(
        self, f: AbstractVectorField, step: Step, state: State, first: State | None = None, with_error: bool = False
    ) -> StepResult:
        place, cells, (ahead, *behind) = self.grid.index(step.z), len(self.grid) - 1, f.parts
        x = self._move([ahead], place, state.x)
        if place >= self.lag:
            x = self._move(behind, place - self.lag, x)
        z, dz = step.z, step.dz * cells / (cells + self.lag)  # costs see the depth that all parts have together
        after = displace(f, z, dz, state, x)
        for late in range(cells - self.lag, cells) if place == cells - 1 else ():
            after = displace(f, z, dz, after, self._move(behind, late, after.x))
        return StepResult(step, state, after)

    def _move(self, parts: Sequence[AbstractVectorField], cell: int, x: Tensor) -> Tensor:
        start, end = self.grid[cell : cell + 2]
        for part in parts:
            x = _move(self.inner.sub, part, Step(start, end - start), x)
        return x

    def dense(self, f: AbstractVectorField, result: StepResult, fractions: Sequence[float]) -> list[Tensor]:
        return self.inner.dense(f, result, fractions)


def stagger_on(stepper: AbstractStepper, f: AbstractVectorField, grid: Sequence[float]) -> AbstractStepper:
    """The stepper of a solve on a grid that is known: plain steps of a staggered flow need it, others do not."""
    if f.stagger is None or not isinstance(stepper, LieTrotter):
        return stepper
    lag = (len(grid) - 1) // (2 * f.stagger)
    return Staggered(stepper, tuple(grid), lag) if lag else stepper


def _move(sub: AbstractStepper, part: AbstractVectorField, step: Step, x: Tensor) -> Tensor:
    """One sub-step of one part."""
    if not isinstance(sub, Euler):
        return sub.step(part, step, State(x)).state.x
    # the weights of the middle: layers do not notice, smooth fields are read to second order
    middle = step.z + 0.5 * step.dz
    return torch.add(x, part(middle, State(x), middle).x, alpha=step.dz)  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True)
class Strang(AbstractSplitting):
    """x' = Phi_1(dz/2) ... Phi_n(dz) ... Phi_1(dz/2) x, of order 2 with sub-steps of order 2 (else of theirs).

    All parts but the last take two half-steps around the last part's full one. A part that takes half-steps may jump at
    the middle of a step: the Macaron network is Strang with Euler sub-steps and a feed-forward field in half-pieces.
    """

    sub: AbstractStepper = Midpoint()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "order", min(2, self.sub.order))

    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        """Every jump of the last part, and those of half-step parts that are not in the middle of a step."""
        *outer, middle = f.parts or (f,)
        kept = set(middle.breaks)
        halves = {b for part in outer for b in part.breaks}
        straddled = halves
        while straddled:  # a break more moves the middles of its neighbours
            grid = sorted({*marks, *kept})
            meeting = [*grid, *(0.5 * (a + b) for a, b in itertools.pairwise(grid))]
            straddled = {b for b in halves - kept if not any(math.isclose(b, m, abs_tol=1e-12) for m in meeting)}
            kept |= straddled
        return tuple(sorted(kept))

    def schedule(self, f: AbstractVectorField) -> list[tuple[AbstractVectorField, float, float]]:
        *outer, middle = f.parts or (f,)
        return [
            *((part, 0.0, 0.5) for part in outer),
            (middle, 0.0, 1.0),
            *((part, 0.5, 0.5) for part in reversed(outer)),
        ]


@dataclasses.dataclass(frozen=True)
class Projected(AbstractStepper):
    """x' = P(step(x)), P the projection on a manifold: the sphere-normalised Transformer.

    Meant for manifolds without trained parameters (the sphere, norms of gain 1), on which the projected steps converge
    to the flow of the tangential velocity. A velocity with a normal part is projected to first order only, which is
    what x <- P(x + f(x)) does, and a cost sees the mean velocity of the whole step; with `tangent=True` every stage
    takes the tangential velocity instead, and the step keeps the order of `sub` and its error estimate. Tokens should
    start on the manifold. E. Hairer, C. Lubich, G. Wanner, Geometric Numerical Integration, section IV.4.
    """

    sub: AbstractStepper
    manifold: AbstractManifold
    tangent: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sub, Projected):
            reject("sub", self.sub, "it is projected already", "Pass the bare stepper.")
        object.__setattr__(self, "stages", self.sub.stages)
        object.__setattr__(self, "order", self.sub.order if self.tangent else 1)
        # the estimate of `sub` does not see what the projection does to a normal velocity
        object.__setattr__(self, "error_order", self.sub.error_order if self.tangent else None)

    def breaks(self, f: AbstractVectorField, marks: Sequence[float]) -> tuple[float, ...]:
        return self.sub.breaks(f, marks)

    def step(
        self, f: AbstractVectorField, step: Step, state: State, first: State | None = None, with_error: bool = False
    ) -> StepResult:
        if not self.tangent:
            result = self.sub.step(f, step, state)
            return result._replace(state=displace(f, *step, state, self.manifold.project(result.state.x)))
        result = self.sub.step(_Tangential(f, self.manifold), step, state, first, with_error)
        # the slope at the end was that of the point before its projection: no first slope of the next step
        return result._replace(state=result.state._replace(x=self.manifold.project(result.state.x)), last=None)

    def dense(self, f: AbstractVectorField, result: StepResult, fractions: Sequence[float]) -> list[Tensor]:
        seen = _Tangential(f, self.manifold) if self.tangent else f
        return [self.manifold.project(x) for x in self.sub.dense(seen, result, fractions)]


def manifold_of(stepper: AbstractStepper) -> AbstractManifold | None:
    """The manifold that a stepper, or the sub-stepper of a splitting, returns to; `None` where there is none."""
    if isinstance(stepper, Projected):
        return stepper.manifold
    return manifold_of(stepper.sub) if isinstance(stepper, AbstractSplitting) else None


class _Tangential(AbstractVectorField):
    """The flow with the normal part of its velocity taken away."""

    def __init__(self, whole: AbstractVectorField, manifold: AbstractManifold) -> None:
        self.whole, self.manifold = whole, manifold
        self.breaks, self.weights = whole.breaks, whole.weights
        self.parts = [_Tangential(part, manifold) for part in whole.parts]

    def __call__(self, z: DepthValue, state: State, inside: DepthValue | None = None) -> State:
        slope = self.whole(z, state, inside)
        velocity = self.manifold.tangent(state.x, slope.x)
        return State(velocity, self.whole.rates(within(z, inside), state.x, velocity))

    def expect(self, depths: Sequence[float]) -> None:
        self.whole.expect(depths)

    def rates(self, z: DepthValue, x: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        return self.whole.rates(z, x, velocity)

    def costs_of_step(self, z: DepthValue, dz: float, before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        return self.whole.costs_of_step(z, dz, before, after)
