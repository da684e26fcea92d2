"""What an update of the composite recipe costs, against torch's AdamW on the same parameters."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator
from typing import final

import torch
from torch import nn

from continua.bench.benchmark import AbstractBenchmark, Outcome, Ratio, Row
from continua.bench.timing import Case, interleaved, paired, using_threads
from continua.core.seeds import generator_of
from continua.fields import Constant
from continua.model import ContinuousTransformer, Flow, HeadMeasure, Part, transformer
from continua.operators import FeedForward, Spectral
from continua.optim import SOAP, ModalAdamW, Recipe, use
from continua.spaces import Axis, Cosine

NEVER = 10**9
"""An interval that no run reaches: bases are made in the first update, which is not timed, and then never again."""


@final
@dataclasses.dataclass(frozen=True)
class RecipeCost(AbstractBenchmark):
    """Updates by `Recipe()` and by `torch.optim.AdamW(foreach=True)`, on the same parameters with the same gradients.

    The default model with continuous heads, and a flow of spectral kernels, whose updates with new bases are shown
    apart and spread over the interval between them; for information, the same flow under the library's SOAP. On one
    thread, time is that of the processor.
    """

    width: int = 128
    heads: int = 4
    updates: int = 20
    repetitions: int = 15
    threads: int = 1

    @property
    def claim(self) -> str:
        return "an update of the recipe takes at most 1.5 times one of torch.optim.AdamW, new bases apart"

    def quick(self) -> "RecipeCost":
        return RecipeCost(width=16, heads=4, updates=1, repetitions=1)

    def run(self) -> Outcome:
        heads, kernels = functools.partial(continuous, self.width, self.heads), functools.partial(spectral, self.width)
        optimisers: dict[str, tuple[torch.optim.Optimizer, nn.Module]] = {
            "recipe": _by(Recipe(), heads()),
            "AdamW": _adamw(heads()),
            "recipe, spectral": _by(Recipe(spectral=use(ModalAdamW, interval=NEVER)), kernels()),
            "recipe, spectral, new bases": _by(Recipe(spectral=use(ModalAdamW, interval=1)), kernels()),
            "SOAP, spectral": _by(Recipe(spectral=use(SOAP, interval=NEVER)), kernels()),
            "AdamW, spectral": _adamw(kernels()),
        }
        with using_threads(self.threads):
            cases = {name: self._repeated(optimiser) for name, (optimiser, _) in optimisers.items()}
            clock = time.process_time if self.threads == 1 else time.perf_counter
            seconds = interleaved(cases, self.repetitions, clock)
        rows: list[Row] = [
            {
                "case": name,
                "milliseconds an update": 1e3 * statistics.median(times) / self.updates,
                "parameters": sum(p.numel() for p in optimisers[name][1].parameters()),
                "tensors": len(list(optimisers[name][1].parameters())),
            }
            for name, times in seconds.items()
        ]
        return Outcome(tuple(rows), tuple(_ratios(seconds)))

    def _repeated(self, optimiser: torch.optim.Optimizer) -> Case:
        def updates() -> None:
            for _ in range(self.updates):
                optimiser.step()

        return updates


def continuous(width: int, heads: int) -> ContinuousTransformer:
    """A model for signals whose heads are a measure with a trained density."""
    return transformer(width, 10, features=1, axis=1, heads=HeadMeasure(heads, key=width // heads), depth=1.0)


def spectral(width: int) -> Flow:
    """A feed-forward whose kernels are spectral, on 8 nodes, with 8 modes."""
    kernel = Spectral(Axis(8, width // 8), Cosine(8))
    operator = FeedForward(4 * width // 8, kernel=kernel)
    return Flow([Part(operator, Constant(operator.spec(width), generator_of(0)))])


def graded(module: nn.Module) -> nn.Module:
    """The module with a random gradient for every parameter."""
    generator = generator_of(1)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return module


def _by(recipe: Recipe, module: nn.Module) -> tuple[torch.optim.Optimizer, nn.Module]:
    return recipe.build(graded(module)), module


def _adamw(module: nn.Module) -> tuple[torch.optim.Optimizer, nn.Module]:
    return torch.optim.AdamW(graded(module).parameters(), foreach=True), module


def _ratios(seconds: dict[str, list[float]]) -> Iterator[Ratio]:
    """Against AdamW on the same parameters; updates with new bases count once in an interval in "spread"."""
    yield Ratio("recipe / AdamW", paired(seconds["recipe"], seconds["AdamW"]), 1.5)
    usual, renewing, adamw = (
        seconds[name] for name in ("recipe, spectral", "recipe, spectral, new bases", "AdamW, spectral")
    )
    interval = ModalAdamW([nn.Parameter(torch.zeros(1, 1, 1, 1))]).defaults["interval"]
    spread = [((interval - 1) * a + b) / interval for a, b in zip(usual, renewing, strict=True)]
    yield Ratio("recipe / AdamW, spectral", paired(usual, adamw), 1.5)
    yield Ratio("recipe / AdamW, spectral, an update with new bases", paired(renewing, adamw))
    yield Ratio(f"recipe / AdamW, spectral, new bases spread over {interval} updates", paired(spread, adamw))
    yield Ratio("SOAP / AdamW, spectral", paired(seconds["SOAP, spectral"], adamw))
