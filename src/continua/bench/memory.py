"""Peak memory of the gradients as the number of steps grows."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.flows import SPAN, Sizes, bound, depth_dependent, tokens
from continua.bench.peak import peak_memory
from continua.core.slopes import fitted_slope
from continua.model import Flow
from continua.solve import AbstractGradient, Checkpointed, Direct, DormandPrince, Fixed, integrate


@final
@dataclasses.dataclass(frozen=True)
class Memory(AbstractBenchmark):
    """Forward and backward on few to many steps: `Checkpointed` with one-step windows, and `Direct`.

    Each case has a process of its own; what counts is the peak above where the loaded and warmed-up process stood.
    """

    sizes: Sizes = Sizes()
    steps: tuple[int, ...] = (8, 16, 32, 64)
    modes: int = 4
    threads: int = 1

    @property
    def claim(self) -> str:
        return (
            f"with one-step windows the peak of Checkpointed at {self.steps[-1]} steps is at most 1.5 times that at "
            f"{self.steps[0]}; that of Direct grows like the steps"
        )

    def quick(self) -> "Memory":
        return Memory(Sizes(2, 64, 32, 2, 64), steps=(1, 2), modes=2, threads=1)

    def run(self) -> Outcome:
        peaks = {name: [self._peak(name, steps) for steps in self.steps] for name in _GRADIENTS}
        rows: list[Row] = []
        for name, measured in peaks.items():
            rows += [{"gradient": name, "steps": s, "peak MiB": p} for s, p in zip(self.steps, measured, strict=True)]
        few, *_, many = peaks["Checkpointed"]
        exponent = fitted_slope([float(steps) for steps in self.steps], peaks["Direct"])
        ratios = (
            Ratio(f"Checkpointed: {self.steps[-1]} steps / {self.steps[0]} steps", many / few, 1.5),
            Ratio("Direct: exponent in the steps, away from 1", abs(exponent - 1.0), 0.1),
        )
        return Outcome(tuple(rows), ratios)

    def _peak(self, name: str, steps: int) -> float:
        sizes = dataclasses.asdict(self.sizes)
        return peak_memory(prepared, gradient=name, steps=steps, modes=self.modes, threads=self.threads, sizes=sizes)


_GRADIENTS: dict[str, AbstractGradient] = {"Checkpointed": Checkpointed(steps=1), "Direct": Direct()}


def prepared(gradient: str, steps: int, modes: int, threads: int, sizes: dict[str, int]) -> Callable[[], None]:
    """One solve with its gradient, ready to run; one small step has warmed up the libraries."""
    torch.set_num_threads(threads)
    rule, wanted = _GRADIENTS[gradient], Sizes(**sizes)
    small = dataclasses.replace(wanted, batch=1, tokens=8)
    flow = depth_dependent(wanted, modes)
    _solve(flow, small, rule, 1)
    return lambda: _solve(flow, wanted, rule, steps)


def _solve(flow: Flow, sizes: Sizes, gradient: AbstractGradient, steps: int) -> None:
    velocity = bound(flow, tokens(sizes))
    solution = integrate(velocity, velocity.initial(), SPAN, DormandPrince(), Fixed(steps), gradient)
    solution.x.square().mean().backward()
