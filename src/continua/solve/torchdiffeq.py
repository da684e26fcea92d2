"""The solvers of torchdiffeq behind the interface of ours: an optional peer (extra `peers`)."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from continua.core.errors import SolveError, reject
from continua.core.extras import extra
from continua.core.shapes import Tensor
from continua.solve.backsolve import Backsolve
from continua.solve.gradients import AbstractGradient, Direct, needs_gradient, refuse_shards
from continua.solve.integrate import AbstractSolver, check_problem
from continua.solve.integration import Observer, Solution, Stats
from continua.solve.step_size import STIFF, Tolerance, mean_square
from continua.solve.vector_field import AbstractVectorField, State

_ADAPTIVE = frozenset({"dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun"})


@dataclasses.dataclass(frozen=True)
class TorchdiffeqSolver(AbstractSolver):
    """The methods of torchdiffeq: "dopri8", "implicit_adams", "scipy_solver" and the others that it knows by name.

    The span is cut at breaks and saved depths, each piece a solve of its own. `Direct` is its `odeint`, `Backsolve` its
    `odeint_adjoint`, which reports no reconstruction error; it knows no other gradient. `options` are passed on as they
    are, such as (("step_size", 0.05),) for its fixed grids, which otherwise take a piece in one step. Where it has an
    error norm it is the mass-weighted one of `Adaptive`, running costs left out. Statistics count evaluations alone.
    """

    method: str = "dopri8"
    rtol: float = 1e-4
    atol: float | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        Tolerance.of(self.rtol, self.atol)

    def solve(
        self,
        vector_field: AbstractVectorField,
        state: State,
        span: tuple[float, float],
        gradient: AbstractGradient,
        save_at: Sequence[float] = (),
        observers: Sequence[Observer] = (),
    ) -> Solution:
        (start, end), depths = check_problem(state, span, save_at, observers)
        self._check(vector_field, state, gradient, observers)
        stats, visited = Stats(), {start: state.x}
        for a, b in itertools.pairwise([start, *_between(start, end, vector_field.breaks), end]):
            velocity = _Velocity(vector_field, 0.5 * (a + b), stats)
            for z, after in itertools.pairwise([a, *_between(a, b, depths), b]):
                state = self._piece(velocity, state, (z, after), gradient)
                visited[after] = state.x
        xs = torch.stack([visited[z] for z in depths]) if depths else None
        return Solution(state.x, stats, state.costs, depths, xs)

    def _check(
        self, f: AbstractVectorField, state: State, gradient: AbstractGradient, observers: Sequence[Observer]
    ) -> None:
        if not isinstance(gradient, Direct) and gradient != Backsolve():
            why = "it knows odeint (Direct) and odeint_adjoint (Backsolve) alone, that with neither trust nor clip"
            reject("gradient", gradient, why, "Use gradient=Direct() or Backsolve(), or continua's own Solver().")
        if observers:
            reject("observers", observers, "torchdiffeq shows its steps to nobody", "Use continua's own Solver().")
        asks = needs_gradient(state, f.tensors)
        if asks and self.method == "scipy_solver" and isinstance(gradient, Direct):
            why = "autograd does not see through scipy, the gradient would be missing"
            reject("gradient", gradient, why, "Use gradient=Backsolve(), or solve under torch.no_grad().")
        if isinstance(gradient, Backsolve):
            refuse_shards(f.tensors, gradient)

    def _piece(
        self, velocity: "_Velocity", state: State, span: tuple[float, float], gradient: AbstractGradient
    ) -> State:
        """The state at the end of a piece without breaks."""
        torchdiffeq, options = extra("torchdiffeq", "peers"), {"norm": velocity.norm, **dict(self.options)}
        z = torch.tensor(span, dtype=torch.float64, device=state.x.device)
        if self.method in _ADAPTIVE:  # they step beyond the end otherwise, where no field may be
            options.setdefault("step_t", z)
        tolerance = Tolerance.of(self.rtol, self.atol)
        settings = {"rtol": tolerance.rtol, "atol": tolerance.atol, "method": self.method, "options": options}
        solve = torchdiffeq.odeint
        if isinstance(gradient, Backsolve):
            solve, settings["adjoint_params"] = torchdiffeq.odeint_adjoint, velocity.vector_field.tensors
        velocity.forward = True
        try:
            x, *costs = (values[-1] for values in solve(velocity, (state.x, *state.costs), z, **settings))
        except AssertionError as failure:  # the message goes on with whole tensors
            raise _failure(str(failure).partition(":")[0], span[0]) from failure
        velocity.forward = False
        if not all(bool(torch.isfinite(value.detach()).all()) for value in (x, *costs)):
            raise _failure("the state is no longer finite", span[0])
        return State(x, tuple(costs))


class _Velocity:
    """The flow on one piece, as torchdiffeq calls it; counts the evaluations of either pass."""

    def __init__(self, f: AbstractVectorField, inside: float, stats: Stats) -> None:
        self.vector_field, self.inside, self.stats, self.forward = f, inside, stats, True

    def __call__(self, z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.forward:
            self.stats.evaluations += 1
        else:
            self.stats.backward_evaluations += 1
        slope = self.vector_field(float(z.detach()), State(state[0], state[1:]), self.inside)
        return (slope.x, *slope.costs)

    def norm(self, ratios: tuple[Tensor, ...]) -> Tensor:
        """The root mean square over the batch of mass-weighted errors, given in units of the tolerance."""
        return mean_square(self.vector_field, ratios[0], torch.ones_like(ratios[0])).mean().sqrt()


def _between(a: float, b: float, depths: Sequence[float]) -> list[float]:
    """The depths on the way from a to b, in their order."""
    return sorted((z for z in depths if min(a, b) < z < max(a, b)), reverse=b < a)


def _failure(reason: str, z: float) -> SolveError:
    advice = f"{STIFF} Loosen rtol and atol of TorchdiffeqSolver, or set options: max_num_steps, step_size."
    return SolveError(f"torchdiffeq gave up on the piece that starts here: {reason}", z, advice)
