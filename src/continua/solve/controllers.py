"""Step-size controllers: grids known before the solve (`Fixed`, `Given`), and steps that adapt to a tolerance."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch

from continua.core.checks import at_least, is_a, is_number, is_traced, positive
from continua.core.errors import SolveError, reject
from continua.core.shapes import Tensor
from continua.solve.integration import AbstractController, Integration, OnStep
from continua.solve.runge_kutta import AbstractRungeKutta, Step, StepResult
from continua.solve.step_size import EASIER, STIFF, StepSizeState, Tolerance, agree, first_lengths, joint_norm
from continua.solve.vector_field import AbstractVectorField, State, select


@dataclasses.dataclass(frozen=True)
class AbstractGridController(AbstractController):
    """A controller whose grid is known before the solve.

    With `all_ranks`, a state that is no longer finite on one rank of the default process group ends the solve on all.
    """

    all_ranks: bool = dataclasses.field(default=False, kw_only=True)

    @abc.abstractmethod
    def grid(self, integration: Integration) -> list[float]:
        """Depths from one end of the span to the other, every break among them."""

    def run(self, integration: Integration, state: State, on_step: OnStep | None = None) -> State:
        f, stats = integration.vector_field, integration.stats
        stats.grid = self.grid(integration)
        if integration.stepper.reads_middle:
            f.expect([z + 0.5 * (after - z) for z, after in itertools.pairwise(stats.grid)])
        for z, after in itertools.pairwise(stats.grid):
            result = integration.stepper.step(f, Step(z, after - z), state)
            _check_finite(f, result.state, z, self.all_ranks)
            stats.accepted += 1
            if on_step is not None:
                on_step(result)
            state = result.state
        return state


@dataclasses.dataclass(frozen=True)
class Fixed(AbstractGridController):
    """`steps` equal steps; where the flow jumps, each piece is divided evenly into steps no longer than that.

    To Runge-Kutta steps a staggered flow, the default of the builder, jumps where its parts start and end: eight steps
    are nine then.
    """

    steps: int

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)

    def grid(self, integration: Integration) -> list[float]:
        start, end = integration.span
        longest = abs(end - start) / self.steps
        grid = [start]
        for a, b in itertools.pairwise([start, *integration.inner_breaks(), end]):
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
        is_number(**{f"depths[{place}]": depth for place, depth in enumerate(self.depths)})
        object.__setattr__(self, "depths", tuple(map(float, self.depths)))
        steps = [b - a for a, b in itertools.pairwise(self.depths)]
        if not steps or not (min(steps) > 0 or max(steps) < 0):
            cure = "Pass at least two depths, strictly increasing, from 0 to the depth of the flow."
            reject("depths", self.depths, "this is no grid", cure)

    def grid(self, integration: Integration) -> list[float]:
        (start, end), (first, *inner, last) = integration.span, self.depths
        if max(abs(first - start), abs(last - end)) > 1e-9 * abs(end - start):
            cure = "Begin and end the grid where the span does."
            reject("depths", (first, last), f"the grid does not reach from {start} to {end}", cure)
        depths, breaks = [start, *inner, end], integration.inner_breaks(inner)
        missing = [b for b in breaks if all(abs(b - z) > integration.slack for z in depths)]
        return sorted([*depths, *missing], reverse=end < start)


@dataclasses.dataclass(frozen=True)
class AbstractAdaptive(AbstractController):
    """A controller whose steps are as long as a tolerance permits; without `atol`, `rtol` is both."""

    rtol: float = 1e-4
    atol: float | None = None
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        _ = self.tolerance
        at_least(1, max_steps=self.max_steps)

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance.of(self.rtol, self.atol)

    def _out_of_steps(self, what: str, z: float) -> SolveError:
        more = f"controller={type(self).__name__}(max_steps={2 * self.max_steps})"
        advice = f"{EASIER} Or allow more: {more}, for a model in at(solver=Solver(...))."
        return SolveError(f"max_steps = {self.max_steps} {what} were tried", z, advice)


@dataclasses.dataclass(frozen=True)
class Adaptive(AbstractAdaptive):
    """Steps as long as the tolerance permits, the same for all sequences of the batch: the default.

    A step is accepted when the root mean square over the batch of the mass-weighted errors is at most 1, in units of
    atol + rtol |x|; `Adaptive(1e-6)` sets both. `all_ranks` reduces it over the default process group, so that every
    rank takes the same steps (needed under FSDP). `first` is the first step tried (found from two evaluations
    otherwise). `costs` puts running costs into the norm. Reference implementation: `scipy.integrate.solve_ivp`, whose
    elementary controller gives way to Gustafsson's predictive one.
    """

    first: float | None = None
    all_ranks: bool = False
    costs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(first=self.first)
        is_a(bool, "Pass True or False; running costs go to the objective.", costs=self.costs)

    def run(self, integration: Integration, state: State, on_step: OnStep | None = None) -> State:
        f, stepper, stats = integration.vector_field, integration.stepper, integration.stats
        tolerance = self.tolerance
        tolerance.check(state.x)
        size, slope = self._start(integration, state)
        stats.grid = [size.z]
        while not size.at_end:
            if stats.accepted + stats.rejected >= self.max_steps:
                raise self._out_of_steps("steps", size.z)
            dz = size.aim()
            result = stepper.step(f, Step(size.z, dz), state, slope, with_error=True)
            error = joint_norm(tolerance.squared_errors(f, result, self.costs), self.all_ranks)
            if not error <= 1.0:  # nan is refused as well
                size.refuse(dz, error)
                # the shorter step starts at the same point: its first slope is known
                slope, stats.rejected = next(iter(result.slopes), None), stats.rejected + 1
                continue
            if on_step is not None:
                on_step(result)
            landed = size.accept(dz, error)
            # first same as last, but not across a stop: beyond a jump the slope is another one
            state, slope = result.state, None if landed else result.last
            stats.accepted += 1
            stats.grid.append(size.z)
            stats.errors.append(error)
        return state

    def _start(self, integration: Integration, state: State) -> tuple[StepSizeState, State | None]:
        order, stops = integration.stepper.error_order or 0, integration.stops()
        if self.first is not None:
            return StepSizeState(integration.span[0], self.first, stops, order), None

        def norms(x: Tensor) -> list[float]:
            squares = self.tolerance.squared_size(integration.vector_field, x, state.x)
            return [joint_norm(squares, self.all_ranks)]

        lengths, slope = first_lengths(integration, state, norms, lambda h: h[0])
        reusable = isinstance(integration.stepper, AbstractRungeKutta)  # others step along another slope
        return StepSizeState(integration.span[0], lengths[0], stops, order), slope if reusable else None


@dataclasses.dataclass(frozen=True)
class PerSequence(AbstractAdaptive):
    """Every sequence has its own depth and step: its output does not depend on its batch mates.

    Sequences step together but not equally far; one that rejects its step or is at the end stands still (dz = 0) while
    others move. The solve takes as many rounds as its hardest sequence needs, at most `max_steps`. No slope is carried
    over from one round to the next: whether it can be would depend on the mates. Reference implementation: torchode.
    """

    def run(self, integration: Integration, state: State, on_step: OnStep | None = None) -> State:
        self.tolerance.check(state.x)
        if state.x.ndim == 0:
            reject("x0", (), "PerSequence needs a first axis, the batch", "Use controller=Adaptive().")
        sizes = self._start(integration, state)
        rounds = 0
        while not all(size.at_end for size in sizes):
            if rounds >= self.max_steps:
                raise self._out_of_steps("rounds", min(size.z for size in sizes))
            state = self._round(integration, sizes, state, on_step)
            rounds += 1
        return state

    def _start(self, integration: Integration, state: State) -> list[StepSizeState]:
        def norms(x: Tensor) -> list[float]:
            return self.tolerance.squared_size(integration.vector_field, x, state.x).sqrt().tolist()

        lengths, _ = first_lengths(integration, state, norms, lambda h: _depths(h, state.x))
        order = integration.stepper.error_order or 0
        return [StepSizeState(integration.span[0], length, integration.stops(), order) for length in lengths]

    def _round(
        self, integration: Integration, sizes: list[StepSizeState], state: State, on_step: OnStep | None
    ) -> State:
        """One step tried by every sequence that is not at the end."""
        f, stepper, stats = integration.vector_field, integration.stepper, integration.stats
        aims = [0.0 if size.at_end else size.aim() for size in sizes]
        step = Step(_depths([size.z for size in sizes], state.x), _depths(aims, state.x))
        result = stepper.step(f, step, state, with_error=True)
        errors = self.tolerance.squared_errors(f, result, costs=False).sqrt().tolist()
        moved = [dz != 0.0 and error <= 1.0 for dz, error in zip(aims, errors, strict=True)]
        for size, dz, error, good in zip(sizes, aims, errors, moved, strict=True):
            if dz != 0.0:  # it is at the end otherwise
                (size.accept if good else size.refuse)(dz, error)
        refused = sum(dz != 0.0 for dz in aims) - sum(moved)
        stats.accepted, stats.rejected = stats.accepted + sum(moved), stats.rejected + refused
        if not any(moved):
            return state
        good = torch.tensor(moved, device=state.x.device)
        step = Step(step.z, torch.where(good, step.dz, 0.0))
        if refused and torch.is_grad_enabled():
            # a refused step may have overflowed, and its gradient would be 0 * inf: none of it may stay in the graph
            result = stepper.step(f, step, state)
        after = select(good, result.state, state)
        if on_step is not None:
            on_step(StepResult(step, state, after))
        return after


def _check_finite(f: AbstractVectorField, state: State, z: float, all_ranks: bool) -> None:
    """Stops a solve whose tokens or costs are no longer finite; absent tokens do not count."""
    if is_traced():
        return
    # one sum and one transfer per step: it is finite unless an entry is not, or it overflows, which is looked into
    total = sum([x.detach().sum() for x in state.costs], state.x.detach().sum())
    broken = "" if math.isfinite(total.item()) else _find_broken(f, state)
    if not agree(not broken, all_ranks, state.x):
        advice = f"{STIFF} Take more steps: `integrate` and `model.at` take steps=."
        raise SolveError(f"{broken or 'the state of another rank'} is no longer finite", z, advice)


def _find_broken(f: AbstractVectorField, state: State) -> str:
    """What is not finite, in words; nothing where the sum alone overflowed."""
    broken = ~torch.isfinite(state.x.detach())
    if f.weights is not None:
        broken = broken & (f.weights > 0).unsqueeze(-1)
    if bool(broken.any()):
        place = broken.nonzero()[0].tolist()
        where = f"of sequence {place[0]}, token {place[1]}" if len(place) == 3 else f"at index {tuple(place)}"
        return f"the state {where}"
    costs = (index for index, cost in enumerate(state.costs) if not bool(torch.isfinite(cost.detach()).all()))
    return "".join(f"running cost {index}" for index in list(costs)[:1])


def _depths(values: Sequence[float], like: Tensor) -> Tensor:
    """One depth per sequence: kept in float64, handed to the flow in its own dtype and on its device."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)
