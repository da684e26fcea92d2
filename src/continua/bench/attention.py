"""The token integral: weighted causal measures against torch's own attention, and estimates as sequences grow."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F

from continua.bench.benchmark import AbstractBenchmark, BenchResult, Case, Ratio, Row, median_ratio, time_in_turn
from continua.bench.memory import peak_memory
from continua.core.seeds import generator_of
from continua.core.shapes import Positions
from continua.core.slopes import fitted_slope
from continua.operators import (
    AbstractTokenIntegral,
    Binding,
    ControlVariate,
    Exact,
    KeyValues,
    Nystrom,
    Queries,
    Sobol,
    Subset,
)
from continua.spaces import BackwardRectangle, CausalTrapezoid, Cloud, Measure


@final
@dataclasses.dataclass(frozen=True)
class AttentionCost(AbstractBenchmark):
    """The token integral with quadrature masses of irregular times, causal, forward + backward, gradients to masses.

    Plain is `scaled_dot_product_attention(is_causal=True)`, the counting measure. Weighted has one mass per token;
    with own masses (`CausalTrapezoid`) a token weighs differently in its own row.
    """

    tokens: tuple[int, ...] = (1024, 4096, 16384)
    heads: int = 4
    key: int = 32
    repetitions: int = 5
    threads: int = 2

    @property
    def claim(self) -> str:
        return f"weighted causal attention stays below 1 GiB at {max(self.tokens)} tokens, and near the time of plain"

    def quick(self) -> "AttentionCost":
        return AttentionCost((16, 64), heads=2, key=8, repetitions=2, threads=1)

    def measure(self) -> BenchResult:
        rows: list[Row] = []
        ratios: list[Ratio] = []
        for count in self.tokens:
            seconds = time_in_turn(attention_cases(count, self.heads, self.key), self.repetitions)
            rows += [{"tokens": count, "attention": n, "seconds": statistics.median(t)} for n, t in seconds.items()]
            for name in ("weighted", "own masses"):
                ratio = median_ratio(seconds[name], seconds["plain"])
                ratios.append(Ratio(f"{name} / plain, {count} tokens", ratio))
        longest = max(self.tokens)
        for name in ("plain", "weighted", "own masses"):
            settings = {"tokens": longest, "heads": self.heads, "key": self.key, "threads": self.threads}
            peak = peak_memory(prepare_attention, name=name, **settings)
            rows.append({"tokens": longest, "attention": name, "peak MiB": peak})
            ratios.append(Ratio(f"peak of {name} / 1 GiB, {longest} tokens", peak / 1024, 1.0))
        return BenchResult(tuple(rows), tuple(ratios))


def attention_cases(tokens: int, heads: int, key: int) -> dict[str, Case]:
    """Forward and backward of plain, weighted and doubly weighted attention on the same queries, keys and values."""
    generator = generator_of(0)
    q, k, v = (torch.randn(1, heads, tokens, key, generator=generator).requires_grad_(True) for _ in range(3))
    times = 1.0 + torch.arange(tokens) + 0.8 * torch.rand(1, tokens, generator=generator)  # irregular, never tied
    measures = {"weighted": _measure_on(times, own=False), "own masses": _measure_on(times, own=True)}
    plain = {"plain": lambda: _backward(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v))}
    beta = key**-0.5

    def on(measure: Measure) -> Case:
        assert measure.mass is not None
        kv, leaves = KeyValues(k, v, measure), (q, k, v, measure.mass)
        return lambda: _backward(lambda: Exact().means(q, measure, kv, beta, causal=True), leaves)

    return plain | {name: on(measure) for name, measure in measures.items()}


def prepare_attention(name: str, tokens: int, heads: int, key: int, threads: int) -> Case:
    """One of the cases, ready to run; a few tokens have warmed up the libraries."""
    torch.set_num_threads(threads)
    attention_cases(16, heads, key)[name]()
    return attention_cases(tokens, heads, key)[name]


def _measure_on(times: Positions, own: bool) -> Measure:
    rule = CausalTrapezoid() if own else BackwardRectangle()
    mass, diagonal = rule.mass(times), rule.own(times)
    like: Queries = times[:, None, :, None]
    return Measure.of(tuple(times.shape), like, mass.requires_grad_(True), times, diagonal)


def _backward(forward: Callable[[], torch.Tensor], leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    y = forward()
    # the logarithms of the masses are taken once per solve: their graph serves every call
    return torch.autograd.grad(y, leaves, torch.ones_like(y), retain_graph=True)


@final
@dataclasses.dataclass(frozen=True)
class IntegralCost(AbstractBenchmark):
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

    def quick(self) -> "IntegralCost":
        return IntegralCost((64, 128), m=8, heads=2, key=8, longest=64, repetitions=2, threads=1)

    def measure(self) -> BenchResult:
        estimates: dict[str, AbstractTokenIntegral] = {
            "subset": Subset(self.m),
            "subset, Sobol": Subset(self.m, Sobol()),
            "subset, causal": Subset(self.m),
            "Nystrom": Nystrom(self.m),
            "controlled": ControlVariate(self.m, Nystrom(self.m)),
            "exact": Exact(),
        }
        rounds = time_in_turn(self._cases(estimates), self.repetitions)
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
        return BenchResult(tuple(rows), tuple(ratios))

    def _cases(self, estimates: dict[str, AbstractTokenIntegral]) -> dict[str, Case]:
        """Every integral at every length that it is asked for."""
        found: dict[str, Case] = {}
        for count in self.tokens:
            chosen = {n: e for n, e in estimates.items() if n != "exact" or count <= self.longest}
            found |= {_key(n, count): case for n, case in _integral_cases(count, self.heads, self.key, chosen).items()}
        return found


def _key(name: str, tokens: int) -> str:
    return f"{name} at {tokens}"


def _integral_cases(tokens: int, heads: int, key: int, integrals: dict[str, AbstractTokenIntegral]) -> dict[str, Case]:
    """Bind and evaluate each integral on the same queries, keys and values."""
    generator = generator_of(0)
    q, k, v = (torch.randn(1, heads, tokens, key, generator=generator) for _ in range(3))
    times = torch.rand(1, tokens, generator=generator).sort(-1).values
    cloud = Cloud(k[:, 0], torch.rand(1, tokens, generator=generator) + 0.1, times)
    kv, binding = KeyValues(k, v, cloud.measure), Binding(cloud, seed=1)

    def of(integral: AbstractTokenIntegral, causal: bool) -> Case:
        return lambda: integral.bind(binding).means(q, cloud.measure, kv, key**-0.5, causal)

    return {name: of(integral, "causal" in name) for name, integral in integrals.items()}
