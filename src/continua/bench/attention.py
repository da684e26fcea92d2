"""Attention on weighted causal measures against torch's own, which knows no weights."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.peak import peak_memory
from continua.bench.timing import Case, interleaved, paired, using_threads
from continua.core.seeds import generator_of
from continua.core.shapes import Positions
from continua.operators import Exact, Memory, Queries
from continua.spaces import BackwardRectangle, CausalTrapezoid, Measure


@final
@dataclasses.dataclass(frozen=True)
class AttentionCost(AbstractBenchmark):
    """The token integral with quadrature masses of irregular times, causal, forward + backward, gradients to masses.

    Plain is `scaled_dot_product_attention(is_causal=True)`, the counting measure. Weighted has one mass a token;
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

    def run(self) -> Outcome:
        rows: list[Row] = []
        ratios: list[Ratio] = []
        with using_threads(self.threads):
            for count in self.tokens:
                seconds = interleaved(cases(count, self.heads, self.key), self.repetitions)
                rows += [{"tokens": count, "attention": n, "seconds": statistics.median(t)} for n, t in seconds.items()]
                for name in ("weighted", "own masses"):
                    ratio = paired(seconds[name], seconds["plain"])
                    ratios.append(Ratio(f"{name} / plain, {count} tokens", ratio))
        longest = max(self.tokens)
        for name in ("plain", "weighted", "own masses"):
            settings = {"tokens": longest, "heads": self.heads, "key": self.key, "threads": self.threads}
            peak = peak_memory(prepared, name=name, **settings)
            rows.append({"tokens": longest, "attention": name, "peak MiB": peak})
            ratios.append(Ratio(f"peak of {name} / 1 GiB, {longest} tokens", peak / 1024, 1.0))
        return Outcome(tuple(rows), tuple(ratios))


def cases(tokens: int, heads: int, key: int) -> dict[str, Case]:
    """Forward and backward of plain, weighted and doubly weighted attention on the same queries, keys and values."""
    generator = generator_of(0)
    q, k, v = (torch.randn(1, heads, tokens, key, generator=generator).requires_grad_(True) for _ in range(3))
    times = 1.0 + torch.arange(tokens) + 0.8 * torch.rand(1, tokens, generator=generator)  # irregular, never tied
    measures = {"weighted": _weighted(times, own=False), "own masses": _weighted(times, own=True)}
    plain = {"plain": lambda: _backward(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v))}
    beta = key**-0.5

    def on(measure: Measure) -> Case:
        assert measure.mass is not None
        memory, leaves = Memory(k, v, measure), (q, k, v, measure.mass)
        return lambda: _backward(lambda: Exact().means(q, measure, memory, beta, causal=True), leaves)

    return plain | {name: on(measure) for name, measure in measures.items()}


def prepared(name: str, tokens: int, heads: int, key: int, threads: int) -> Callable[[], object]:
    """One of the cases, ready to run; a few tokens have warmed up the libraries."""
    torch.set_num_threads(threads)
    cases(16, heads, key)[name]()
    return cases(tokens, heads, key)[name]


def _weighted(times: Positions, own: bool) -> Measure:
    rule = CausalTrapezoid() if own else BackwardRectangle()
    mass, diagonal = rule.mass(times), rule.own(times)
    like: Queries = times[:, None, :, None]
    return Measure.of(tuple(times.shape), like, mass.requires_grad_(True), times, diagonal)


def _backward(forward: Callable[[], torch.Tensor], leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    y = forward()
    # the logarithms of the masses are taken once a solve: their graph serves every call
    return torch.autograd.grad(y, leaves, torch.ones_like(y), retain_graph=True)
