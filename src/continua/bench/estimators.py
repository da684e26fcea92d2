"""Estimates of the token integral against the exact one, as the sequence grows."""

import dataclasses
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.timing import Case, interleaved, using_threads
from continua.core.seeds import generator_of
from continua.core.slopes import fitted_slope
from continua.operators import AbstractTokenIntegral, Context, Controlled, Exact, Memory, Nystrom, Sobol, Subset
from continua.spaces import Cloud


@final
@dataclasses.dataclass(frozen=True)
class EstimatorCost(AbstractBenchmark):
    """Drawing nodes and the token integral over them, forward, at a fixed number m of nodes.

    The exponent is the slope of log seconds against log tokens; the exact integral is shown beside, up to `longest`.
    `Debiased` is left out: its cost is random, and linear only in the mean of its cheap levels.
    """

    tokens: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    m: int = 64
    heads: int = 2
    key: int = 32
    longest: int = 4096
    repetitions: int = 5
    threads: int = 1

    @property
    def claim(self) -> str:
        return f"at {self.m} nodes the cost of an estimate grows at most like tokens^1.1"

    def quick(self) -> "EstimatorCost":
        return EstimatorCost((64, 128), m=8, heads=2, key=8, longest=64, repetitions=2, threads=1)

    def run(self) -> Outcome:
        estimates: dict[str, AbstractTokenIntegral] = {
            "subset": Subset(self.m),
            "subset, Sobol": Subset(self.m, Sobol()),
            "subset, causal": Subset(self.m),
            "Nystrom": Nystrom(self.m),
            "controlled": Controlled(self.m, Nystrom(self.m)),
            "exact": Exact(),
        }
        with using_threads(self.threads):
            rounds = interleaved(self._cases(estimates), self.repetitions)
        # A load on the machine only adds to a time, and it would not add to all sizes alike.
        fastest = {key: min(seconds) for key, seconds in rounds.items()}
        rows: list[Row] = []
        ratios: list[Ratio] = []
        for name in estimates:
            known = {n: fastest[key] for n in self.tokens if (key := _key(name, n)) in fastest}
            rows += [{"integral": name, "tokens": count, "seconds": value} for count, value in known.items()]
            if len(known) > 1:
                slope = fitted_slope([float(count) for count in known], list(known.values()))
                ratios.append(Ratio(f"exponent of {name}", slope, None if name == "exact" else 1.1))
        return Outcome(tuple(rows), tuple(ratios))

    def _cases(self, estimates: dict[str, AbstractTokenIntegral]) -> dict[str, Case]:
        """Every integral at every length that it is asked for."""
        found: dict[str, Case] = {}
        for count in self.tokens:
            chosen = {n: e for n, e in estimates.items() if n != "exact" or count <= self.longest}
            found |= {_key(n, count): case for n, case in cases(count, self.heads, self.key, chosen).items()}
        return found


def _key(name: str, tokens: int) -> str:
    return f"{name} at {tokens}"


def cases(tokens: int, heads: int, key: int, integrals: dict[str, AbstractTokenIntegral]) -> dict[str, Case]:
    """Bind and evaluate each integral on the same queries, keys and values."""
    generator = generator_of(0)
    q, k, v = (torch.randn(1, heads, tokens, key, generator=generator) for _ in range(3))
    times = torch.rand(1, tokens, generator=generator).sort(-1).values
    cloud = Cloud(k[:, 0], torch.rand(1, tokens, generator=generator) + 0.1, times)
    memory, context = Memory(k, v, cloud.measure), Context(cloud, seed=1)

    def of(integral: AbstractTokenIntegral, causal: bool) -> Case:
        return lambda: integral.bind(context).means(q, cloud.measure, memory, key**-0.5, causal)

    return {name: of(integral, "causal" in name) for name, integral in integrals.items()}
