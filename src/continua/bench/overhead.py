"""What a solve costs beyond its evaluations of the velocity."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.flows import SPAN, Sizes, bound, depth_dependent, tokens
from continua.bench.timing import Case, interleaved, paired, using_threads
from continua.core.shapes import Points
from continua.model import Flow
from continua.solve import AbstractGradient, Adaptive, Checkpointed, Direct, DormandPrince, State, Stats, integrate


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
        return "a solve costs at most 1.1 times its bare evaluations"

    def quick(self) -> "Overhead":
        return Overhead(Sizes(2, 4, 8, 2, 16), 2, 1e-2, repetitions=1, threads=1)

    def run(self) -> Outcome:
        with using_threads(self.threads):
            pair = _Pair(depth_dependent(self.sizes, self.modes), tokens(self.sizes), self.tolerance)
            seconds = interleaved(pair.cases(), self.repetitions)
        rows: list[Row] = [{"case": name, "seconds": statistics.median(times)} for name, times in seconds.items()]
        for row in rows:
            row["evaluations"] = len(pair.depths) + (len(pair.replayed) if "Checkpointed" in str(row["case"]) else 0)
        names = [name for name in seconds if not name.startswith("bare")]
        ratios = [Ratio(f"{name} / bare", paired(seconds[name], seconds[f"bare {name}"]), 1.1) for name in names]
        return Outcome(tuple(rows), tuple(ratios))


class _Pair:
    """Solves of one flow, and the loops with the same evaluations."""

    def __init__(self, flow: Flow, start: Points, tolerance: float) -> None:
        self.flow = flow
        self.start = start.requires_grad_(True)
        self.control = Adaptive(tolerance, tolerance)
        self.depths: list[float] = []
        hook = flow.parts[0].field.register_forward_pre_hook(  # pyright: ignore[reportAttributeAccessIssue,reportCallIssue]
            lambda _, arguments: self.depths.append(arguments[0])
        )
        self.stats = self.forward()
        hook.remove()  # pyright: ignore[reportAttributeAccessIssue]
        steps, stages = itertools.pairwise(self.stats.grid), DormandPrince().tableau.c
        self.replayed = [z + c * (after - z) for z, after in steps for c in stages]
        # what carries no gradient: the probe for the first step, the slope at the very end, rejected steps
        self.judged = self.depths[: len(self.depths) - len(self.replayed)]

    def cases(self) -> dict[str, Case]:
        return {
            "forward": self.forward,
            "bare forward": lambda: self.bare_forward(self.depths),
            "Direct": lambda: self.backward(Direct()),
            "bare Direct": lambda: (self.bare_forward(self.judged), self.bare_backward()),
            "Checkpointed": lambda: self.backward(Checkpointed()),
            "bare Checkpointed": lambda: (self.bare_forward(self.depths), self.bare_backward()),
        }

    @torch.no_grad()
    def forward(self) -> Stats:
        velocity = bound(self.flow, self.start)
        return integrate(velocity, velocity.initial(), SPAN, controller=self.control, gradient=Direct()).stats

    def backward(self, gradient: AbstractGradient) -> None:
        self._clear()
        velocity = bound(self.flow, self.start)
        solution = integrate(velocity, velocity.initial(), SPAN, controller=self.control, gradient=gradient)
        solution.x.square().mean().backward()

    @torch.no_grad()
    def bare_forward(self, depths: Sequence[float]) -> None:
        velocity, state = bound(self.flow, self.start), State(self.start)
        for z in depths:
            velocity(z, state)

    def bare_backward(self) -> None:
        self._clear()
        velocity, state = bound(self.flow, self.start), State(self.start)
        for z in self.replayed:
            velocity(z, state).x.backward(self.start.detach())

    def _clear(self) -> None:
        self.flow.zero_grad(set_to_none=True)
        self.start.grad = None
