"""Forward and backward solves against torchdiffeq, on the same velocity at the same tolerance."""

import dataclasses
import statistics
from typing import Any, final

import torch
from torch import nn

from continua.bench.benchmark import (
    AbstractBenchmark,
    BenchResult,
    Case,
    Ratio,
    Row,
    median_ratio,
    sum_rounds,
    time_in_turn,
)
from continua.bench.flows import DEPTH, SPAN, Sizes, bind, depth_dependent, tokens
from continua.core.extras import extra
from continua.core.shapes import Points, Tensor
from continua.model import Flow, FlowVectorField
from continua.solve import AbstractGradient, Adaptive, Checkpointed, Direct, DormandPrince, State, integrate

_PEERS = (("Direct", "odeint", 0.75), ("Checkpointed", "odeint_adjoint", 0.7))


@final
@dataclasses.dataclass(frozen=True)
class Speed(AbstractBenchmark):
    """Dormand-Prince, forward + backward, weights depending on depth: three flows, of few and of many modes.

    One flow would not do: a solve takes a whole number of steps, and one more or less decides its ratio. The claimed
    ratios are those of the summed times. Rows say how many evaluations each side took and how far its end is from the
    exact one, in units of the tolerance, for a faster solver may just be a less careful one.
    """

    sizes: Sizes = Sizes()
    modes: tuple[int, ...] = (2, 4, 8)
    tolerance: float = 1e-4
    repetitions: int = 9
    threads: int = 2

    @property
    def claim(self) -> str:
        return "Direct takes at most 0.75 of the time of odeint, and Checkpointed at most 0.7 of that of odeint_adjoint"

    def quick(self) -> "Speed":
        return Speed(Sizes(2, 4, 8, 2, 16), (2,), 1e-2, repetitions=1, threads=1)

    def measure(self) -> BenchResult:
        tracks = [_Track(self, modes) for modes in self.modes]
        cases = {f"{t.modes} {name}": case for t in tracks for name, case in t.cases().items()}
        seconds = time_in_turn(cases, self.repetitions)
        rows = [row for track in tracks for row in track.rows(seconds)]
        ratios = []
        for ours, theirs, limit in _PEERS:
            times = [sum_rounds(seconds, [f"{m} {name}" for m in self.modes]) for name in (ours, theirs)]
            ratios.append(Ratio(f"{ours} / torchdiffeq {theirs}", median_ratio(*times), limit))
        return BenchResult(tuple(rows), tuple(ratios))


class _Track:
    """One flow, and every way to solve and differentiate it."""

    def __init__(self, race: Speed, modes: int) -> None:
        self.modes = modes
        self.tolerance = race.tolerance
        self.flow: Flow = depth_dependent(race.sizes, modes)
        self.start = tokens(race.sizes).requires_grad_(True)
        self.ends: dict[str, Points] = {}
        self.counts: dict[str, tuple[int, int]] = {}

    def cases(self) -> dict[str, Case]:
        return {
            "Direct": lambda: self._ours(Direct()),
            "odeint": lambda: self._theirs("odeint"),
            "Checkpointed": lambda: self._ours(Checkpointed()),
            "odeint_adjoint": lambda: self._theirs("odeint_adjoint"),
        }

    def rows(self, seconds: dict[str, list[float]]) -> list[Row]:
        exact = self._exact()
        rows: list[Row] = []
        for name, (forward, backward) in self.counts.items():
            error = (self.ends[name] - exact) / (self.tolerance * (1.0 + exact.abs()))
            row: Row = {"modes": self.modes, "solve": name}
            row |= {"seconds": statistics.median(seconds[f"{self.modes} {name}"])}
            row |= {"forward evaluations": forward, "backward evaluations": backward}
            rows.append(row | {"error / tolerance": float(error.square().mean().sqrt())})
        return rows

    def _ours(self, gradient: AbstractGradient) -> None:
        self._clear()
        velocity = bind(self.flow, self.start)
        controller = Adaptive(self.tolerance, self.tolerance)
        solution = integrate(velocity, velocity.initial(), SPAN, DormandPrince(), controller, gradient)
        solution.x.square().mean().backward()
        stats, name = solution.stats, type(gradient).__name__
        self.ends[name] = solution.x.detach()
        self.counts[name] = (stats.evaluations, stats.backward_evaluations)

    def _theirs(self, name: str) -> None:
        self._clear()
        velocity = _CountedVelocity(bind(self.flow, self.start))
        end = solve_with_torchdiffeq(velocity, self.start, self.tolerance, adjoint=name == "odeint_adjoint")
        forward = velocity.calls
        end.square().mean().backward()
        self.ends[name] = end.detach()
        self.counts[name] = (forward, velocity.calls - forward)

    def _clear(self) -> None:
        self.flow.zero_grad(set_to_none=True)
        self.start.grad = None

    @torch.no_grad()
    def _exact(self) -> Points:
        velocity = bind(self.flow, self.start)
        controller = Adaptive(0.01 * self.tolerance, 0.01 * self.tolerance)
        return integrate(velocity, velocity.initial(), SPAN, controller=controller, gradient=Direct()).x


class _CountedVelocity(nn.Module):
    """func(t, x) as torchdiffeq asks for it; counts its calls."""

    def __init__(self, bound: FlowVectorField) -> None:
        super().__init__()
        self.bound = bound
        self.calls = 0

    def forward(self, t: Tensor, x: Points) -> Points:
        self.calls += 1
        z = min(max(t.item(), 0.0), DEPTH)  # the first step that torchdiffeq tries may leave even the deeper flow
        return self.bound(z, State(x)).x


def solve_with_torchdiffeq(velocity: _CountedVelocity, points: Points, tolerance: float, adjoint: bool) -> Points:
    """The end of `odeint`, or of `odeint_adjoint` with the gradients of the same parameters, by "dopri5"."""
    peer = extra("torchdiffeq", "peers")
    settings: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}
    if adjoint:
        parameters = tuple(velocity.bound.flow.parameters())
        return peer.odeint_adjoint(velocity, points, torch.tensor(SPAN), adjoint_params=parameters, **settings)[-1]
    return peer.odeint(velocity, points, torch.tensor(SPAN), **settings)[-1]
