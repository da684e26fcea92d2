"""What weights that depend on depth cost beside constant ones."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import final

import torch

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.flows import Sizes, bound, tokens
from continua.bench.timing import Case, interleaved, paired, using_threads
from continua.core.seeds import generator_of
from continua.fields import AbstractField, Constant, Expansion
from continua.model import Flow, Part
from continua.operators import Attention, FeedForward, LayerNorm, PreNorm, Theta
from continua.solve import State
from continua.spaces import BSpline, Legendre

_Maker = Callable[[Theta, torch.Generator], AbstractField]


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

    def run(self) -> Outcome:
        cases = {
            "constant": self._case(Constant),
            "Legendre": self._case(lambda spec, g: Expansion(spec, Legendre(self.modes), generator=g)),
            "B-spline": self._case(lambda spec, g: Expansion(spec, BSpline(self.modes), generator=g)),
        }
        with using_threads(self.threads):
            seconds = interleaved(cases, self.repetitions)
        rows: list[Row] = [{"field": n, "seconds": statistics.median(t) / self.evaluations} for n, t in seconds.items()]
        ratios = [
            Ratio(f"{name} / constant", paired(seconds[name], seconds["constant"]), 1.1)
            for name in ("Legendre", "B-spline")
        ]
        return Outcome(tuple(rows), tuple(ratios))

    def _case(self, field: _Maker) -> Case:
        sizes, generator = self.sizes, generator_of(0)
        attention = PreNorm(LayerNorm(), Attention(sizes.heads, sizes.width // sizes.heads, causal=True))
        feedforward = PreNorm(LayerNorm(), FeedForward(sizes.hidden))
        flow = Flow([Part(f, field(f.spec(sizes.width), generator)) for f in (attention, feedforward)])
        velocity, state = bound(flow, tokens(sizes)), State(tokens(sizes))
        depths = [(i + 0.5) / self.evaluations for i in range(self.evaluations)]

        @torch.no_grad()
        def evaluate() -> None:
            for z in depths:
                velocity(z, state)

        return evaluate
