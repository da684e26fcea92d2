"""What a solve costs beyond its evaluations, and what an evaluation costs where weights depend on depth."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Case, Ratio, Row, median_ratio, time_in_turn
from continua.bench.flows import SPAN, Sizes, bind, block_flow, depth_dependent, tokens
from continua.core.shapes import Points
from continua.fields import Constant, Expansion
from continua.model import Flow
from continua.solve import AbstractGradient, Adaptive, Checkpointed, Direct, DormandPrince, State, Stats, integrate
from continua.spaces import BSpline, Legendre


@final
@dataclasses.dataclass(frozen=True)
class Overhead(AbstractBenchmark):
    """Solves against plain loops that evaluate the same velocity as often, at the same depths, and nothing else.

    Forward alone; forward and backward by `Direct`, whose loop differentiates every evaluation that the gradient
    passes through; and by `Checkpointed`, whose loop evaluates without a graph and then replays.
    """

    sizes: Sizes = Sizes()
    modes: int = 8
    tolerance: float = 1e-4
    repetitions: int = 11
    threads: int = 2

    @property
    def claim(self) -> str:
        return "a solve costs at most 1.08 times its bare evaluations"

    def quick(self) -> "Overhead":
        return Overhead(Sizes(2, 4, 8, 2, 16), 2, 1e-2, repetitions=1, threads=1)

    def measure(self) -> BenchResult:
        pair = _Pair(depth_dependent(self.sizes, self.modes), tokens(self.sizes), self.tolerance)
        seconds = time_in_turn(pair.cases(), self.repetitions)
        rows: list[Row] = [{"case": name, "seconds": statistics.median(times)} for name, times in seconds.items()]
        for row in rows:
            row["evaluations"] = len(pair.depths) + (len(pair.replayed) if "Checkpointed" in str(row["case"]) else 0)
        names = [name for name in seconds if not name.startswith("bare")]
        ratios = [Ratio(f"{name} / bare", median_ratio(seconds[name], seconds[f"bare {name}"]), 1.08) for name in names]
        return BenchResult(tuple(rows), tuple(ratios))


class _Pair:
    """Solves of one flow, and the loops with the same evaluations."""

    def __init__(self, flow: Flow, start: Points, tolerance: float) -> None:
        self.flow = flow
        self.start = start.requires_grad_(True)
        self.controller = Adaptive(tolerance, tolerance)
        self.depths: list[float] = []
        # Every evaluation reads the field once, at its depth: rejected steps show in no statistics of the grid.
        hook = flow.parts[0].field.register_forward_pre_hook(  # pyright: ignore[reportAttributeAccessIssue,reportCallIssue]
            lambda _, arguments: self.depths.append(arguments[0])
        )
        self.stats = self.forward()
        hook.remove()  # pyright: ignore[reportAttributeAccessIssue]
        steps, stages = itertools.pairwise(self.stats.grid), DormandPrince().tableau.c
        self.replayed = [z + c * (after - z) for z, after in steps for c in stages]
        # What carries no gradient: the probe for the first step, the slope at the very end, rejected steps
        self.ungraded = self.depths[: len(self.depths) - len(self.replayed)]

    def cases(self) -> dict[str, Case]:
        return {
            "forward": self.forward,
            "bare forward": lambda: self.bare_forward(self.depths),
            "Direct": lambda: self.backward(Direct()),
            "bare Direct": lambda: (self.bare_forward(self.ungraded), self.bare_backward()),
            "Checkpointed": lambda: self.backward(Checkpointed()),
            "bare Checkpointed": lambda: (self.bare_forward(self.depths), self.bare_backward()),
        }

    @torch.no_grad()
    def forward(self) -> Stats:
        velocity = bind(self.flow, self.start)
        return integrate(velocity, velocity.initial(), SPAN, controller=self.controller, gradient=Direct()).stats

    def backward(self, gradient: AbstractGradient) -> None:
        self._clear()
        velocity = bind(self.flow, self.start)
        solution = integrate(velocity, velocity.initial(), SPAN, controller=self.controller, gradient=gradient)
        solution.x.square().mean().backward()

    @torch.no_grad()
    def bare_forward(self, depths: Sequence[float]) -> None:
        velocity, state = bind(self.flow, self.start), State(self.start)
        for z in depths:
            velocity(z, state)

    def bare_backward(self) -> None:
        self._clear()
        velocity, state = bind(self.flow, self.start), State(self.start)
        for z in self.replayed:
            velocity(z, state).x.backward(self.start.detach())

    def _clear(self) -> None:
        self.flow.zero_grad(set_to_none=True)
        self.start.grad = None


@final
@dataclasses.dataclass(frozen=True)
class FieldCostRatio(AbstractBenchmark):
    """Evaluations of the velocity of a pre-norm block, without a graph, at depths spread over [0, 1].

    The block is the same; its weights are constant, or expansions of `modes` Legendre polynomials or cubic B-splines.
    """

    sizes: Sizes = Sizes()
    modes: int = 8
    evaluations: int = 4
    repetitions: int = 21
    threads: int = 2

    @property
    def claim(self) -> str:
        batch = self.sizes.batch * self.sizes.tokens
        return f"{self.modes} modes cost at most 1.1 times constant weights at batch * tokens = {batch}"

    def quick(self) -> "FieldCostRatio":
        return FieldCostRatio(Sizes(2, 4, 8, 2, 16), modes=4, evaluations=2, repetitions=2, threads=1)

    def measure(self) -> BenchResult:
        flows = {
            "constant": block_flow(self.sizes, Constant),
            "Legendre": block_flow(self.sizes, lambda spec, g: Expansion(spec, Legendre(self.modes), generator=g)),
            "B-spline": block_flow(self.sizes, lambda spec, g: Expansion(spec, BSpline(self.modes), generator=g)),
        }
        seconds = time_in_turn({name: self._case(flow) for name, flow in flows.items()}, self.repetitions)
        rows: list[Row] = [{"field": n, "seconds": statistics.median(t) / self.evaluations} for n, t in seconds.items()]
        ratios = [
            Ratio(f"{name} / constant", median_ratio(seconds[name], seconds["constant"]), 1.1)
            for name in ("Legendre", "B-spline")
        ]
        return BenchResult(tuple(rows), tuple(ratios))

    def _case(self, flow: Flow) -> Case:
        velocity, state = bind(flow, tokens(self.sizes)), State(tokens(self.sizes))
        depths = [(i + 0.5) / self.evaluations for i in range(self.evaluations)]

        @torch.no_grad()
        def evaluate() -> None:
            for z in depths:
                velocity(z, state)

        return evaluate
